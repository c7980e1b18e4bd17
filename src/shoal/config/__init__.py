"""Configurations: TOML files as checked values, and simulations built from these."""
