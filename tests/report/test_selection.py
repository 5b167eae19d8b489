from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from flray.config.selection import selects_on_test
from flray.reporting.text import markdown
from flray.results.build_table import build_table
from flray.results.load import load_folder
from flray.results.sweep import SweepResult
from flray.runs import directory
from flray.runs.progress import NullProgress
from flray.tuning import sweep as sweeps

LINE = "this sweep selects on test data (sweep.metric: auto)"


@pytest.mark.parametrize(
    ("space", "sweep", "selects"),
    [
        ({}, {}, False),
        ({"local.lr": {"loguniform": [0.01, 0.1]}}, {}, True),
        ({"experiment.local.lr": {"grid": [0.01, 0.1]}}, {}, True),
        ({"local.lr": {"grid": [0.01]}}, {}, False),
        ({"algorithm": {"grid": ["fedavg", {"name": "fedprox", "mu": 0.1}]}}, {}, False),
        (
            {"algorithm": {"grid": [{"name": "fedprox", "mu": 1}, {"name": "fedprox", "mu": 0.1}]}},
            {},
            True,
        ),
        ({"partition.alpha": {"grid": [0.1, 1.0]}}, {}, False),
        ({}, {"scheduler": {"name": "asha"}}, True),
        ({"local.lr": {"grid": [0.01, 0.1]}}, {"metric": "personal/validation/accuracy"}, False),
        ({"local.lr": {"grid": [0.01, 0.1]}}, {"metric": "personal/local/accuracy"}, True),
    ],
)
def test_what_selects_on_test_data(
    space: dict[str, Any], sweep: dict[str, Any], selects: bool
) -> None:
    assert bool(selects_on_test({"space": space, "sweep": {"metric": "auto", **sweep}})) == selects


@pytest.fixture
def tuned(sweep: Path) -> Path:
    """The sweep as one that draws learning rates."""
    path = sweep / directory.CONFIG
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["space"] = {"local.lr": {"grid": [0.01, 0.1]}}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return sweep


def test_the_table_says_that_it_selects_on_test_data(tuned: Path) -> None:
    out = io.StringIO()
    Console(file=out, width=400).print(SweepResult(tuned).table())
    assert LINE in out.getvalue()


def test_the_report_says_that_it_selects_on_test_data(tuned: Path) -> None:
    assert LINE in markdown(build_table(load_folder(tuned)), ())


def test_nothing_is_said_where_arms_are_compared(sweep: Path) -> None:
    assert "test data" not in markdown(build_table(load_folder(sweep)), ())


def test_the_sweep_says_so_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []

    class Stop(Exception):
        pass

    class Heard(NullProgress):
        def say(self, line: str) -> None:
            said.append(line)

    def stop(*_: object) -> Callable[[], None]:
        raise Stop

    monkeypatch.setattr(sweeps._Sweep, "_run", stop)
    content = {
        "experiment": {
            "data": "digits-sklearn",
            "model": "linear",
            "algorithm": "fedavg",
            "partition": {"name": "iid", "clients": 2},
            "output": str(tmp_path / "runs"),
            "tracking": {"uri": None},
        },
        "space": {"local.lr": {"grid": [0.01, 0.1]}},
    }
    with pytest.raises(Stop):
        sweeps.tune(content, progress=Heard())
    assert [line for line in said if line.startswith(LINE)] == said and len(said) == 1
