"""Wrappers of algorithms with clusters, which change the choice of a model, the start or the aggregation."""
