"""Reference federations, and attacks that repeat a run's training."""
