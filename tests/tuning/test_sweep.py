"""Whole sweeps on a real Ray with a real MLflow database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from rich.console import Console

from flray import api
from flray import api as sweeps
from flray.cli.main import invoke
from flray.config.loader import load
from flray.errors import FlrayError
from flray.records import directory
from flray.records.events import read_events
from flray.results.sweep import SweepResult
from flray.runs import runner
from flray.runs.progress import NullProgress
from flray.tuning.trial_store import trial_folders


@pytest.fixture(scope="module")
def ray_runs_already() -> Iterator[None]:
    """One Ray for the tests that are about something else than how it starts."""
    import ray

    ray.init(
        address="local", num_cpus=2, num_gpus=0, include_dashboard=False, logging_level="ERROR"
    )
    yield
    ray.shutdown()


class Lines(NullProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_killed_twice_it_ends_with_one_parent_and_four_children(
    content: dict[str, Any], tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    content["experiment"] |= {
        "rounds": 4,
        "tracking": {"uri": uri, "experiment": "sweeps"},
        "checkpoint": {"min_seconds": 0.0},
    }
    content["space"] = {
        "local.lr": {"grid": [0.02, 0.1]},
        "algorithm": {"grid": ["fedavg"]},
        "local.batch_size": {"grid": [16]},
    }
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    folder = tmp_path / "runs" / "small" / "001"

    _killed("tune", str(file), when=lambda: (folder / "sweep.json").exists())
    _killed("resume", str(folder), when=lambda: _rounds(folder) >= 3)
    before = {f.number: f.identity["uid"] for f in trial_folders(folder)}
    rounds_before = _rounds(folder)
    result = api.resume_sweep(folder)

    assert len(result.results) == 4 and set(result.results["status"]) == {"finished"}
    assert {f.number: f.identity["uid"] for f in trial_folders(folder)} == before
    assert rounds_before < 4 * 4 == _rounds(folder)
    assert result.results["sha256"].nunique() == 4
    for trial in trial_folders(folder)[:1]:
        alone = _alone(trial.path, tmp_path)
        assert trial.identity["sha256"] == alone.sha256
        figures = [
            sorted(path.name for path in (run / "figures").iterdir())
            for run in (trial.path, alone.folder)
        ]
        assert figures[0] == figures[1] == ["clients.png", "curves.png", "partition.png"]
    _check_tracked(uri, folder)

    again = api.resume_sweep(
        folder
    )  # of a finished sweep: the same result, and nothing is run or tracked again
    assert again.results["sha256"].tolist() == result.results["sha256"].tolist()
    _check_tracked(uri, folder)


def _killed(*arguments: str, when: Callable[[], bool]) -> None:
    """Run a command and kill its driver with SIGKILL once `when` holds."""
    script = (
        "import sys; from pathlib import Path; from flray import api\n"
        "getattr(api, sys.argv[1])(Path(sys.argv[2]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 120
    while not when():
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=10)


def _rounds(folder: Path) -> int:
    return sum(
        event["type"] == "round"
        for trial in trial_folders(folder)
        for event in read_events(trial.path)
    )


def _alone(trial: Path, tmp_path: Path) -> runner.Result:
    """Run the trial's own configuration, inline and uninterrupted, as `flray run` does."""
    overrides = ["resources.executor=inline", f"output={tmp_path / 'alone'}", "tracking.uri=null"]
    return runner.run(trial / "config.yaml", overrides)


