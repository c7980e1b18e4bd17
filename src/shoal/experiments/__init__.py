"""One desk: configurations, runs on disk, reports and comparisons. Where the rooms below meet."""
