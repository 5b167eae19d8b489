"""Figures of runs, sweeps and partitions: one style and palette, as PNG, SVG, PDF or within an HTML page."""
