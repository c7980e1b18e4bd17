"""The command line and its live displays."""
