"""Pages, tables and figures from data frames.

This package does not read or write a run's files.
"""
