"""Pages, tables and figures from data frames.

This package reads and writes no file of a run, and never imports `runs`.
"""
