"""The record of a run's partition; settings that a resume may change."""

from pathlib import Path
from typing import NotRequired

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from flray.errors import FlrayError
from flray.files import read_json

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


def may_change(key: str) -> bool:
    """Return whether a setting may change between the beginning and a resume."""
    return key not in _FROZEN_RESOURCES and (
        key.split(".")[0] in RESUMABLE_SETTINGS or key in RESUMABLE_SWEEP_SETTINGS
    )
