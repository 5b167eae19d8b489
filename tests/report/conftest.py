"""A sweep's folder as two methods on two partitions with two seeds leave it, made by hand: every number is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray.config.loader import load
from flray.records import directory
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs
from flray.tuning.trial_store import TrialFolder

FINAL = {
    ("none", "CIFAR-10"): (0.70, 0.72),
    ("full", "CIFAR-10"): (0.80, 0.84),
    ("none", "CIFAR-100"): (0.50, 0.52),
    ("full", "CIFAR-100"): (0.50, 0.50),
}


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """Settings that name a paper's table."""
    return {
        "paper": {
            "name": "fedskc",
            "table": "table5",
            "title": "modules",
            "rows": "modules",
            "clients": None,
            "measures": {"top1": "auto"},
            "departures": ["other data"],
            "printed": {
                "modules": {
                    "none": {"method": "fedavg", "setting": "dirichlet:0.2,ablation:none"},
                    "full": {"method": "fedskc", "setting": "dirichlet:0.2,ablation:lcl+gda+gpr"},
                },
                "data": {"CIFAR-10": {"dataset": "cifar10"}, "CIFAR-100": {"dataset": "cifar100"}},
            },
        },
        "experiment": {
            "name": "made",
            "rounds": 4,
            "data": "digits-sklearn",
            "model": "lenet",
            "algorithm": "fedskc",
            "partition": {"name": "iid", "clients": 2},
            "output": str(tmp_path / "runs"),
            "tracking": {"uri": None},
        },
        "arms": {
            "modules": {"none": {"algorithm": {"name": "fedskc", "lcl": False}}, "full": {}},
            "data": {"CIFAR-10": {}, "CIFAR-100": {"partition.clients": 3}},
        },
        "sweep": {"seeds": [0, 1]},
    }


@pytest.fixture
def sweep(content: dict[str, Any], tmp_path: Path) -> Path:
    """The sweep's folder; accuracy rises by 0.1 a round to the values of `FINAL`."""
    config = resolve_sweep(load(content))
    folder = tmp_path / "made" / "001"
    folder.mkdir(parents=True)
    directory.save_config(folder, config)
    directory.write(folder, "sweep", {**directory.new_identity(), "status": "finished"})
    for point in trial_specs(config, enumerate_settings(config)):
        trial = TrialFolder(folder, point.number)
        trial.create(point, config)
        final = FINAL[point.setting["arms.modules"], point.setting["arms.data"]][point.seed]
        session = trial.begin(point, directory.read(folder), config)
        for round_ in range(1, 5):
            value = final - 0.1 * (4 - round_)
            session.journal.record_round(
                round_,
                {
                    "score": value,
                    "global/common/accuracy": value,
                    "global/local/accuracy": value,
                    "global/local/accuracy/client/a": value + 0.05,
                    "global/local/accuracy/client/b": value - 0.05,
                    "fedskc/e_k/client/a": 0.6,
                    "fedskc/e_k/client/b": 0.4,
                    "bytes/up": 1e6,
                    "bytes/down": 2e6,
                    "time/round": 1.5,
                    "memory/client": 2.0**20 * 100,
                },
            )
        trial.end(session, "finished", metric="global/common/accuracy", sha256="ab" * 32)
        session.close()
        _beside(trial.path)
    return folder


def _beside(folder: Path) -> None:
    """Write what is kept beside the metrics."""
    random = np.random.default_rng(0)
    (folder / "partition.json").write_text(
        json.dumps(
            {
                "dataset": "digits-sklearn",
                "classes": ["0", "1"],
                "origins": {"d": "real"},
                "clients": [
                    {"name": "a", "domain": "d", "train": [5, 1], "test": 2},
                    {"name": "b", "domain": "d", "train": [1, 9], "test": 2},
                ],
            }
        )
    )
    correlation = np.eye(2, dtype=np.float16)[None].repeat(2, 0)
    np.savez(folder / "portrait-before.npz", correlation=correlation * 0)
    np.savez(
        folder / "portrait.npz",
        correlation=correlation,
        names=np.array(["a", "b"]),
        client=np.repeat([0, 1], 12),
        features=random.normal(size=(24, 4)).astype(np.float16),
        labels=np.tile([0, 1], 12),
        predicted=np.tile([0, 1], 12),
        layers=np.array(["features.conv", "classifier"]),
        personal=np.array([False, False]),
        distance=np.array([[0.1, 0.2], [0.3, 0.4]], dtype=np.float32),
    )
