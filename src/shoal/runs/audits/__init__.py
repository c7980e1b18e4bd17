"""Audits of runs, score files and traces, and their files."""
