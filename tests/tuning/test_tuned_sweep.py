"""A whole tuned sweep on a real Ray: killed and resumed, it chooses, decides and learns what an unbroken one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray import api
from flray import api as sweeps
from flray.errors import FlrayError
from flray.records.events import read_events
from flray.results.build_table import build_table
from flray.results.load import load_folder
from flray.results.load_mlflow import load_mlflow
from flray.tracking.client import connect
from flray.tuning.trial_store import trial_folders

pytestmark = pytest.mark.slow


@pytest.fixture
def tuned(content: dict[str, Any]) -> dict[str, Any]:
    content["experiment"] |= {"rounds": 3, "checkpoint": {"min_seconds": 0}}
    return {
        "experiment": content["experiment"],
        "arms": {
            "method": {
                "fedavg": {},
                "local": {"algorithm": "local", "space": {"local.batch_size": {"grid": [8, 16]}}},
            }
        },
        "space": {"local.lr": {"loguniform": [0.01, 0.3]}},
        "sweep": {
            "seeds": [0],
            "concurrency": 2,
            "tune": {"samples": 3, "seeds": [100], "scheduler": {"name": "asha"}},
            "until": {"margin": 1.0, "at_least": 2, "at_most": 3},
        },
    }


def rounds(folder: Path, phase: str) -> int:
    return sum(
        event["type"] == "round"
        for trial in trial_folders(folder)
        if trial.identity["phase"] == phase
        for event in read_events(trial.path)
    )


def killed(command: list[str], folder: Path, phase: str, count: int) -> None:
    """Run a command, and kill its driver once the trials of a phase have recorded so many rounds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flray", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 240
    while not folder.is_dir() or rounds(folder, phase) < count:
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=10)


def left(folder: Path) -> list[tuple[Any, ...]]:
    return [
        (f.number, f.status, f.identity["setting"], f.identity["seed"], f.identity.get("sha256"))
        for f in trial_folders(folder)
    ]


@pytest.mark.timeout(900)
def test_killed_while_tuning_and_while_comparing(tuned: dict[str, Any], tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tuned["experiment"]["tracking"] = {"uri": uri, "experiment": "tuned"}
    file = tmp_path / "tuned.yaml"
    file.write_text(yaml.safe_dump(tuned))
    folder = tmp_path / "runs" / "small" / "001"
    killed(["tune", str(file)], folder, "tuning", 4)
    killed(["resume", str(folder)], folder, "comparison", 2)
    resumed = api.resume_sweep(folder)

    whole = api.tune(
        file, ["sweep.reuse=false", f"output={tmp_path / 'whole'}", "tracking.uri=null"]
    )
    assert left(resumed.folder) == left(whole.folder)
    tables = [build_table(load_folder(one.folder)) for one in (resumed, whole)]
    assert tables[0].conclusions == tables[1].conclusions
    assert list(tables[0].rows) == list(tables[1].rows) and set(tables[0].rows) == {
        "fedavg",
        "local",
    }
    assert (resumed.folder / "tuning.csv").read_text().count("\n") == 1 + 3 + 3
    assert "tuning of local: " in (resumed.folder / "table.txt").read_text()

    client = connect(uri)
    runs = client.search_runs([client.get_experiment_by_name("tuned").experiment_id])
    assert sum("mlflow.parentRunId" not in run.data.tags for run in runs) == 1
    children = [run for run in runs if "trial" in run.data.tags]
    phases = [run.data.tags["flray.phase"] for run in children]
    assert phases.count("tuning") == 6 and phases.count("comparison") in (4, 6)
    assert {run.info.status for run in runs} == {"FINISHED"}

    read = load_mlflow(uri, "tuned", tmp_path / "read")
    assert list(build_table(read).rows) == list(tables[0].rows) and len(read.tuning) == 6

    planned = sweeps.plan(file, ["tracking.uri=null"])
    ran_to_the_end = [
        f
        for f in trial_folders(resumed.folder)
        if f.status == "finished" and f.identity["phase"] == "tuning"
    ]
    taken = {one.taken_over.rpartition("/")[2] for one in planned if one.taken_over}
    assert taken == {f.number for f in ran_to_the_end} and len(planned) == 6


def test_an_unknown_reference_is_refused_before_the_start(
    tuned: dict[str, Any], tmp_path: Path
) -> None:
    tuned["sweep"]["reference"] = "fedvag"
    with pytest.raises(
        FlrayError, match=r"sweep\.reference: found 'fedvag'; one of .*mean 'fedavg'"
    ) as caught:
        api.tune(tuned)
    assert len(str(caught.value).splitlines()) == 1
    del tuned["sweep"]["tune"], tuned["sweep"]["until"]
    tuned["space"] = {"local.lr": {"grid": [0.01, 0.1]}}
    del tuned["arms"]["method"]["local"]["space"]
    tuned["sweep"]["reference"] = "fedavg"  # each is now a method and a rate
    with pytest.raises(
        FlrayError, match=r"one of what is compared: fedavg lr=0\.01, fedavg lr=0\.1"
    ):
        api.tune(tuned)
    assert not (tmp_path / "runs").exists()
