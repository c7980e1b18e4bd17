"""Configurations: checked TOML files, and the construction of simulations from configurations."""
