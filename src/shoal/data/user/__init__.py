"""A user's own examples, arrays or tables, checked and turned into the parts of a federation."""
