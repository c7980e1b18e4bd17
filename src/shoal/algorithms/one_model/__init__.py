"""Algorithms with one model; an algorithm with the field ``base`` also wraps algorithms with clusters."""
