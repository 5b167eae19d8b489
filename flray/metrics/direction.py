"""Direction of metrics: losses, distances, costs and rounds to a target are better the lower they are."""

from __future__ import annotations

_SCOPES = {
    **dict.fromkeys(("global", "personal", "adapted", "online", "offline"), 2),
    **dict.fromkeys(("train", "own", "others", "pooled"), 1),
}
"""Steps before the measure in a metric's name, by its first step."""
_SHARES = ("accuracy", "top", "auc", "sensitivity", "specificity", "f1", "dice")
_LOWER = ("loss", "hausdorff", "hours", "seconds", "time", "bytes", "memory")
_LOWER_ENDS = ("error", "loss")


def measure_name(metric: str) -> str:
    """Return a metric's measure: ``"dice"`` of ``"personal/local/dice/client/A"``."""
    parts = metric.split("/")
    if parts[0] in ("own", "others", "pooled") and len(parts) > 1 and parts[1] in _SCOPES:
        return measure_name("/".join(parts[1:]))
    return parts[min(_SCOPES.get(parts[0], 0), len(parts) - 1)]


def lower_is_better(metric: str) -> bool:
    """Tell whether a metric, by its tracked name or its measure alone, is better the lower it is."""
    measure = measure_name(metric)
    return ">=" in metric or measure.startswith(_LOWER) or measure.endswith(_LOWER_ENDS)


def is_share(metric: str) -> bool:
    """Tell whether a metric, by its tracked name or its measure alone, is a share, which is shown in percent.

    A measure of an evaluation is a share unless lower is better. Other tracked metrics, such as
    ``train/...`` and ``time/...``, are shares only if they are named after such a measure.
    """
    if lower_is_better(metric):
        return False
    evaluated = "/" not in metric or _SCOPES.get(metric.split("/")[0], 0) == 2
    parts = metric.split("/")
    own = parts[0] in ("own", "others", "pooled") and parts[1] not in _SCOPES
    return evaluated or own or measure_name(metric).startswith(_SHARES)
