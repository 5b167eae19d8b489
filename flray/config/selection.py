"""Whether a sweep chooses settings, and by test data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flray.metrics.catalogue import is_test

PLACES = ("data", "partition", "split", "shift", "subset", "evaluation")
"""Settings under which other numbers are asked for: nobody chooses among them."""


def selects_on_test(config: Mapping[str, Any]) -> str:
    """Return a line that says so where a sweep chooses by a test metric, else nothing.

    Arms, methods without further options, and data are compared and not chosen; a space of anything
    else, a scheduler and a search choose.

    Parameters
    ----------
    config : mapping
        The resolved configuration of the sweep.
    """
    sweep = config.get("sweep") or {}
    metric = str(sweep.get("metric", "auto"))
    space = config.get("space") or {}
    chooses = sweep.get("scheduler") or any(
        _is_choice(path.removeprefix("experiment."), domain) for path, domain in space.items()
    )
    if not chooses or not is_test(metric):
        return ""
    return (
        f"this sweep selects on test data (sweep.metric: {metric}), which makes the value of what "
        "it chooses too good; evaluation.validation=0.2 keeps samples to choose by, for example "
        "with sweep.metric=global/validation/accuracy (flray list metrics)"
    )


def _is_choice(path: str, domain: Mapping[str, Any]) -> bool:
    if path.split(".")[0] in PLACES:
        return False
    values = next(iter(domain.values()))
    if path not in ("algorithm", "algorithm.name") or len(values) < 2:
        return len(values) > 1
    names = [one["name"] if isinstance(one, Mapping) else one for one in values]
    return len(set(names)) < len(names)
