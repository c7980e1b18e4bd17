"""A run's directory and all its files. May import `reports` and the packages below it."""
