"""Sweeps on Ray Tune: a space, a search, a scheduler, seeds as repetitions, and a table at the end.

The public functions are imported on first use: a module of this package that is imported by itself
loads neither Ray nor the reports that `flray.sweeps` writes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flray.results.sweep import SweepResult
    from flray.runs.progress import SweepProgress
    from flray.sweeps import resume, tune

__all__ = ["SweepProgress", "SweepResult", "resume", "tune"]

_MODULES = {
    "tune": "flray.sweeps",
    "resume": "flray.sweeps",
    "SweepResult": "flray.results.sweep",
    "SweepProgress": "flray.runs.progress",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'flray.tuning' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
