"""Results of runs and sweeps, read once: trials and histories, reported values, tables, costs, CSV files."""
