"""Algorithms whose clustering or averaging is designed for privacy."""
