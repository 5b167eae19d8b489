"""`flray sync` sends what waited."""

from pathlib import Path

import pytest

from flray.tracking.background import SyncReport, sync
from flray.tracking.exporter import MlflowExporter
from tests.messages import refused
from tests.tracking.helpers import Sending

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def sweep(to: Sending) -> Path:
    to.start("sweep")
    for trial in ("0", "1"):
        with to.start(f"sweep/trials/{trial}", uid=f"{to.folder.name}-{trial}") as journal:
            journal.record_round(0, {"loss": 1.0})
    return to.folder / "sweep"


def test_a_sweep_is_sent_with_its_trials_below_it(to: Sending, sweep: Path) -> None:
    assert sync(sweep, to.uri) == SyncReport(runs=3, events=5, uris=(to.uri,))
    assert sync(sweep) == SyncReport(runs=3, events=0, uris=(to.uri,))
    for trial in ("0", "1"):
        tags = to.sent(f"sweep/trials/{trial}").data.tags
        assert tags["mlflow.parentRunId"] == to.run_id("sweep")


def test_one_trial_is_sent_below_its_sweep(to: Sending, sweep: Path) -> None:
    assert sync(sweep / "trials" / "1", to.uri) == SyncReport(runs=1, events=2, uris=(to.uri,))
    assert to.sent("sweep/trials/1").data.tags["mlflow.parentRunId"] == to.run_id("sweep")


def test_the_address_is_remembered_from_when_the_server_was_away(to: Sending) -> None:
    to.start()
    run = to.folder / "run"
    refused(sync, run)
    MlflowExporter(run, NOWHERE).flush()
    refused(sync, run)


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    refused(sync, tmp_path, "sqlite:///x.db")
