"""Flat parameter vectors, named random streams, user errors, checked settings and atomic file writes."""
