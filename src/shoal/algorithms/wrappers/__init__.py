"""Wrappers of algorithms with clusters: another choice, another start, other models after a round."""
