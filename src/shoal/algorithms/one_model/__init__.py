"""Algorithms of papers with one model; those with a ``base`` wrap algorithms with clusters as well."""
