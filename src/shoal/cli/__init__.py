"""The door for people: the command line and its live display."""
