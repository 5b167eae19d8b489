"""A report from MLflow: what it reads is what the sweep's folder holds, also as an older flray tracked it."""

import json
from pathlib import Path
from typing import Any

import pytest

from flray.errors import FlrayError
from flray.records import directory
from flray.records.journal import JOURNAL, VARIED, Journal
from flray.results.load import load_folder, load_mlflow
from flray.tracking.client import connect
from flray.tracking.exporter import MlflowExporter
from flray.tuning.trial_store import complete_settings
from tests.report.conftest import make_sweep, settings


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """The folder of a sweep over arms and a learning rate."""
    content = settings() | {"space": {"local.lr": {"grid": [0.1, 1]}}}
    content["experiment"]["tracking"] = {"experiment": tmp_path.name}
    content["sweep"]["seeds"] = [1]
    (folder := tmp_path / "made" / "001").mkdir(parents=True)
    return make_sweep(folder, content)


def track(sweep: Path, uri: str) -> str:
    """Send a sweep's journals to MLflow, its own first, and return the name of the experiment."""
    name = sweep.parent.parent.name
    with Journal(sweep / JOURNAL) as journal:
        uid = directory.read(sweep)["uid"]
        journal.start(uid=uid, experiment=name, name="made 001", tags={"flray.kind": "sweep"})
        journal.artifact(directory.CONFIG)
        journal.end("FINISHED")
    complete_settings(sweep)
    for path in (sweep, *sorted(sweep.glob("settings/*")), *sorted(sweep.glob("trials/*"))):
        assert MlflowExporter(path, uri).flush() == 0
    return name


def older(sweep: Path) -> None:
    """Make journals those of an older flray: settings that differ stood twice among the parameters."""
    for path in sweep.glob("*/*/journal.jsonl"):
        first, _, rest = path.read_text().partition("\n")
        event = json.loads(first)
        varied = json.loads(event["tags"].pop(VARIED))
        event["params"] |= {f"_{name.removeprefix('arms.')}": str(v) for name, v in varied.items()}
        path.write_text(f"{json.dumps(event)}\n{rest}")


def trial_runs(uri: str, experiment: str) -> list[Any]:
    """Return MLflow's runs of the trials."""
    client = connect(uri)
    where = [client.get_experiment_by_name(experiment).experiment_id]
    return [run for run in client.search_runs(where) if "trial" in run.data.tags]


def test_mlflow_gives_the_trials_of_the_folder(sweep: Path, store: str, tmp_path: Path) -> None:
    name = track(sweep, store)
    read, held = load_mlflow(store, name, tmp_path / "read").trials, load_folder(sweep).trials
    assert len(read) == 8
    for one, other in zip(read, held, strict=True):
        assert (one.number, one.seed, one.setting) == (other.number, other.seed, other.setting)
        assert one.history["score"].tolist() == other.history["score"].tolist()


def test_what_an_older_flray_tracked_is_read(sweep: Path, store: str, tmp_path: Path) -> None:
    older(sweep)
    name = track(sweep, store)
    assert all("_local.lr" in run.data.params for run in trial_runs(store, name))
    read, held = load_mlflow(store, name, tmp_path / "read").trials, load_folder(sweep).trials
    assert len(read) == 8
    for one, other in zip(read, held, strict=True):
        assert one.setting == {path: str(value) for path, value in other.setting.items()}


def test_each_parameter_stands_once(sweep: Path, store: str) -> None:
    name = track(sweep, store)
    for run in trial_runs(store, name):
        assert run.data.params["local.lr"] in ("0.1", "1.0")
        assert {name for name in run.data.params if name.startswith("_")} == {"_modules", "_data"}


@pytest.mark.parametrize("text", ["[1]", '{"local.lr": 0.1, "a…', "[" * 5000])
def test_a_tag_that_is_no_setting_is_one_clear_error(
    sweep: Path, store: str, tmp_path: Path, text: str
) -> None:
    name = track(sweep, store)
    connect(store).set_tag(trial_runs(store, name)[0].info.run_id, VARIED, text)
    with pytest.raises(
        FlrayError, match=r"its tag flray\.varied is .* report from the sweep's folder"
    ):
        load_mlflow(store, name, tmp_path / "read")
