"""Membership inference by scores of several models: reference models, models of other clusters or of other rounds."""
