"""Audits of runs, of score files and of traces."""
