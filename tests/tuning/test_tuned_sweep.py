"""Whole sweeps on a real Ray that are killed: while tuning, by Ray's memory monitor, at each start of a trial."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from flray import api
from flray.records import directory
from flray.results.load import load_folder
from flray.results.sweep import build_table
from flray.tuning.trial_store import trial_folders
from tests.helpers import Settings, tracked
from tests.messages import refused
from tests.tuning.helpers import Seen, drive_and_kill, left, rounds_recorded


@pytest.fixture
def tuned(content: Settings) -> Settings:
    content["experiment"] |= {"rounds": 3, "checkpoint": {"min_seconds": 0}}
    local = {"algorithm": "local", "space": {"local.batch_size": {"grid": [8, 16]}}}
    tune = {"samples": 2, "seeds": [100], "scheduler": {"name": "asha"}}
    until = {"margin": 1.0, "at_least": 2, "at_most": 2}
    content["arms"] = {"method": {"fedavg": {}, "local": local}}
    content["space"] = {"local.lr": {"loguniform": [0.01, 0.3]}}
    content["sweep"] = {"seeds": [0], "concurrency": 2, "tune": tune, "until": until}
    return content


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_killed_in_both_its_phases(tuned: Settings, tmp_path: Path, store: str) -> None:
    tuned["experiment"]["tracking"] = {"uri": store, "experiment": "tuned"}
    file = tmp_path / "tuned.yaml"
    file.write_text(yaml.safe_dump(tuned))
    folder = tmp_path / "runs" / "small" / "001"
    drive_and_kill("tune", file, folder, 2, "tuning")
    drive_and_kill("resume_sweep", folder, folder, 1)
    assert rounds_recorded(folder) == 1
    resumed = api.resume_sweep(folder)
    changes = ["sweep.reuse=false", f"output={tmp_path / 'whole'}", "tracking.uri=null"]
    whole = api.tune(file, [*changes, "sweep.concurrency=1"])
    assert left(resumed.folder) == left(whole.folder)
    tables = [build_table(load_folder(one.folder)) for one in (resumed, whole)]
    assert tables[0].conclusions == tables[1].conclusions
    assert list(tables[0].rows) == list(tables[1].rows)
    assert set(tables[0].rows) == {"fedavg", "local"}
    assert (resumed.folder / "tuning.csv").read_text().count("\n") == 1 + 2 + 2
    assert "tuning of local: " in (resumed.folder / "table.txt").read_text()
    runs = tracked(store, "tuned")
    assert sum("mlflow.parentRunId" not in run.data.tags for run in runs) == 1
    phases = [run.data.tags["flray.phase"] for run in runs if "trial" in run.data.tags]
    assert (phases.count("tuning"), phases.count("comparison")) == (4, 4)
    assert {run.info.status for run in runs} == {"FINISHED"}
    planned = api.plan(file, ["tracking.uri=null"])
    ended = [f for f in trial_folders(folder) if f.status == "finished"]
    taken = {one.taken_over.rpartition("/")[2] for one in planned if one.taken_over}
    assert taken == {f.number for f in ended if f.identity["phase"] == "tuning"}
    assert len(planned) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_its_standing_counts_trials(tuned: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(Seen, "ended", lambda _, trials: counts.append(trials), raising=False)
    tuned["experiment"] |= {"rounds": 2, "model": "linear"}
    tuned["arms"]["method"] = {"fedavg": {}, "fedprox": {"algorithm": "fedprox"}}
    tuned["space"] = {"local.lr": {"grid": [0.02, 0.05, 0.1]}}
    tuned["sweep"] |= {"concurrency": 1, "until": {"margin": 1e-9, "at_least": 2, "at_most": 3}}
    tuned["sweep"]["tune"]["samples"] = 3
    seen = Seen()
    result = api.tune(tuned, progress=seen)
    # Six trials to round 1, of which two go on; four at the first two seeds, and two at the third.
    assert counts == [0, 4, 6, 10]
    assert not any(f" {count} running" in line for line in seen.stood for count in (2, 3, 4, 5, 6))
    assert seen.stood[-1].startswith("12 of 12 trials ended, 0 running; best so far: fed")
    assert seen.stood[-1].endswith(" (3 seeds)")
    assert directory.read(result.folder)["best"] == seen.stood[-1].partition("best so far: ")[2]


def test_an_unknown_reference_is_refused_at_once(tuned: Settings, tmp_path: Path) -> None:
    tuned["sweep"]["reference"] = "fedvag"
    refused(api.tune, tuned)
    del tuned["sweep"]["tune"], tuned["sweep"]["until"], tuned["arms"]["method"]["local"]["space"]
    tuned["space"] = {"local.lr": {"grid": [0.01, 0.1]}}
    tuned["sweep"]["reference"] = "fedavg"  # each is now a method and a rate
    refused(api.tune, tuned)
    assert not (tmp_path / "runs").exists()


FREE, TAKEN = 5 * 2**30, 8 * 2**30  # other tests run beside this one

GREEDY = """
import time
from pathlib import Path

