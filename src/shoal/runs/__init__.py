"""One run as a directory: all its files. May import everything below, `reports` included."""
