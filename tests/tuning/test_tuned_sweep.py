"""A whole tuned sweep on a real Ray: killed and resumed, it chooses, decides and learns what an unbroken one does."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from flray import api
from flray.results.load import load_folder, load_mlflow
from flray.results.sweep import build_table
from flray.tracking.client import connect
from flray.tuning.trial_store import trial_folders
from tests.messages import refused
from tests.tuning.helpers import drive_and_kill, rounds_recorded


@pytest.fixture
def tuned(content: dict[str, Any]) -> dict[str, Any]:
    content["experiment"] |= {"rounds": 3, "checkpoint": {"min_seconds": 0}}
    local = {"algorithm": "local", "space": {"local.batch_size": {"grid": [8, 16]}}}
    return {
        "experiment": content["experiment"],
        "arms": {"method": {"fedavg": {}, "local": local}},
        "space": {"local.lr": {"loguniform": [0.01, 0.3]}},
        "sweep": {
            "seeds": [0],
            "concurrency": 2,
            "tune": {"samples": 2, "seeds": [100], "scheduler": {"name": "asha"}},
            "until": {"margin": 1.0, "at_least": 2, "at_most": 2},
        },
    }


def left(folder: Path) -> list[tuple[Any, ...]]:
    return [
        (f.number, f.status, f.identity["setting"], f.identity["seed"], f.identity.get("sha256"))
        for f in trial_folders(folder)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_killed_in_both_its_phases(tuned: dict[str, Any], tmp_path: Path, store: str) -> None:
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

    client = connect(store)
    runs = client.search_runs([client.get_experiment_by_name("tuned").experiment_id])
    assert sum("mlflow.parentRunId" not in run.data.tags for run in runs) == 1
    phases = [run.data.tags["flray.phase"] for run in runs if "trial" in run.data.tags]
    assert (phases.count("tuning"), phases.count("comparison")) == (4, 4)
    assert {run.info.status for run in runs} == {"FINISHED"}
    read = load_mlflow(store, "tuned", tmp_path / "read")
    assert list(build_table(read).rows) == list(tables[0].rows) and len(read.tuning) == 4

    planned = api.plan(file, ["tracking.uri=null"])
    ended = [f for f in trial_folders(folder) if f.status == "finished"]
    taken = {one.taken_over.rpartition("/")[2] for one in planned if one.taken_over}
    assert taken == {f.number for f in ended if f.identity["phase"] == "tuning"}
    assert len(planned) == 4


def test_an_unknown_reference_is_refused_at_once(tuned: dict[str, Any], tmp_path: Path) -> None:
    tuned["sweep"]["reference"] = "fedvag"
    refused(api.tune, tuned)
    del tuned["sweep"]["tune"], tuned["sweep"]["until"], tuned["arms"]["method"]["local"]["space"]
    tuned["space"] = {"local.lr": {"grid": [0.01, 0.1]}}
    tuned["sweep"]["reference"] = "fedavg"  # each is now a method and a rate
    refused(api.tune, tuned)
    assert not (tmp_path / "runs").exists()
