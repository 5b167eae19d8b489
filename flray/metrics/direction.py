"""Which measures are better the lower they are."""

from __future__ import annotations

_LOWER = ("loss", "hausdorff")


def measure_name(metric: str) -> str:
    """Return what a tracked metric measures: ``"dice"`` of ``"personal/local/dice/client/A"``."""
    parts = metric.split("/")
    place = {"global": 2, "personal": 2, "online": 2, "offline": 2, "train": 1}.get(parts[0], 0)
    return parts[min(place, len(parts) - 1)]


def lower_is_better(metric: str) -> bool:
    """Tell whether a metric, by its tracked name or its measure alone, is a loss or a distance."""
    return measure_name(metric).startswith(_LOWER)
