from pathlib import Path
from typing import Any

import pytest

ONE = {"concurrency": 1}
"""Trials one after the other share a process, whose start takes longer than such a trial."""


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """A small sweep on digits that need no file, tracked nowhere."""
    return {
        "experiment": {
            "name": "small",
            "rounds": 3,
            "data": {"name": "digits-sklearn", "samples": 160},
            "partition": "domains",
            "model": "lenet",
            "algorithm": "fedavg",
            "local": {"lr": 0.05, "batch_size": 16},
            "resources": {"executor": "inline"},
            "output": str(tmp_path / "runs"),
            "tracking": {"uri": None},
        },
        "space": {"local.lr": {"grid": [0.02, 0.1]}},
        "sweep": {"seeds": [0, 1], **ONE},
    }
