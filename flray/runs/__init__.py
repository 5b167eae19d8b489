"""Runs: folder, journal, round loop, callbacks, figures and resume."""
