"""Direction of metrics: losses, distances, costs and rounds to a target are better the lower they are."""

from __future__ import annotations

_SCOPES = {
    **dict.fromkeys(("global", "personal", "online", "offline"), 2),
    **dict.fromkeys(("train", "own", "others", "pooled"), 1),
}
"""Steps before the measure in a metric's name, by its first step."""
_LOWER = ("loss", "hausdorff", "hours", "seconds", "time", "bytes", "memory")


def measure_name(metric: str) -> str:
    """Return what a metric measures: ``"dice"`` of ``"personal/local/dice/client/A"``."""
    parts = metric.split("/")
    return parts[min(_SCOPES.get(parts[0], 0), len(parts) - 1)]


def lower_is_better(metric: str) -> bool:
    """Tell whether a metric, by its tracked name or its measure alone, is better the lower it is."""
    return ">=" in metric or measure_name(metric).startswith(_LOWER)
