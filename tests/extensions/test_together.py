"""All extensions in one sweep whose driver is killed: the bits of one that was not, and every round told once."""

from pathlib import Path
from typing import Any

import pytest

from flray import api
from flray.runs import runner
from flray.tuning.trial_store import trial_folders
from tests.extensions.test_callbacks import PLUGIN, killed, tensorboard_points, wandb_records
from tests.helpers import INLINE, inline
from tests.tuning.conftest import ONE

MEASURE = "global/common/balanced-accuracy"
CALLBACKS = ["lines", "tensorboard", {"name": "wandb", "mode": "offline"}]


def experiment(digits: dict[str, Any], **changes: Any) -> dict[str, Any]:
    sampler = {"name": "power-of-choice", "candidates": 3}
    settings = {
        "rounds": 6,
        "participation": {"clients": 2, "sampler": sampler},
        "evaluation": {"metrics": ["balanced-accuracy"]},
        "stop": {"metric": "train/loss", "patience": 2, "min_delta": 0.5},
    }
    return {**digits, **settings, **changes}


def wandb_steps(folder: Path) -> list[int]:
    return [
        record.history.step.num
        for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        for record in wandb_records(file.read_bytes())
        if record.WhichOneof("record_type") == "history"
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_sweep_with_all_of_them_that_is_killed_and_resumed(
    tmp_cwd: Path, digits: dict[str, Any], ray_here: dict[str, float]
) -> None:
    pytest.importorskip("wandb")
    # killed once in the whole sweep, not once in each trial
    own = PLUGIN.replace('run.folder / "killed"', 'run.folder.parents[1] / "killed"')
    rates = {"local.lr": {"grid": [0.02, 0.1]}}
    sweep = {"seeds": [0], "metric": MEASURE, **ONE}
    killed(experiment(digits, callbacks=CALLBACKS, **INLINE), own, space=rates, sweep=sweep)
    folder = tmp_cwd / "runs" / "digits" / "001"
    before = sum(one.rounds_recorded() for one in trial_folders(folder))
    resumed = api.resume_sweep(folder)
    whole = [
        runner.run(inline(experiment(digits)), [f"local.lr={lr}"])
        for lr in rates["local.lr"]["grid"]
    ]
    assert set(resumed.results["status"]) == {"finished"}
    assert resumed.results["sha256"].tolist() == [one.sha256 for one in whole]
    assert before < sum(resumed.results["rounds"]) < 2 * 6, "early stopping ended a trial"
    for trial, alone in zip(trial_folders(folder), whole, strict=True):
        history, other = resumed.history(trial.number), alone.history
        rounds = history["round"].tolist()
        assert rounds == list(range(1, len(other) + 1))
        for name in (MEASURE, "train/loss", "cohort/asked"):
            assert history[name].tolist() == other[name].tolist(), name
        told = (trial.path / "lines.txt").read_text().splitlines()
        assert [int(line.split()[0]) for line in told[:-1]] == rounds and told[-1] == "finished"
        assert [step for step, _ in tensorboard_points(trial.path, MEASURE)] == rounds
        assert wandb_steps(trial.path) == rounds
