"""Simulation of one federation in memory, including its measurements, without files or configuration."""
