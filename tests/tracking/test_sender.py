"""Every event reaches a real store once, and `flray sync` sends what waited."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flray.files import FETCHED_MARK
from flray.files.tracking_address import resolve_uri
from flray.records import Journal
from flray.tracking import client
from flray.tracking.background import SyncReport, sync
from flray.tracking.exporter import MlflowExporter
from tests.messages import refused
from tests.tracking.helpers import Sending, recorded


def test_a_whole_run(to: Sending) -> None:
    params = {f"p{i}": str(i) for i in range(250)} | {"long": "x" * 7000, "odd?": "1"}
    journal = to.start(params=params, tags={"a": "b"})
    journal.record_round(0, {"loss": 0.1 + 0.2, "bad": math.nan, "up": math.inf, "down": -math.inf})
    journal.tags({"best_round": "0"})
    (to.folder / "run" / "plots").mkdir()
    (to.folder / "run" / "plots" / "curve.png").write_bytes(b"picture")
    journal.artifact("plots/curve.png", "plots")
    journal.end("FINISHED")
    sender = to.exporter()
    assert sender.unsent() == 5 and sender.flush() == 0
    assert (sender.reason, sender.notices) == (None, [])
    run = to.sent()
    assert len(run.data.params) == 252
    assert (run.data.params["p249"], run.data.params["odd_"]) == ("249", "1")
    assert run.data.params["long"] == "x" * 5999 + "…"
    assert run.data.tags["flray.uid"] == f"{to.folder.name}-run"
    assert (run.data.tags["a"], run.data.tags["best_round"]) == ("b", "0")
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert to.points("loss") == recorded(journal, "loss") and math.isnan(to.points("bad")[0][1])
    # MLflow's database knows no infinity and keeps the largest number instead.
    assert to.points("up")[0][1] == -to.points("down")[0][1] == sys.float_info.max
    (artifact,) = to.client.list_artifacts(run.info.run_id, "plots")
    assert (artifact.path, artifact.file_size) == ("plots/curve.png", 7)
    database = Path(to.uri.removeprefix("sqlite:///"))
    assert run.info.artifact_uri.startswith((database.parent / "mlruns").as_uri())


def test_sending_everything_again_changes_nothing(to: Sending) -> None:
    journal = to.start(params={"lr": "0.1"})
    for round_ in range(5):
        journal.record_round(round_, {"loss": 1 / (round_ + 1), "bad": math.nan, "up": math.inf})
    to.send()
    first = to.run_id()
    sent = client.load_cursor(to.folder / "run", to.uri)
    for lost in ("the cursor", "only its offset"):
        (to.folder / "run" / "tracking.json").unlink()
        if lost == "only its offset":
            known = client.Cursor(sent.uri, sent.run_id, sent.experiment_id, 0)
            client.save_cursor(to.folder / "run", known)
        journal.record_round(len(journal.rounds()), {"loss": 7.0, "bad": math.nan, "up": math.inf})
        to.send()
        assert to.run_id() == first
    assert to.points("loss") == recorded(journal, "loss")
    for metric in ("bad", "up"):
        assert [step for step, _, _ in to.points(metric)] == list(range(7))
    assert len(to.runs()) == 1


@pytest.mark.slow
def test_killed_between_making_the_run_and_writing_the_cursor(to: Sending) -> None:
    journal = to.start()
    journal.record_round(0, {"loss": 0.5})
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from flray.tracking import exporter\n"
        "exporter.client.save_cursor = lambda _, cursor: cursor.run_id and os.kill(os.getpid(), signal.SIGKILL)\n"
        "exporter.MlflowExporter(Path(sys.argv[1]), sys.argv[2]).flush()\n"
    )
    command = [sys.executable, "-c", code, str(to.folder / "run"), to.uri]
    assert subprocess.run(command, timeout=120).returncode == -9
    (made,) = to.runs()
    assert not (to.folder / "run" / "tracking.json").exists()
    to.send()
    assert to.run_id() == made.info.run_id and len(to.runs()) == 1
    assert to.points("loss") == recorded(journal, "loss")


def test_rounds_played_again_by_another_host_are_not_sent_twice(to: Sending) -> None:
    journal = to.start()
    others = {f"m{i}": float(i) for i in range(600)}
    for round_ in range(1, 5):
        journal.record_round(round_, {"loss": 1 / round_, **others})
    to.send()
    sent = client.load_cursor(to.folder / "run", resolve_uri(to.uri))
    # The copy in object storage is older than what MLflow has: it ends after round 2, and so does
    # its cursor.
    copy = to.start("copy", uid=f"{to.folder.name}-run")
    for event in journal.rounds()[:2]:
        copy.append(event)
    size = copy.path.stat().st_size
    copy.close()
    known = client.Cursor(sent.uri, sent.run_id, sent.experiment_id, size)
    client.save_cursor(to.folder / "copy", known)
    again = Journal(copy.path)
    for round_ in range(3, 8):
        again.record_round(round_, {"loss": 1 / round_, **others})
    to.send("copy")
    assert to.points("loss") == [*recorded(journal, "loss"), *recorded(again, "loss")[4:]]
    assert [step for step, _, _ in to.points("m599")] == list(range(1, 8))


def test_a_fetched_run_writes_into_no_run_but_its_own(to: Sending) -> None:
    """Cursor, uid, parent and tags of a folder that others have written may name any run."""
    mine = to.start("mine", tags={"flray.folder": "runs/mine/001"})
    mine.record_round(1, {"loss": 0.5})
    to.send("mine")
    before, uid = to.sent("mine"), f"{to.folder.name}-mine"
    for planted in ("cursor", "uid", "parent", "tags"):
        named = {"mlflow.parentRunId": to.run_id("mine"), "flray.uid": uid}
        starts: dict[str, Any] = {"parent": uid, "uid": uid, "tags": named}
        journal = to.start(planted, **{k: v for k, v in starts.items() if k == planted})
        journal.record_round(2, {"loss": 9.0})
        if planted == "tags":
            journal.tags(named)
        journal.end("FAILED")
        (to.folder / planted / FETCHED_MARK).touch()
        if planted == "cursor":
            client.save_cursor(to.folder / planted, client.Cursor(to.uri, to.run_id("mine")))
        to.send(planted)
        sent = to.sent(planted)
        assert sent.info.run_id != to.run_id("mine") and sent.info.status == "FAILED"
        assert "mlflow.parentRunId" not in sent.data.tags
        assert to.points("loss", planted) == recorded(journal, "loss")
    now = to.sent("mine")
    assert now.data.to_dictionary() == before.data.to_dictionary()
    assert now.info.status == before.info.status
    assert to.points("loss", "mine") == recorded(mine, "loss")
    (to.folder / "mine" / client.CURSOR).unlink()  # and none of theirs is taken for it
    to.send("mine")
    assert to.run_id("mine") == before.info.run_id


def test_a_run_that_is_fetched_from_where_it_began_continues(to: Sending) -> None:
    for number, base in enumerate(("here", "there")):
        name = f"{base}/bucket-1f0a22b3/m/001"
        journal = to.start(name, uid="u", tags={"flray.folder": str(to.folder / name)})
        journal.record_round(1 + number, {"loss": 0.5})
        if number:
            (to.folder / name / FETCHED_MARK).touch()
        to.send(name)
        assert len(to.runs()) == 1
    trial = f"{name}/trials/0001"
    to.start(trial, uid="t", parent="u")
    to.send(trial)
    assert to.sent(trial).data.tags["mlflow.parentRunId"] == to.run_id(name)


def test_values_that_replace_others_are_the_ones_shown(to: Sending) -> None:
    journal = to.start()
    journal.record_round(3, {"trials/failed": 1.0, "best/score": 0.25})
    to.send()
    assert not journal.record_round(3, {"trials/failed": 0.0})
    assert journal.record_round(3, {"trials/failed": 0.0, "best/score": 0.5}, replace=True)
    to.send()
    shown = to.sent().data.metrics
    assert shown == {"trials/failed": 0.0, "best/score": 0.5}
    assert journal.history().to_dict("records") == [{"round": 3, **shown}]


def test_many_metrics_in_one_round_and_many_rounds_at_once(to: Sending) -> None:
    journal = to.start()
    journal.record_round(1, {f"client/{i}": float(i) for i in range(2500)})
    for round_ in range(2, 22):
        journal.record_round(round_, {f"m{i}": round_ + i / 100 for i in range(100)})
    journal.record_round(22, {})
    to.send()
    metrics = to.sent().data.metrics
    assert metrics["client/2499"] == 2499.0 and len(metrics) == 2600
    assert [one[:2] for one in to.points("m99")] == [(n, n + 0.99) for n in range(2, 22)]


def test_every_third_round_and_the_last_are_sent_and_the_journal_keeps_all(to: Sending) -> None:
    journal = to.start()

    def add(rounds: range) -> None:
        for round_ in rounds:
            journal.record_round(round_, {"loss": 1 / (round_ + 1)})

    def steps_after(**more: int) -> list[int]:
        assert to.exporter(**more).flush() == 0  # a new process each time, as after a kill
        return [step for step, _, _ in to.points("loss")]

    add(range(5))
    assert steps_after(every=3) == [0, 3]
    add(range(5, 8))
    assert steps_after(every=3) == [0, 3, 6]
    journal.end("KILLED")
    assert steps_after(every=3) == [0, 3, 6, 7]
    journal.start(uid="u", experiment="e", name="n")  # it resumes
    add(range(8, 11))
    journal.tags({"a": "b"})
    journal.end("FINISHED")
    assert steps_after(every=3) == [0, 3, 6, 7, 9, 10]
    journal.record_round(4, {"loss": 9.0}, replace=True)  # a repaired one is always sent
    assert steps_after(every=3) == [0, 3, 4, 6, 7, 9, 10]
    assert to.sent().data.tags["a"] == "b" and to.sent().info.status == "FINISHED"
    (to.folder / "run" / client.CURSOR).unlink()
    assert steps_after() == [*range(11)]


def test_a_stop_leaves_the_rest_for_later(to: Sending) -> None:
    journal = to.start()
    for round_ in range(30):
        journal.record_round(round_, {f"m{i}": 1.0 for i in range(100)})
    answers = iter([False] * 15 + [True])
    sender = to.exporter()
    assert sender.flush(stop=lambda: next(answers)) == 20
    assert sender.flush() == 0 and to.points("m0") == recorded(journal, "m0")


def test_trials_hang_below_the_sweep_whoever_comes_first(to: Sending) -> None:
    to.start("sweep")
    to.start("trial", parent=f"{to.folder.name}-sweep")
    to.start("moved", parent=f"{to.folder.name}-sweep")
    assert to.exporter("trial", parent_dir=to.folder / "sweep").flush() == 0
    assert to.exporter("sweep").unsent() == 1  # only the run was made, without its settings
    to.send("sweep")
    to.send("moved")
    for child in ("trial", "moved"):
        assert to.sent(child).data.tags["mlflow.parentRunId"] == to.run_id("sweep")


def test_a_resumed_run_goes_on_in_the_same_run(to: Sending) -> None:
    journal = to.start()
    journal.record_round(0, {"loss": 2.0})
    journal.record_round(1, {"loss": 1.0})
    journal.end("KILLED")
    sender = to.send()
    assert to.sent().info.status == "KILLED"
    journal.close()
    journal = Journal(journal.path)
    journal.start(uid="u", experiment="e", name="n")  # it resumes
    for round_, loss in enumerate([2.0, 1.0, 0.5]):
        journal.record_round(round_, {"loss": loss})
    assert sender.flush() == 0 and to.sent().info.status == "RUNNING"
    journal.end("FINISHED")
    assert sender.flush() == 0 and to.sent().info.status == "FINISHED" and len(to.runs()) == 1
    assert to.points("loss") == recorded(journal, "loss")
    assert [value for _, value, _ in to.points("loss")] == [2.0, 1.0, 0.5]


@pytest.mark.parametrize("left", ["everything", "a file"])
def test_a_run_the_server_forgot_is_sent_again_from_its_start(left: str, to: Sending) -> None:
    journal = to.start()
    journal.record_round(0, {"loss": 0.5})
    (to.folder / "run" / "curve.png").write_bytes(b"picture")
    offset = journal.path.stat().st_size if left == "a file" else 0
    client.save_cursor(to.folder / "run", client.Cursor(resolve_uri(to.uri), "f" * 32, "1", offset))
    journal.artifact("curve.png", "figures")
    assert not to.send().notices and to.points("loss") == recorded(journal, "loss")
    (artifact,) = to.client.list_artifacts(to.run_id(), "figures")
    assert artifact.path == "figures/curve.png"


def test_a_deleted_experiment_and_a_deleted_run_are_said_clearly(to: Sending) -> None:
    journal = to.start()
    sender = to.send()
    to.client.delete_run(to.run_id())
    journal.record_round(0, {"loss": 1.0})
    refused(sender.flush)
    to.client.delete_experiment(to.client.get_experiment_by_name(to.folder.name).experiment_id)
    (to.folder / "run" / "tracking.json").unlink()
    refused(sender.flush)


def test_what_cannot_be_sent_does_not_hold_up_the_rest(to: Sending) -> None:
    (to.folder / "secret").write_text("not part of the run")
    journal = to.start(params={"lr": "0.1"})
    journal.append({"type": "params", "params": {"lr": "0.2"}})  # of an older flray
    journal.artifact("gone.png")
    journal.artifact("../secret")
    journal.record_round(0, {"loss": 1.0})
    notices = to.send().notices
    assert len(notices) == 3
    assert "lr" in notices[0] and "gone.png" in notices[1] and "secret" in notices[2]
    assert to.client.list_artifacts(to.run_id()) == [] and to.sent().data.params == {"lr": "0.1"}
    assert to.points("loss") == recorded(journal, "loss")


def test_useless_addresses_are_refused_and_a_relative_database_is_one_place(tmp_cwd: Path) -> None:
    no_use = ("htp://host", "mlruns", "file:///tmp/mlruns", "sqlite://", "sqlite:///:memory:", "")
    for uri in no_use:
        refused(MlflowExporter, tmp_cwd, uri)
    assert resolve_uri("sqlite:///mlflow.db") == f"sqlite:///{tmp_cwd}/mlflow.db"
    assert resolve_uri("http://host:5000") == "http://host:5000"


def test_http_limits_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    before = dict(os.environ)
    with client.http_limits(), client.http_limits():
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert dict(os.environ) == before


@pytest.mark.slow
def test_two_processes_on_a_fresh_database(tmp_path: Path) -> None:
    to = Sending(tmp_path, f"sqlite:///{tmp_path / 'fresh' / 'mlflow.db'}")
    journals = {name: to.start(name) for name in ("a", "b")}
    for journal in journals.values():
        for round_ in range(40):
            journal.record_round(round_, {f"m{i}": float(i + round_) for i in range(50)})
    code = (
        "import sys; from pathlib import Path; from flray.tracking.client import connect\n"
        "import mlflow.store.tracking.sqlalchemy_store\n"  # both are ready before either begins
        "from flray.tracking.exporter import MlflowExporter\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "sender = MlflowExporter(Path(sys.argv[1]), sys.argv[2])\n"
        "print(sender.flush(), sender.reason, sender.notices)\n"
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    commands = [[sys.executable, "-c", code, str(tmp_path / name), to.uri] for name in journals]
    processes = [subprocess.Popen(command, text=True, **pipes) for command in commands]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.communicate(timeout=120) == ("0 None []\n", "")
    assert len(to.runs()) == 2
    for name, journal in journals.items():
        assert to.points("m49", name) == recorded(journal, "m49")


@pytest.mark.slow
def test_a_process_killed_while_making_the_database_leaves_no_broken_one(tmp_path: Path) -> None:
    database = tmp_path / "fresh" / "mlflow.db"
    to = Sending(tmp_path, f"sqlite:///{database}")
    journal = to.start()
    journal.record_round(0, {"loss": 0.5})
    code = (
        "import os, signal, sys\n"
        "from alembic.runtime import migration\n"
        "from pathlib import Path\n"
        "from flray.tracking.exporter import MlflowExporter\n"
        "done = []\n"
        "original = migration.HeadMaintainer.update_to_step\n"
        "def update(*args):\n"
        "    done.append(1); original(*args); len(done) == 20 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "migration.HeadMaintainer.update_to_step = update\n"
        "MlflowExporter(Path(sys.argv[1]), sys.argv[2]).flush()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run"), to.uri]
    assert subprocess.run(command, timeout=120).returncode == -9
    assert (tmp_path / "fresh" / ".mlflow.db.new").stat().st_size > 0 and not database.exists()
    to.send()
    assert to.points("loss") == recorded(journal, "loss")


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


@pytest.mark.parametrize("of", ["trial", "sweep", "file"])
def test_a_sync_sends_no_more_rounds_than_the_sweep_does(of: str, to: Sending) -> None:
    for name, path in {"sweep": "sweep", "trial": "sweep/trials/0001"}.items():
        params = {"tracking.every": "3" if name == of else "None" if of != "file" else "2"}
        with to.start(path, uid=f"{to.folder.name}-{name}", params=params) as journal:
            for round_ in range(1, 6) if name == "trial" else ():
                journal.record_round(round_, {"loss": 1.0})
            journal.end("FINISHED")
    if of == "file":  # as it was changed for a resume
        known = {"name": "x", "seed": 0, "rounds": 5, "algorithm": {"name": "fedavg"}}
        known |= {"evaluation": {"last": 1}, "tracking": {"every": 3}}
        (to.folder / "sweep" / "config.yaml").write_text(json.dumps({"experiment": known}))
    sync(to.folder / "sweep", to.uri)
    assert [step for step, _, _ in to.points("loss", "sweep/trials/0001")] == [3, 5]


def test_the_address_is_remembered_from_when_the_server_was_away(to: Sending) -> None:
    refused(sync, to.folder, "sqlite:///x.db")  # a directory without a run
    to.start()
    run = to.folder / "run"
    refused(sync, run)
    MlflowExporter(run, "http://127.0.0.1:9").flush()
    refused(sync, run)
