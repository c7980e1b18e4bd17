"""Membership inference by queries of one model; the red team that estimates risks with it, and its shadow models."""
