"""The span attack, which tests whether a record lies in the row space of a dense layer's updates."""
