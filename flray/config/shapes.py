"""Validation of plain values in a configuration, and of a run's partition; settings that a resume may change."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import NotRequired

from pydantic import BaseModel, ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from flray.config.yaml_files import DEPTH, Plain, shorten
from flray.errors import ConfigError, FlrayError
from flray.files.border import read_json

RESUMABLE_SETTINGS = (
    "callbacks",
    "checkpoint",
    "faults",
    "name",
    "output",
    "plugins",
    "resources",
    "tracking",
)
"""Parts of an experiment that may change between a run's beginning and its resume."""
_FROZEN_RESOURCES = ("resources.bits", "resources.cpus_per_actor")
"""CPU instructions and torch threads, which affect the last bits."""
RESUMABLE_SWEEP_SETTINGS = (
    "sweep.concurrency",
    "sweep.max_failures",
    "sweep.reference",
    "sweep.reuse",
)

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@with_config(ConfigDict(strict=True, extra="allow"))
class ClientRecord(TypedDict):
    """A client in ``partition.json``: training samples by class, and number of test samples."""

    name: str
    domain: str
    train: list[int]
    test: int


@with_config(ConfigDict(strict=True, extra="allow"))
class PartitionRecord(TypedDict):
    """The content of ``partition.json``."""

    dataset: str
    classes: list[str]
    origins: dict[str, str]
    positive: NotRequired[str | None]
    encoding: NotRequired[str]
    fingerprints: NotRequired[dict[str, str]]
    primary: NotRequired[str]  # the method's primary metric
    clients: list[ClientRecord]


_PARTITION = TypeAdapter(PartitionRecord)


def read_partition(path: Path) -> PartitionRecord:
    """Read a partition written by `flray.records.directory.save_partition`.

    Raises
    ------
    FlrayError
        If it is missing, damaged or of another form.
    """
    found = read_json(path, _PARTITION)
    if len({len(client["train"]) for client in found["clients"]}) > 1:
        raise FlrayError(
            f"{path}: found clients with unlike numbers of classes; restore it, or take the file away"
        )
    return found


def copy_plain(value: Plain, path: str = "", depth: int = 0) -> Plain:
    """Return a copy of a configuration's content, made of mappings, lists, texts, numbers, truth values and null.

    Parameters
    ----------
    value : Plain
        Content of a file, or values from Python code: tuples, ranges, paths, NumPy's numbers and
        pydantic's models too.
    path : str
        Its path, which the message names.
    depth : int
        Of the value within the content.

    Raises
    ------
    ConfigError
        If it holds anything else, an integer beyond 64 bits, a character that no setting may hold,
        or more than `DEPTH` parts within each other.
    """
    if depth > DEPTH:
        found = f"more than {DEPTH} parts within each other"
        raise ConfigError(path[:80], found, "write fewer")
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    elif isinstance(value, PurePath):
        value = str(value)
    elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        value = value.item()  # who has such a number has imported numpy
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ConfigError(
                path, "an integer of more than 64 bits", "between -2**63 and 2**63 - 1"
            )
        return value
    if isinstance(value, str):
        if bad := _FORBIDDEN.search(value):
            raise ConfigError(path, shorten(value), f"no setting may hold the character {bad[0]!r}")
        return value
    if isinstance(value, Mapping):
        content = {}
        for key, one in value.items():
            if not isinstance(key, str) or _FORBIDDEN.search(key):
                raise ConfigError(
                    path or "configuration",
                    f"the key {shorten(str(key))} ({type(key).__name__})",
                    "keys are text: put it in quotes" if not isinstance(key, str) else "rename it",
                )
            content[key] = copy_plain(one, f"{path}.{key}" if path else key, depth + 1)
        return content
    if isinstance(value, list | tuple | range):
        return [copy_plain(one, f"{path}.{n}", depth + 1) for n, one in enumerate(value)]
    why = "numbers, texts, true, false, null, lists and mappings only"
    raise ConfigError(path, f"a value of type {type(value).__name__}", why)


def may_change(key: str) -> bool:
    """Return whether a setting may change between the beginning and a resume."""
    return key not in _FROZEN_RESOURCES and (
        key.split(".")[0] in RESUMABLE_SETTINGS or key in RESUMABLE_SWEEP_SETTINGS
    )
