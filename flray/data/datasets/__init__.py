"""The built-in data sets, one module for each or for a family."""