def _check_tracked(uri: str, folder: Path) -> None:
    from flray.tracking.client import connect

    client = connect(uri)
    experiment = client.get_experiment_by_name("sweeps")
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    settings = [run for run in runs if run.data.tags.get("flray.kind") == "setting"]
    children = [run for run in runs if "trial" in run.data.tags]
    assert (len(parents), len(settings), len(children)) == (1, 2, 4)
    assert {run.data.tags["mlflow.parentRunId"] for run in settings} == {parents[0].info.run_id}
    for setting in settings:
        seeds = [
            run
            for run in children
            if run.data.tags["mlflow.parentRunId"] == setting.info.run_id
            and run.data.tags["setting"] == setting.data.tags["setting"]
        ]
        assert len(seeds) == 2 and setting.data.tags["seeds"] == "2"
        for name in ("score", "global/common/accuracy", "train/loss"):
            curves = np.array(
                [
                    [m.value for m in client.get_metric_history(run.info.run_id, name)]
                    for run in seeds
                ]
            )
            for found, expected in (
                (name, curves.mean(0)),
                (f"{name}/seed_std", curves.std(0, ddof=1)),
            ):
                points = client.get_metric_history(setting.info.run_id, found)
                assert [m.step for m in points] == [1, 2, 3, 4]
                np.testing.assert_allclose([m.value for m in points], expected, rtol=1e-12)
    for run in runs:
        assert run.data.tags["mlflow.user"] and run.data.tags["mlflow.source.name"]
        (data,) = run.inputs.dataset_inputs
        assert data.dataset.name == "digits-sklearn"
        assert data.dataset.digest == children[0].data.tags["data.fingerprint"][:36]
    note = parents[0].data.tags["mlflow.note.content"]
    assert "| lr" in note and note.count("\n|") >= 3
    assert parents[0].data.metrics == {}, "a dot is no chart"
    assert {run.info.status for run in runs} == {"FINISHED"}
    digests = {f.number: f.identity["sha256"] for f in trial_folders(folder)}
    assert {run.data.tags["trial"]: run.data.tags["model.sha256"] for run in children} == digests
    for run in children:
        held = json.loads(
            (folder / "trials" / run.data.tags["trial"] / "partition.json").read_text()
        )
        assert {
            part: run.data.tags[f"{part}.fingerprint"] for part in ("data", "partition")
        } == held["fingerprints"]
        for name in ("score", "global/common/accuracy", "train/loss"):
            assert [m.step for m in client.get_metric_history(run.info.run_id, name)] == [
                1,
                2,
                3,
                4,
            ]
    assert {f.path for f in client.list_artifacts(parents[0].info.run_id)} >= {
        "config.yaml",
        "results.csv",
        "summary.csv",
        "table.txt",
        "figures",
    }
    assert parents[0].data.tags["trials.finished"] == "4"
    swept = SweepResult(folder)
    curves = pd.read_csv(folder / "curves.csv", dtype={"trial": str})
    first = ["trial", *swept.settings, "seed", "round"]
    assert len(curves) == 16 and list(curves.columns[: len(first)]) == first
    one = curves[curves.trial == "0003"].set_index("round")["global/common/accuracy"]
    assert dict(one) == dict(
        swept.data.trials[2].history.set_index("round")["global/common/accuracy"]
    )
    assert "<table" in swept._repr_html_() and "<li>" in swept._repr_html_()


OWN_METHODS = '''
import os, signal
from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm


@register_algorithm("own-good")
class Good(Algorithm):
    """FedAvg under another name."""


@register_algorithm("own-bad")
class Bad(Algorithm):
    """Raises at one client."""

    def loss(self, client, batch):
        if client.id == 2 and client.round == 1:
            raise ValueError("no such luck")
        return super().loss(client, batch)


@register_algorithm("own-crash")
class Crash(Algorithm):
    """Takes its server's process down, once."""

    def aggregate(self, server, stage, replies):
        if server.round == 1 and not os.path.exists(MARK):
            open(MARK, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        super().aggregate(server, stage, replies)
'''


