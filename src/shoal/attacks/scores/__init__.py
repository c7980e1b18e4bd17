"""Membership inference from the scores of reference models, of other clusters' models or of other rounds' models."""
