"""An audit's report: one HTML page."""
