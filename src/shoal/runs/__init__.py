"""A run's directory and files. This package may import `reports` and the packages below it."""
