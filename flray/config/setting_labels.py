"""Settings of trials as flat columns, and their labels in tables and figures."""

from __future__ import annotations

from collections.abc import Mapping

from flray import registry
from flray.config import arms
from flray.config.plain import Plain
from flray.errors import one_line


def flatten_setting(setting: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return a setting with one scalar per column: a component's name stands under its path, options below it.

    For example ``{"algorithm": {"name": "fedprox", "mu": 0.1}}`` becomes
    ``{"algorithm": "fedprox", "algorithm.mu": 0.1}``.
    """
    flat: dict[str, Plain] = {}
    for path, value in setting.items():
        path = path.removeprefix("experiment.").removesuffix(".name")
        if isinstance(value, Mapping):
            flat.update(
                {
                    (path if key == "name" else f"{path}.{key}"): part
                    for key, part in flatten_setting(value).items()
                }
            )
        else:
            flat[path] = value
    return flat


def label(setting: Mapping[str, Plain]) -> str:
    """Return the label of a setting, for example ``fedprox mu=0.1 lr=0.05``."""
    return setting_label(flatten_setting(setting))


def setting_label(flat: Mapping[str, Plain]) -> str:
    """Return the label of flat columns; components appear by name only."""
    return " ".join(
        one_line(str(value)) if is_name(path) else f"{_short(path)}={format_value(value)}"
        for path, value in flat.items()
    )


def _short(path: str) -> str:
    """Return the last part of a path, of a partition's seed more, which is not the run's."""
    last = path.rsplit(".", 1)[-1]
    return path if last == "seed" else last


def is_name(path: str) -> bool:
    """Return whether a column's value is self-explanatory: a component's or an arm's name."""
    return path in registry_paths() or path.startswith(arms.PREFIX)


def registry_paths() -> frozenset[str]:
    """Return the paths that hold a component's name."""
    return frozenset({"data"} | {kind.removesuffix("s") for kind in registry.ALL} - {"dataset"})


def format_value(value: Plain) -> str:
    """Format a value for a table: four digits of a real number."""
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value))
