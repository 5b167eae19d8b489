from pathlib import Path

import pytest

from tests.helpers import Settings

ONE = {"concurrency": 1}
"""Trials one after the other share a process, whose start takes longer than such a trial."""


@pytest.fixture
def content(tmp_path: Path) -> Settings:
    """A small sweep on digits that need no file, tracked nowhere."""
    data = {"name": "digits-sklearn", "samples": 160}
    experiment = {"name": "small", "rounds": 3, "data": data, "partition": "domains"}
    experiment |= {"model": "lenet", "algorithm": "fedavg", "output": str(tmp_path / "runs")}
    experiment |= {"local": {"lr": 0.05, "batch_size": 16}, "tracking": {"uri": None}}
    experiment["resources"] = {"executor": "inline"}
    space = {"local.lr": {"grid": [0.02, 0.1]}}
    return {"experiment": experiment, "space": space, "sweep": {"seeds": [0, 1], **ONE}}
