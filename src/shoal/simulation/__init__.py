"""One federation in memory, trained and measured. Sees no file and no configuration."""
