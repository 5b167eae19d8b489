"""The built-in data sets, one module for each or for a family, which `flray.registry.datasets` imports on first use."""
