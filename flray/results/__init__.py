"""Results of runs and sweeps, read once: histories, measures, tables, costs and significance."""
