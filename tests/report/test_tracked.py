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


def made(place: Path) -> Path:
    """Return the folder of a sweep over arms and a learning rate."""
    content = settings() | {"space": {"local.lr": {"grid": [0.1, 1]}}}
    content["experiment"]["tracking"] = {"experiment": place.name}
    content["sweep"]["seeds"] = [1]
    (folder := place / "made" / "001").mkdir(parents=True)
    return make_sweep(folder, content)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that is tracked once."""
    return made(tmp_path_factory.mktemp("tracked"))


@pytest.fixture(scope="module")
def name(sweep: Path, store: str) -> str:
    """The experiment in MLflow that has it."""
    return track(sweep, store)


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


def test_mlflow_gives_the_trials_of_the_folder_and_each_parameter_once(
    sweep: Path, name: str, store: str, tmp_path: Path
) -> None:
    read, held = load_mlflow(store, name, tmp_path / "read").trials, load_folder(sweep).trials
    assert len(read) == 8
    for one, other in zip(read, held, strict=True):
        assert (one.number, one.seed, one.setting) == (other.number, other.seed, other.setting)
        assert one.history["score"].tolist() == other.history["score"].tolist()
    for run in trial_runs(store, name):
        assert run.data.params["local.lr"] in ("0.1", "1.0")
        assert {name for name in run.data.params if name.startswith("_")} == {"_modules", "_data"}


def test_what_an_older_flray_tracked_is_read(store: str, tmp_path: Path) -> None:
    older(sweep := made(tmp_path))
    name = track(sweep, store)
    assert all("_local.lr" in run.data.params for run in trial_runs(store, name))
    read, held = load_mlflow(store, name, tmp_path / "read").trials, load_folder(sweep).trials
    assert len(read) == 8
    for one, other in zip(read, held, strict=True):
        assert one.setting == {path: str(value) for path, value in other.setting.items()}


def test_a_tag_that_is_no_setting_is_one_clear_error(name: str, store: str, tmp_path: Path) -> None:
    run, said = (
        trial_runs(store, name)[0],
        r"its tag flray\.varied is .* report from the sweep's folder",
    )
    for number, text in enumerate(("[1]", '{"local.lr": 0.1, "a…', "[" * 5000)):
        connect(store).set_tag(run.info.run_id, VARIED, text)
        with pytest.raises(FlrayError, match=said):
            load_mlflow(store, name, tmp_path / str(number))
    connect(store).set_tag(run.info.run_id, VARIED, run.data.tags[VARIED])
