"""What all tests share: one Ray on this machine, results in temporary folders, nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault(
    "RAY_worker_niceness", "0"
)  # as flray's own: else actors starve beside the other test process


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def ray_here() -> Iterator[dict[str, float]]:
    """Ray on this machine with four CPUs to give away, whatever the machine has."""
    import ray

    ray.init(
        address="local", include_dashboard=False, num_cpus=4, num_gpus=0, logging_level="ERROR"
    )
    yield ray.cluster_resources()
    ray.shutdown()


@pytest.fixture
def tmp_cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh current folder, so that runs and databases land there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def digits() -> dict[str, Any]:
    """A small real federation: scikit-learn's digits in four domains, one client each."""
    return {
        "name": "digits",
        "rounds": 3,
        "data": {"name": "digits-sklearn", "samples": 96},
        "model": {"name": "lenet", "norm": "batch"},
        "algorithm": "fedavg",
        "local": {"epochs": 1, "batch_size": 32, "lr": 0.05},
        "checkpoint": {"min_seconds": 0},
        "tracking": {"uri": None},
    }
