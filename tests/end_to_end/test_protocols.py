"""Validation is measured like the test, what is reported follows from what is tracked, and MLflow shows it at once."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flray
from flray import trees
from flray.cli.display import show_result
from flray.config.experiment import Config
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from flray.runs import runner
from flray.runs.progress import Progress
from flray.tracking.client import connect
from tests.helpers import INLINE, Settings, inline, tracked
from tests.messages import refused


def federation(digits: Settings, **settings: Any) -> Federation:
    spec = build_spec(Config.model_validate(inline(digits, **settings)).experiment)
    return Federation(spec, InlineExecutor(spec), warn=lambda line: None)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn"])
def test_own_validation(digits: Settings, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flray.federation.EVAL_CHUNK", 50)
    running_ = federation(digits, algorithm=algorithm, split=[0.6, 0.25, 0.15])
    metrics = running_.step().metrics
    view = "global" if algorithm == "fedavg" else "personal"
    data = running_.spec.data
    by_hand = []
    for i, client in enumerate(data.clients):
        runner_ = running_.executor._runner
        model = runner_._resources.resident("lenet").model.eval()
        state = running_.states[i]
        weights = dict(running_.server.models["lenet"])
        if state is not None:
            weights |= trees.unpack(running_.executor.fetch(state)).get("personal", {})
        model.load_state_dict(weights)
        with torch.no_grad():
            x, y = runner_._resources.samples(client.val).take(torch.arange(len(client.val)))
            by_hand.append(float((model(x).argmax(1) == y).double().mean()))
    found = [metrics[f"{view}/validation/accuracy/client/{c.name}"] for c in data.clients]
    assert found == pytest.approx(by_hand)
    assert metrics[f"{view}/validation/accuracy"] == pytest.approx(np.mean(by_hand))
    assert len(set(by_hand)) > 1


def test_validation_parts_change_no_test_metric(digits: Settings) -> None:
    """The extra evaluation tasks touch nothing of the model or of the test's evidence."""
    with_val = federation(digits, evaluation={"validation": 0.2})
    first = with_val.step().metrics
    digest = with_val.sha256()
    measured = {n: v for n, v in first.items() if n.startswith(("global/", "personal/"))}
    assert with_val.evaluate() == measured and with_val.sha256() == digest
    assert not any("validation" in name for name in federation(digits).step().metrics)


def test_the_protocol_decides_what_is_reported(
    digits: Settings, tmp_cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = {"validation": 0.3, "every": 2, "last": 2, "protocol": "best"}
    settings = {**digits, **INLINE, "rounds": 6, "evaluation": evaluation}
    settings["local"] = {**digits["local"], "lr": 0.5}
    result = flray.run({"experiment": settings})
    measured = result.history.dropna(subset=["global/common/accuracy"])
    assert measured["round"].tolist() == [2, 4, 6]
    best = measured.loc[measured["global/validation/accuracy"].idxmax()]
    assert result.reported.values["global/common/accuracy"] == best["global/common/accuracy"]
    assert result.metrics["global/common/accuracy"] == measured["global/common/accuracy"].iloc[-1]
    assert runner.resume(result.folder).reported == result.reported
    settings["evaluation"] |= {"protocol": "mean-last"}
    means = flray.run({"experiment": settings})
    mean = measured["global/common/accuracy"].iloc[-2:].mean()
    assert means.reported.values["global/common/accuracy"] == pytest.approx(mean)
    assert means.sha256 == result.sha256  # a protocol only reads
    show_result(result)
    shown = capsys.readouterr().out
    assert f"round {int(best['round'])} of 6, best on validation" in shown
    assert "global/validation" in shown


def test_a_protocol_that_cannot_be_is_refused(digits: Settings) -> None:
    refused(federation, digits, evaluation={"protocol": "best"})
    federation(digits, evaluation={"protocol": "best"}, split=[0.6, 0.2, 0.2])
    refused(load, {"experiment": {**digits, "evaluation": {"protocol": "mean"}}})


def seen(uri: str, experiment: str, metric: str) -> set[int]:
    """Return the rounds of a metric that MLflow holds now, over an experiment's runs."""
    client = connect(uri)
    runs = tracked(uri, experiment)
    points = (client.get_metric_history(run.info.run_id, metric) for run in runs)
    return {point.step for of_run in points for point in of_run}


class Watched(Progress):
    """Holds the run up after each round until MLflow shows the round."""

    def __init__(self, tracking: dict[str, str]) -> None:
        self.tracking = tracking
        self.rounds: list[int] = []

    def round(self, finished: Any, label: str, done: int = 0, *more: Any) -> None:
        number = done or finished.number
        deadline = time.monotonic() + 300
        while number not in seen(*self.tracking.values(), "train/loss"):
            assert time.monotonic() < deadline, f"round {number} is not in MLflow"
            time.sleep(0.1)
        self.rounds.append(number)


@pytest.mark.slow
def test_every_round_is_seen_live(tmp_cwd: Path, digits: Settings, store: str) -> None:
    """Of a sweep: tests/tuning/test_sweep.py."""
    tracking = {"uri": store, "experiment": "a run that goes on"}
    progress = Watched(tracking)
    runner.run(inline(digits, rounds=2, tracking=tracking), progress=progress)
    assert progress.rounds == [1, 2]
