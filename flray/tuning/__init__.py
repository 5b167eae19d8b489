"""Sweeps on Ray Tune: search space, search algorithm, scheduler, repeated seeds and a summary table.

The public functions are imported on first use: importing a single module of this package
loads neither Ray nor the reports that `flray.runs.sweeps` writes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flray.results.sweep import SweepResult
    from flray.runs.progress import SweepProgress
    from flray.runs.sweeps import resume_sweep as resume
    from flray.runs.sweeps import tune

__all__ = ["SweepProgress", "SweepResult", "resume", "tune"]

_MODULES = {
    "tune": ("flray.runs.sweeps", "tune"),
    "resume": ("flray.runs.sweeps", "resume_sweep"),
    "SweepResult": ("flray.results.sweep", "SweepResult"),
    "SweepProgress": ("flray.runs.progress", "SweepProgress"),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'flray.tuning' has no attribute {name!r}")
    module, attribute = _MODULES[name]
    return getattr(importlib.import_module(module), attribute)
