"""Flower's programs on one machine, for trials and tests: processes, certificates, and a worker that forks."""
