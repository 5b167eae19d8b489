"""What is killed: small federations of every kind. Their settings are in catalogue.yaml."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from digest_cases import Configuration, merged

SETTINGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
METHODS: dict[str, dict[str, Any]] = SETTINGS["methods"]
IN_SWEEPS = {"driver": 5.0, "trial": 3.0}


@dataclass(frozen=True)
class Federation(Configuration):
    """What a case runs; its content is without name, output and tracking."""

    group: str  # for --only and the table
    victims: dict[str, float]  # who may be killed, with weights
    place: str = "folder"  # or "bucket" or "nodes"
    served: bool = False  # tracked by a server rather than in a file
    promise: str = "all"
    """What equals the undisturbed one: ``"all"``; ``"prefix"``, every trial up to the round that it came to (an
    asynchronous scheduler decides by who came first)."""
    reference: dict[str, Any] | None = None  # what to compare with if not the content itself


def experiment(method: str, *changes: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment of a small federation."""
    base = {**SETTINGS["experiment"], "algorithm": {"name": method}}
    return functools.reduce(merged, (METHODS[method], *changes), base)


def catalogue() -> list[Federation]:
    """Return all federations."""
    found = []
    for group, how in SETTINGS["groups"].items():
        about = {name: how[name] for name in ("victims", "place", "served") if name in how}
        for method in METHODS if how["methods"] == "all" else how["methods"]:
            alone = {"resources": {"executor": "inline"}, **how.get("settings", {})}
            content = {"experiment": experiment(method, alone)}
            if "resources" in how:
                about["reference"] = content
                content = {"experiment": content["experiment"] | {"resources": how["resources"]}}
            found.append(Federation(f"{method} {how['name']}", content, group, **about))
    return found + sweeps()


def sweeps() -> list[Federation]:
    """Return the sweeps."""

    def content(sweep: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
        return {"experiment": experiment("fedavg", {"rounds": 6}), "space": space, "sweep": sweep}

    found = []
    for name, how in SETTINGS["sweeps"].items():
        about = {"victims": IN_SWEEPS, **how}
        space = about.pop("space", SETTINGS["space"])
        if "reference" in about:
            about["reference"] = content(about["reference"], space)
        found.append(Federation(name, content(about.pop("sweep"), space), "sweep", **about))
    return found