@pytest.mark.slow
@pytest.mark.usefixtures("ray_runs_already")
def test_methods_of_the_users_own_one_that_fails_and_one_that_crashes(
    content: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(f"MARK = {str(tmp_path / 'mark')!r}\n{OWN_METHODS}")
    content["experiment"] |= {
        "plugins": ["own.py"],
        "resources": {"executor": "ray"},
        "checkpoint": {"min_seconds": 0.0},
    }
    content["space"] = {"algorithm": {"grid": ["own-good", "own-bad", "own-crash", "fedavg"]}}
    content["sweep"] = {"seeds": [0]}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    progress = Lines()
    result = api.tune(file, progress=progress)
    rows = {row["algorithm"]: row for row in result.results.to_dict("records")}
    assert {name: row["status"] for name, row in rows.items()} == {
        "own-good": "finished",
        "own-bad": "failed",
        "own-crash": "finished",
        "fedavg": "finished",
    }
    assert rows["own-good"]["sha256"] == rows["own-crash"]["sha256"] == rows["fedavg"]["sha256"]
    failure = rows["own-bad"]["failure"].splitlines()[0]
    assert (
        failure.startswith("client 2 (")
        and "round 2" in failure
        and "ValueError: no such luck at" in failure
    )
    assert "own.py:19" in failure
    assert rows["own-bad"]["rounds"] == 1
    assert [line[:18] for line in progress.lines if "tried again" in line] == ["trial 0003 crashed"]
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(result.table())
    assert "no such luck" in console.export_text()


@pytest.mark.slow
def test_two_sweeps_of_one_name_at_once(content: dict[str, Any], tmp_path: Path) -> None:
    content["experiment"]["tracking"] = {
        "uri": f"sqlite:///{tmp_path}/mlflow.db",
        "experiment": "sweeps",
    }
    content["sweep"], content["space"] = {"seeds": [0]}, {}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    script = "import sys; from flray import api; api.tune(sys.argv[1])"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=200)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    digests = {
        SweepResult(tmp_path / "runs" / "small" / n).results["sha256"][0] for n in ("001", "002")
    }
    assert len(digests) == 1
    from flray.tracking.client import connect

    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("sweeps").experiment_id])
    assert len(runs) == 6 and {run.info.status for run in runs} == {"FINISHED"}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_runs_already")
def test_early_stopping_compares_settings_and_ends_the_worse(content: dict[str, Any]) -> None:
    content["experiment"]["rounds"] = 6
    content["space"] = {"local.lr": {"grid": [0.1, 1e-6, 1e-7, 1e-8]}}
    content["sweep"] = {
        "scheduler": {"name": "asha", "reduction_factor": 2},
        "seeds": [0],
        "concurrency": 1,
    }
    result = api.tune(content)
    rows = result.results.set_index("local.lr")
    assert rows.loc[0.1, "status"] == "finished" and rows.loc[0.1, "rounds"] == 6
    assert "stopped" in set(rows["status"]) and rows["rounds"].sum() < 24
    assert (rows[rows["status"] == "stopped"]["rounds"] < 6).all()
    assert result.best["local.lr"] == 0.1


@pytest.mark.usefixtures("ray_runs_already")
def test_rounds_without_evaluation_and_a_setting_that_diverges(content: dict[str, Any]) -> None:
    content["experiment"]["evaluation"] = {"every": 2}
    content["space"] = {"local.lr": {"grid": [0.05, 1e30]}}
    result = api.tune(content)
    assert list(result.results["status"]) == ["finished"] * 4
    curves = {
        name: {event["round"]: event["metrics"] for event in events if event["type"] == "round"}
        for path in (result.folder / "settings").iterdir()
        for events in [read_events(path)]
        for name in [events[0]["name"]]
    }
    assert sorted(curves) == [
        "fedavg · digits-sklearn · lr=0.05",
        "fedavg · digits-sklearn · lr=1e+30",
    ]
    good, bad = (curves[name] for name in sorted(curves))
    assert sorted(good) == sorted(bad) == [1, 2, 3]
    assert [set(good[round_]) >= {"score", "score/seed_std"} for round_ in (1, 2, 3)] == [
        False,
        True,
        True,
    ]
    assert all("train/loss/seed_std" in good[round_] for round_ in good)
    assert "train/loss" not in bad[3] and "score" in bad[3]


