"""Algorithms with one model per client."""
