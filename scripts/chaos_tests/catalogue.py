"""What is killed: small federations of every kind."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedbn": {},
    "scaffold": {},
    "fedskc": {},
    "apfl": {},
    "fedrod": {},
    "lgmix": {},
    "fedco2": {},
    "feddf": {"steps": 6},
    "fcclplus": {"public_size": 60, "public_batch_size": 10},
}
"""Ten methods and the options that make them small; a round of FCCL+ is mostly its six public batches."""

EXPERIMENT: dict[str, Any] = {
    "rounds": 12,
    "data": {"name": "digits-sklearn", "samples": 48},
    "model": {"name": "lenet", "norm": "batch"},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.05},
    "participation": {"fraction": 0.75},
    "checkpoint": {"min_seconds": 0},
}


@dataclass(frozen=True)
class Federation:
    """What a case runs.

    Attributes
    ----------
    name : str
        As in the table.
    content : dict
        The YAML file, without name, output and tracking.
    group : str
        Kind of federation, for ``--only`` and the table.
    victims : dict of str to float
        Who may be killed, with weights.
    place : str
        ``"folder"``, ``"bucket"`` or ``"nodes"``.
    served : bool
        Tracked by a server rather than in a file.
    promise : str
        What equals the undisturbed one: ``"all"``; ``"prefix"``, every trial up to the round it
        came to (an asynchronous scheduler decides by who came first).
    reference : dict or None
        What to compare with if not the content itself.
    """

    name: str
    content: dict[str, Any]
    group: str
    victims: dict[str, float] = field(default_factory=lambda: {"driver": 1.0})
    place: str = "folder"
    served: bool = False
    promise: str = "all"
    reference: dict[str, Any] | None = None

    @property
    def sweep(self) -> bool:
        """Whether it is a sweep."""
        return "sweep" in self.content

    @property
    def ray(self) -> bool:
        """Whether it starts Ray."""
        return self.sweep or self.content["experiment"]["resources"]["executor"] == "ray"


def experiment(
    method: str = "fedavg", resources: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """Return the experiment of a small federation."""
    content = copy.deepcopy(EXPERIMENT)
    if method == "lgmix":
        content["model"] = {
            "name": "lenet",
            "norm": "group",
        }  # sums of updates may make running variances negative
    if method in ("fcclplus", "feddf"):
        content["public"] = {"name": "photos", "samples": 60}
    return {
        **content,
        "algorithm": {"name": method, **METHODS[method]},
        "resources": resources or {"executor": "inline"},
        **changes,
    }


ON_RAY = {"driver": 3.0, "client": 4.0, "server": 3.0}
IN_SWEEPS = {"driver": 5.0, "trial": 3.0}


def catalogue() -> list[Federation]:
    """Return all federations."""
    found = [Federation(f"{m} inline", {"experiment": experiment(m)}, "inline") for m in METHODS]
    found += [
        Federation(
            f"{m} 2 actors",
            {"experiment": experiment(m, {"executor": "ray", "actors": 2})},
            "actors",
            ON_RAY,
            reference={"experiment": experiment(m)},
        )
        for m in METHODS
    ]
    pool = {"executor": "ray", "actors": 4, "cpus_per_actor": 0.5}
    found += [
        Federation(
            f"{m} 4 actors",
            {"experiment": experiment(m, pool, participation={})},
            "pool",
            ON_RAY,
            reference={"experiment": experiment(m, participation={})},
        )
        for m in ("fedavg", "fcclplus", "lgmix")
    ]
    found += [
        Federation(
            f"{m} inline, server",
            {"experiment": experiment(m, rounds=40)},
            "tracking",
            {"driver": 1.0, "tracking": 2.0},
            served=True,
        )
        for m in ("fedavg", "fedbn")
    ]
    found += [
        Federation(
            f"{m} inline, bucket",
            {"experiment": experiment(m, rounds=20)},
            "bucket",
            {"driver": 1.0, "head": 2.0},
            "bucket",
        )
        for m in ("scaffold", "apfl")
    ]
    found += [
        Federation(
            f"{m} 2 nodes",
            {"experiment": experiment(m, {"executor": "ray", "actors": 2}, rounds=16)},
            "nodes",
            {"node": 4.0, "driver": 1.0, "client": 1.0, "server": 1.0},
            "nodes",
            reference={"experiment": experiment(m, rounds=16)},
        )
        for m in ("fedbn", "apfl")
    ]
    return found + sweeps()


def sweeps() -> list[Federation]:
    """Return the sweeps."""
    base = experiment(rounds=6)
    for name in ("resources",):
        base.pop(name)
    draws = {"local.lr": {"loguniform": [0.01, 0.2]}}

    def content(space: dict[str, Any] | None = None, **sweep: Any) -> dict[str, Any]:
        return {"experiment": copy.deepcopy(base), "space": space or draws, "sweep": sweep}

    asha = {"name": "asha", "grace_period": 2, "reduction_factor": 2, "compared": "all"}
    methods = {
        "algorithm": {"grid": ["fedavg", "scaffold"]},
        "local.lr": {"choice": [0.02, 0.05, 0.1]},
    }
    return [
        Federation("random search", content(samples=5), "sweep", IN_SWEEPS),
        Federation(
            "grid and 2 seeds", content(methods, samples=1, seeds=[0, 1]), "sweep", IN_SWEEPS
        ),
        Federation(
            "optuna", content(samples=5, search="optuna", concurrency=1), "sweep", IN_SWEEPS
        ),
        Federation(
            "optuna, 2 seeds",
            content(samples=3, search="optuna", seeds=[0, 1], concurrency=1),
            "sweep",
            IN_SWEEPS,
        ),
        Federation(
            "asha, one at a time",
            content(samples=5, scheduler=asha, concurrency=1),
            "sweep",
            IN_SWEEPS,
        ),
        Federation(
            "asha",
            content(samples=6, scheduler=asha),
            "sweep",
            IN_SWEEPS,
            promise="prefix",
            reference=content(samples=6),
        ),
        Federation(
            "random search, bucket",
            content(samples=4),
            "sweep",
            {"driver": 2.0, "head": 2.0},
            "bucket",
        ),
        Federation(
            "random search, server",
            content(samples=4),
            "sweep",
            {"driver": 1.0, "tracking": 1.0},
            served=True,
        ),
        Federation(
            "random search, 2 nodes",
            content(samples=4),
            "sweep",
            {"node": 3.0, "driver": 1.0},
            "nodes",
        ),
    ]
