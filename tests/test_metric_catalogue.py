from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flray.cli import main
from flray.metrics.catalogue import MEASURES_IN_WORDS, VIEWS_IN_WORDS, is_test, is_validation
from flray.metrics.names import VIEWS
from flray.tasks.binary import Binary
from flray.tasks.classification import Classification
from flray.tasks.few_shot import FewShot
from flray.tasks.segmentation import Segmentation


def test_every_view_and_every_measure_has_a_line() -> None:
    assert tuple(VIEWS_IN_WORDS) == VIEWS
    tasks = (*Classification.base_measures, *Binary.base_measures, *FewShot.measures)
    assert {*tasks, *Segmentation(["disc"]).measures, "topK"} == set(MEASURES_IN_WORDS)


def test_validation_and_test_metrics_are_told_apart() -> None:
    assert is_test("auto") and is_test("personal/local/accuracy/worst")
    assert is_validation("global/validation/loss") and not is_test("global/validation/loss")
    assert not is_test("train/loss") and not is_validation("train/loss")


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.invoke(["list", "metrics"]) == 0
    text = capsys.readouterr().out
    for name in (*VIEWS, "global/validation/MEASURE", "auto", "/worst10", "hausdorff95"):
        assert name in text


def test_the_list_of_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {
        "experiment": {
            "data": "digits-sklearn",
            "model": "linear",
            "algorithm": "fedbn",
            "evaluation": {"validation": 0.2, "top_k": 3},
        }
    }
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(content))
    assert main.invoke(["list", "metrics", str(tmp_path / "e.yaml")]) == 0
    text = capsys.readouterr().out
    assert "personal/validation/accuracy" in text and "personal/local/top3" in text
    assert "global/common" not in text


def test_a_metric_that_is_not_measured_points_to_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {
        "experiment": {
            "data": "digits-sklearn",
            "model": "linear",
            "algorithm": "fedavg",
            "partition": {"name": "iid", "clients": 2},
            "output": str(tmp_path / "runs"),
            "tracking": {"uri": None},
        },
        "sweep": {"metric": "validation/accuracy"},
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(content))
    assert main.invoke(["tune", str(tmp_path / "s.yaml")]) == 2
    said = capsys.readouterr().err
    assert "sweep.metric" in said and "flray list metrics says what each is" in said
    assert not (tmp_path / "runs").exists()
