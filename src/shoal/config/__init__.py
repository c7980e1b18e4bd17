"""From a TOML file to checked values, and from these to a simulation."""