class _FirstShown(NullProgress):
    def values(self, result: SweepResult) -> None:
        self.summary = pd.read_csv(result.folder / "summary.csv")
        self.drawn = sorted(path.name for path in result.folder.rglob("*.png"))


@pytest.mark.usefixtures("ray_runs_already")
def test_values_are_shown_before_figures_are_drawn(content: dict[str, Any]) -> None:
    content["experiment"]["rounds"], content["space"] = 1, {}
    progress = _FirstShown()
    result = sweeps.tune(content, progress=progress)
    pd.testing.assert_frame_equal(
        progress.summary, pd.read_csv(result.folder / "summary.csv"), check_exact=True
    )
    assert progress.drawn == []
    assert (result.folder / "report" / "report.html").is_file()


def test_an_unknown_metric_is_refused_before_the_first_trial(
    content: dict[str, Any], tmp_path: Path
) -> None:
    content["sweep"] = {"metric": "global/common/acuracy", "seeds": [0, 1]}
    with pytest.raises(FlrayError, match="did you mean 'global/common/accuracy'") as caught:
        api.tune(content)
    assert len(str(caught.value).splitlines()) == 1 and not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_runs_already")
def test_a_sweep_of_failures_is_a_failed_one_until_it_is_mended(
    content: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    own = tmp_path / "own.py"
    own.write_text(
        f"MARK = {str(tmp_path / 'mark')!r}\n{OWN_METHODS}".replace("own-bad", "own-worse")
    )
    content["experiment"] |= {
        "plugins": [str(own)],
        "algorithm": "own-worse",
        "tracking": {"uri": uri, "experiment": "sweeps"},
    }
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    assert invoke(["tune", str(file)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "trials 0001 (lr=0.02 seed=0), 0002 (lr=0.02 seed=1), 0003 (lr=0.1 seed=0) and 1 more "
        "failed: " in shown
    )
    folder = tmp_path / "runs" / "small" / "001"
    assert _parent(uri).info.status == "FAILED" and _parent(uri).data.tags["trials.failed"] == "4"
    own.write_text(own.read_text().replace("client.id == 2", "client.id == 99"))
    assert invoke(["resume", str(folder)]) == 2
    assert invoke(["resume", str(folder), "--other-code"]) == 0
    parent = _parent(uri)
    assert parent.info.status == "FINISHED" and set(directory.read(folder)) >= {
        "status",
        "settings",
    }
    assert parent.data.tags["trials.finished"] == "4" and parent.data.tags["trials.failed"] == "0"
    best = SweepResult(folder).best["score"]
    assert float(parent.data.tags["best.score"]) == pytest.approx(best, rel=1e-5)


def _parent(uri: str) -> Any:
    from flray.tracking.client import connect

    client = connect(uri)
    runs = client.search_runs([client.get_experiment_by_name("sweeps").experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    return parent


def test_a_mistake_creates_nothing(content: dict[str, Any], tmp_path: Path) -> None:
    content["space"] = {"participation.clients": {"grid": [2, 50]}}
    with pytest.raises(FlrayError, match="the partition has 4 clients"):
        api.tune(content)
    assert not (tmp_path / "runs").exists()
    assert load(content).space  # the file itself is well-formed


@pytest.mark.slow
def test_trials_share_a_gpu_of_a_ray_that_runs_already(content: dict[str, Any]) -> None:
    import ray

    class Free(NullProgress):
        def __init__(self) -> None:
            self.gpus: list[float] = []

        def round(self, *_: object) -> None:
            self.gpus.append(ray.available_resources().get("GPU", 0.0))

    content["experiment"]["resources"] = {"executor": "ray", "gpus_per_actor": 0.5}
    progress = Free()
    ray.shutdown()  # the one without a GPU
    ray.init(
        address="local", num_cpus=2, num_gpus=1, include_dashboard=False, logging_level="ERROR"
    )
    try:
        result = api.tune(content, progress=progress)
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    assert set(result.results["status"]) == {"finished"}
    assert min(progress.gpus) == 0.0  # two trials at once, half a GPU each