import torch

from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm

@register_algorithm("own-greedy")
class Greedy(Algorithm):
    def aggregate(self, server, stage, replies):
        if server.round == 1 and not Path(MARK).exists():
            Path(MARK).touch()
            taken = torch.ones(TAKEN, dtype=torch.uint8)
            time.sleep(3600)  # its process is ended before it is over
            del taken
        super().aggregate(server, stage, replies)
"""

UNABLE = """
import os
import signal

from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm

@register_algorithm("own-unable")
class Unable(Algorithm):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        if os.getpid() != DRIVER:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def nearly_full_node() -> Iterator[None]:
    """A Ray whose node counts as full when a little more than now is in use."""
    import ray

    memory = psutil.virtual_memory()
    if memory.available < FREE + TAKEN + 2 * 2**30:
        pytest.skip("the machine has too little memory left")
    ray.shutdown()
    most = (memory.total - memory.available + FREE) / memory.total
    settings = {"memory_usage_threshold": most, "memory_monitor_refresh_ms": 100}
    size: dict[str, Any] = {"num_cpus": 2, "num_gpus": 0, "include_dashboard": False}
    ray.init(address="local", **size, logging_level="ERROR", _system_config=settings)
    yield
    ray.shutdown()


@pytest.fixture
def own(content: Settings, tmp_path: Path) -> Settings:
    """A sweep whose methods are in ``own.py``."""
    file = str(tmp_path / "own.py")
    content["experiment"] |= {"plugins": [file], "checkpoint": {"min_seconds": 0.0}}
    content["sweep"] = {"seeds": [0], "max_failures": 1}
    return content


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_a_trial_that_never_begins_fails_alone(own: Settings, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"DRIVER = {os.getpid()}\n{UNABLE}")
    own["space"] = {"algorithm": {"grid": ["own-unable", "fedavg"]}}
    seen = Seen()
    unable, fedavg = api.tune(own, progress=seen).results.to_dict("records")
    assert (unable["status"], fedavg["status"]) == ("failed", "finished")
    assert unable["failure"].startswith("its process has died: out of memory")
    assert [line[:18] for line in seen.find("tried again")] == ["trial 0001 crashed"]


@pytest.mark.slow
@pytest.mark.usefixtures("nearly_full_node", "no_pictures")
def test_a_trial_without_memory_is_tried_again(own: Settings, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"MARK, TAKEN = {str(tmp_path / 'mark')!r}, {TAKEN}\n{GREEDY}")
    own["space"] = {"algorithm": {"grid": ["own-greedy", "fedavg"]}}
    own["sweep"]["concurrency"] = 1
    seen = Seen()
    greedy, fedavg = api.tune(own, progress=seen).results.to_dict("records")
    assert (greedy["status"], fedavg["status"]) == ("finished", "finished")
    assert greedy["sha256"] == fedavg["sha256"]
    (line,) = seen.find("tried again")
    assert line.startswith("trial 0001 crashed")
    assert "memory monitor" in line and "sweep.concurrency" in line
