"""The span attack: which records lie in the span of a dense layer's moves."""
