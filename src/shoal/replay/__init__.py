"""A run repeated with other records: reference federations, and the attacks that they make possible."""
