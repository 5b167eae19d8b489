"""What is said of a sweep while it runs."""

import math
from pathlib import Path
from typing import Any

import pytest

from flray.cli.display import SweepProgress
from flray.config.loader import load
from flray.tuning.space import trial_specs
from flray.tuning.summary import Standing


def points_of(content: dict[str, Any]) -> dict[str, Any]:
    specs = trial_specs(load(content), [{"local.lr": 0.02}, {"local.lr": 0.1}])
    return {point.number: point for point in specs}


def test_a_sweep_s_line_counts_and_names_the_best_with_its_interval(
    content: dict[str, Any], tmp_path: Path
) -> None:
    content["sweep"]["seeds"] = [0, 1, 2]
    found = Standing(tmp_path, points_of(content))
    assert found.line() == "0 of 6 trials ended, 0 running"
    accuracy = "personal/local/accuracy"
    found.add("0001", "finished", 0.8, accuracy)
    found.add("0004", "running", math.nan, accuracy)
    assert found.line() == (
        "1 of 6 trials ended, 1 running; best so far: fedavg · digits-sklearn · lr=0.02, 0.8000 (1 seed)"
    )
    for number, score in (("0002", 0.82), ("0003", 0.84), ("0004", 0.79), ("0005", 0.8)):
        found.add(number, "finished", score, accuracy)
    found.add("0006", "failed", math.nan, accuracy)
    # the t quantile of 2 degrees of freedom, 4.3027, times 0.02 / sqrt(3)
    assert found.line() == (
        "6 of 6 trials ended, 0 running, 1 failed; best so far: fedavg · digits-sklearn · lr=0.02, "
        "0.8200 (95 % interval 0.7703 to 0.8697, 3 seeds)"
    )
    for number, (_, score, *_) in list(found._trials.items()):
        found.add(number, "finished", 0.5 if math.isnan(score) else score, "global/common/loss")
    assert "lr=0.1" in found.line()
    for number in found._points:
        found.add(number, "finished", math.inf, "global/common/loss")
    assert found.line().endswith(", inf (3 seeds)")


def test_trials_stopped_early_are_not_the_best_and_metrics_are_not_mixed(
    content: dict[str, Any], tmp_path: Path
) -> None:
    found = Standing(tmp_path, points_of(content))
    found.add("0001", "stopped", 0.99, "global/common/accuracy")
    found.add("0003", "finished", 0.5, "global/common/accuracy")
    assert "lr=0.1, 0.5000" in found.line() and "2 of 4 trials ended" in found.line()
    found.add("0002", "finished", 0.8, "personal/local/accuracy")
    assert found.best() == (
        "by global/common/accuracy: fedavg · digits-sklearn · lr=0.1, 0.5000 (1 seed); "
        "by personal/local/accuracy: fedavg · digits-sklearn · lr=0.02, 0.8000 (1 seed)"
    )


def test_in_a_log_a_line_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = SweepProgress()
    progress.standing("1 of 4 trials ended")
    monkeypatch.setattr("flray.runs.progress._STANDING_SECONDS", 0.0)
    progress.standing("2 of 4 trials ended")
    said = capsys.readouterr().out
    assert "2 of 4" in said and "1 of 4" not in said
