"""Sweeps on Ray Tune: a space, a search, a scheduler, seeds as repetitions, and a table at the end."""

from flray.results.sweep import SweepResult
from flray.tuning.progress import SweepProgress
from flray.tuning.sweep import resume, tune

__all__ = ["SweepProgress", "SweepResult", "resume", "tune"]
