"""Conversion of a user's own examples, arrays or tables to a federation."""
