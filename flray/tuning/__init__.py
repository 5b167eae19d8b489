"""Sweeps on Ray Tune: search space, search algorithm, scheduler, repeated seeds and a summary table."""
