"""Where data sets come from: one source a file, and the catalog that knows their names."""
