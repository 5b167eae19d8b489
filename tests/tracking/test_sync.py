"""`flray sync` sends what waited."""

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flray.errors import FlrayError
from flray.records.journal import Journal
from flray.tracking import cursor
from flray.tracking.exporter import MlflowExporter
from flray.tracking.sync import SyncReport, sync

NOWHERE = "http://127.0.0.1:9"


def make_sweep(make_run: Callable[..., Journal]) -> None:
    make_run("sweep")
    for trial in ("0", "1"):
        with make_run(f"sweep/trials/{trial}", uid=f"sweep-{trial}") as journal:
            journal.record_round(0, {"loss": 1.0})


def test_a_sweep_is_sent_with_its_trials_below_it(
    make_run: Callable[..., Journal], store: str, tmp_path: Path
) -> None:
    make_sweep(make_run)
    report = sync(tmp_path / "sweep", store)
    assert report == SyncReport(runs=3, events=5, uris=(store,))
    assert sync(tmp_path / "sweep") == SyncReport(runs=3, events=0, uris=(store,))
    top = cursor.load(tmp_path / "sweep", store).run_id
    client = MlflowClient(tracking_uri=store)
    for trial in ("0", "1"):
        run_id = cursor.load(tmp_path / "sweep" / "trials" / trial, store).run_id
        assert client.get_run(run_id).data.tags["mlflow.parentRunId"] == top


def test_one_trial_is_sent_below_its_sweep(
    make_run: Callable[..., Journal], store: str, tmp_path: Path
) -> None:
    make_sweep(make_run)
    trial = tmp_path / "sweep" / "trials" / "1"
    assert sync(trial, store) == SyncReport(runs=1, events=2, uris=(store,))
    run = MlflowClient(tracking_uri=store).get_run(cursor.load(trial, store).run_id)
    assert run.data.tags["mlflow.parentRunId"] == cursor.load(tmp_path / "sweep", store).run_id


def test_the_address_is_remembered_from_when_the_server_was_away(
    make_run: Callable[..., Journal], tmp_path: Path
) -> None:
    make_run()
    with pytest.raises(FlrayError, match="never been sent anywhere"):
        sync(tmp_path / "run")
    MlflowExporter(tmp_path / "run", NOWHERE).flush()
    with pytest.raises(
        FlrayError, match=f"tracking at {NOWHERE} is still away: nobody answers.*1 events of"
    ):
        sync(tmp_path / "run")


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlrayError, match="no run here"):
        sync(tmp_path, "sqlite:///x.db")
