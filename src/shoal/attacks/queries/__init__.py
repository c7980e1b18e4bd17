"""Membership inference from queries of one model, with or without shadow models."""
