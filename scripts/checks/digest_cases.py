"""What scripts/digests runs: every method, every kind of data, and each way in which a run or a sweep may be run.

The settings are in digest_cases.yaml. Of the package it names the registry alone.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from flray import registry

Way = Literal["python", "command", "killed"]
SETTINGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
METHODS: dict[str, dict[str, Any]] = {
    **{name: {} for name in registry.algorithms.names()},
    **SETTINGS["methods"],
}
FEATURES: dict[str, tuple[str, dict[str, Any]]] = SETTINGS["features"]
LONGER: dict[str, Any] = {"rounds": 6, "local": {"epochs": 4}}
"""Long enough to be killed in the middle."""
ACTORS: dict[str, Any] = {"resources": {"executor": "ray", "actors": 2}}


@dataclass(frozen=True)
class Configuration:
    """A run or a sweep."""

    name: str  # as in the table
    content: dict[str, Any]  # the YAML file

    @property
    def sweep(self) -> bool:
        """Whether it is a sweep."""
        return "sweep" in self.content

    @property
    def ray(self) -> bool:
        """Whether it starts Ray."""
        return self.sweep or self.content["experiment"]["resources"]["executor"] == "ray"


@dataclass(frozen=True)
class Case(Configuration):
    """A configuration, and how it is run."""

    way: Way = "python"
    """``"python"``: `flray.run`; ``"command"``: a command line in a process of its own; ``"killed"``: such a one that
    is killed after a checkpoint, and resumed."""
    like: str | None = None  # the case that has to end with the same bits and the same numbers


def experiment(method: str, *changes: dict[str, Any]) -> dict[str, Any]:
    """Return a small experiment with changes, those of the method first."""
    base = {**SETTINGS["base"], "algorithm": {"name": method}}
    return functools.reduce(merged, (METHODS[method], *changes), base)


def cases() -> list[Case]:
    """Return all cases."""

    def of(name: str, method: str, *changes: dict[str, Any], **how: Any) -> Case:
        return Case(name, {"experiment": experiment(method, *changes)}, **how)

    made = [of(name, name) for name in sorted(METHODS)]
    made += [of(name, *feature) for name, feature in FEATURES.items()]
    for name in ("feddf", "fedskc", "lgmix", "scaffold"):
        made.append(of(f"{name}, 2 actors", name, ACTORS, like=name))
    for name in ("block", "named networks"):
        made.append(of(f"{name}, 2 actors", *FEATURES[name], ACTORS, like=name))
    for name in ("scaffold", "fcclplus"):
        longer = f"{name}, 6 rounds"
        made.append(of(longer, name, LONGER))
        made.append(of(f"{name}, killed", name, LONGER, way="killed", like=longer))
    # The command line starts itself again for these bits, and Ray on its own.
    portable = {"resources": {"bits": "portable"}}
    made.append(of("portable bits", "fedavg", portable, way="command"))
    made.append(of("moon, 2 actors, command line", "moon", ACTORS, way="command", like="moon"))
    for name, parts in SETTINGS["sweeps"].items():
        made.append(Case(name, {"experiment": experiment("fedavg"), **parts}, "command"))
    return made


def merged(content: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return a tree with the leaves of another; what another component is named for takes no options over."""
    made = dict(content)
    for key, value in change.items():
        old: Any = made.get(key)
        both = isinstance(old, dict) and isinstance(value, dict) and "name" not in value
        made[key] = merged(old, value) if both else value
    return made
