"""Pages, tables and pictures from data frames. Reads and writes no file of a run; never imports `runs`."""
