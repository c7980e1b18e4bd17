"""The exposure of records by updates and models, predicted before training."""
