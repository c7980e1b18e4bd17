"""Sources of data sets, one per file, and the catalog of the sources' names."""
