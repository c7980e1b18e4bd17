"""Algorithms with a model for each client."""
