"""Wrappers that change the choice of a model, the start or the aggregation of an algorithm."""
