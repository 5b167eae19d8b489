"""All extensions in one sweep whose driver is killed: the bits of one that was not, and every round told once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray import api
from flray.tuning.trial_store import trial_folders
from tests.extensions.test_callbacks import PLUGIN, tensorboard_points, wandb_records

MEASURE = "global/common/balanced-accuracy"
CALLBACKS = ["lines", "tensorboard", {"name": "wandb", "mode": "offline"}]


def content(digits: dict[str, Any], callbacks: list[Any]) -> dict[str, Any]:
    return {
        "experiment": {
            **digits,
            "rounds": 6,
            "plugins": ["own.py"],
            "callbacks": callbacks,
            "participation": {
                "clients": 2,
                "sampler": {"name": "power-of-choice", "candidates": 3},
            },
            "evaluation": {"metrics": ["balanced-accuracy"]},
            "stop": {"metric": "train/loss", "patience": 2, "min_delta": 0.5},
        },
        "space": {"local.lr": {"grid": [0.02, 0.1]}},
        "sweep": {"seeds": [0], "metric": MEASURE},
    }


def wandb_steps(folder: Path) -> list[int]:
    return [
        record.history.step.num
        for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        for record in wandb_records(file.read_bytes())
        if record.WhichOneof("record_type") == "history"
    ]


@pytest.mark.slow
def test_a_sweep_with_all_of_them_that_is_killed_and_resumed(
    tmp_cwd: Path, digits: dict[str, Any]
) -> None:
    pytest.importorskip("wandb")
    # killed once in the whole sweep, not once in each trial
    Path("own.py").write_text(
        PLUGIN.replace('run.folder / "killed"', 'run.folder.parents[1] / "killed"')
    )
    Path("killed.yaml").write_text(
        yaml.safe_dump(content(digits, [*CALLBACKS, {"name": "kill", "round": 2}]))
    )
    command = [sys.executable, "-m", "flray", "tune", "killed.yaml"]
    folder = tmp_cwd / "runs" / "digits" / "001"
    # with a service of its own: one of this process would outlive it
    own = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    killed = subprocess.run(command, capture_output=True, timeout=240, check=False, env=own)
    assert killed.returncode == -9, killed.stderr[-2000:]
    before = sum(one.rounds_recorded() for one in trial_folders(folder))
    resumed = api.resume_sweep(folder)
    # in a folder of its own, else what was finished would be taken over
    whole = api.tune(content({**digits, "output": "whole"}, CALLBACKS))
    assert set(resumed.results["status"]) == {"finished"}
    assert resumed.results["sha256"].tolist() == whole.results["sha256"].tolist()
    assert resumed.results["rounds"].tolist() == whole.results["rounds"].tolist()
    assert before < sum(resumed.results["rounds"]) < 2 * 6, "early stopping ended a trial"
    for trial in trial_folders(folder):
        history = resumed.history(trial.number)
        rounds = history["round"].tolist()
        assert rounds == list(range(1, len(rounds) + 1))
        other = whole.history(trial.number)
        for name in (MEASURE, "train/loss", "cohort/asked"):
            assert history[name].tolist() == other[name].tolist(), name
        told = (trial.path / "lines.txt").read_text().splitlines()
        assert [int(line.split()[0]) for line in told[:-1]] == rounds and told[-1] == "finished"
        assert [step for step, _ in tensorboard_points(trial.path, MEASURE)] == rounds
        assert wandb_steps(trial.path) == rounds
    for trial in trial_folders(tmp_cwd / whole.folder):
        rounds = whole.history(trial.number)["round"].tolist()
        assert (
            [step for step, _ in tensorboard_points(trial.path, MEASURE)]
            == wandb_steps(trial.path)
            == rounds
        )
