"""Algorithms with a model for each cluster of clients."""
