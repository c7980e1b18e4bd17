"""Configurations in TOML files, and the simulations that they describe."""
