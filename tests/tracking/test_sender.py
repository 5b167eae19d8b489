"""Every event reaches a real store once."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flray.errors import FlrayError
from flray.files.tracking_address import resolve_uri
from flray.records.journal import Journal
from flray.tracking import cursor
from flray.tracking.client import TrackingRejectedError, http_limits
from flray.tracking.exporter import MlflowExporter

MakeRun = Callable[..., Journal]
Points = Callable[[str, str, str], list[tuple[int, float, int]]]
Recorded = Callable[[Journal, str], list[tuple[int, float, int]]]


def run_id_of(sender: MlflowExporter) -> str:
    found = cursor.load(sender.run_dir, sender.uri).run_id
    assert found is not None
    return found


def test_a_whole_run(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    journal = make_run(
        params={f"p{i}": str(i) for i in range(250)} | {"long": "x" * 7000, "odd?": "1"},
        tags={"a": "b"},
    )
    journal.record_round(0, {"loss": 0.1 + 0.2, "bad": math.nan, "up": math.inf, "down": -math.inf})
    journal.tags({"best_round": "0"})
    (tmp_path / "run" / "plots").mkdir()
    (tmp_path / "run" / "plots" / "curve.png").write_bytes(b"picture")
    journal.artifact("plots/curve.png", "plots")
    journal.end("FINISHED")
    sender = MlflowExporter(tmp_path / "run", store)
    assert sender.unsent() == 5
    assert sender.flush() == 0
    assert (sender.reason, sender.notices) == (None, [])

    client = MlflowClient(tracking_uri=store)
    run = client.get_run(run_id_of(sender))
    assert len(run.data.params) == 252
    assert (run.data.params["p249"], run.data.params["odd_"]) == ("249", "1")
    assert run.data.params["long"] == "x" * 5999 + "…"
    assert run.data.tags["flray.uid"] == f"{tmp_path.name}-run"
    assert (run.data.tags["a"], run.data.tags["best_round"]) == ("b", "0")
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert points(store, run.info.run_id, "loss") == recorded(journal, "loss")
    assert math.isnan(points(store, run.info.run_id, "bad")[0][1])
    # MLflow's database knows no infinity and keeps the largest number instead.
    assert points(store, run.info.run_id, "up")[0][1] == sys.float_info.max
    assert points(store, run.info.run_id, "down")[0][1] == -sys.float_info.max
    (artifact,) = client.list_artifacts(run.info.run_id, "plots")
    assert (artifact.path, artifact.file_size) == ("plots/curve.png", 7)
    database = Path(store.removeprefix("sqlite:///"))
    assert run.info.artifact_uri.startswith((database.parent / "mlruns").as_uri())


def test_sending_everything_again_changes_nothing(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    journal = make_run(params={"lr": "0.1"})
    for round_ in range(5):
        journal.record_round(round_, {"loss": 1 / (round_ + 1), "bad": math.nan, "up": math.inf})
    sender = MlflowExporter(tmp_path / "run", store)
    sender.flush()
    first = run_id_of(sender)
    sent = cursor.load(tmp_path / "run", sender.uri)
    for lost in ("the cursor", "only its offset"):
        (tmp_path / "run" / "tracking.json").unlink()
        if lost == "only its offset":
            cursor.save(
                tmp_path / "run", cursor.Cursor(sent.uri, sent.run_id, sent.experiment_id, 0)
            )
        journal.record_round(len(journal.rounds()), {"loss": 7.0, "bad": math.nan, "up": math.inf})
        again = MlflowExporter(tmp_path / "run", store)
        assert again.flush() == 0
        assert run_id_of(again) == first
    assert points(store, first, "loss") == recorded(journal, "loss")
    assert [step for step, _, _ in points(store, first, "bad")] == list(range(7))
    assert [step for step, _, _ in points(store, first, "up")] == list(range(7))
    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name(tmp_path.name)
    assert len(client.search_runs([experiment.experiment_id])) == 1


def test_killed_between_making_the_run_and_writing_the_cursor(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    journal = make_run()
    journal.record_round(0, {"loss": 0.5})
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from flray.tracking import exporter\n"
        "exporter.save = lambda _, cursor: cursor.run_id and os.kill(os.getpid(), signal.SIGKILL)\n"
        "exporter.MlflowExporter(Path(sys.argv[1]), sys.argv[2]).flush()\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run"), store], env=os.environ, timeout=120
    )
    assert killed.returncode == -9
    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name(tmp_path.name)
    (made,) = client.search_runs([experiment.experiment_id])
    assert not (tmp_path / "run" / "tracking.json").exists()
    sender = MlflowExporter(tmp_path / "run", store)
    assert sender.flush() == 0
    assert run_id_of(sender) == made.info.run_id
    assert len(client.search_runs([experiment.experiment_id])) == 1
    assert points(store, made.info.run_id, "loss") == recorded(journal, "loss")


def test_rounds_played_again_by_another_host_are_not_sent_twice(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    journal = make_run()
    for round_ in range(1, 5):
        journal.record_round(
            round_, {"loss": 1 / round_, **{f"m{i}": float(i) for i in range(600)}}
        )
    MlflowExporter(tmp_path / "run", store).flush()
    sent = cursor.load(tmp_path / "run", resolve_uri(store))
    # The copy in object storage is older than what MLflow has: it ends after round 2, and so does
    # its cursor.
    copy = make_run("copy", uid=f"{tmp_path.name}-run")
    for event in journal.rounds()[:2]:
        copy.append(event)
    size = (tmp_path / "copy" / "journal.jsonl").stat().st_size
    copy.close()
    cursor.save(tmp_path / "copy", cursor.Cursor(sent.uri, sent.run_id, sent.experiment_id, size))
    again = Journal(tmp_path / "copy" / "journal.jsonl")
    for round_ in range(3, 8):
        again.record_round(round_, {"loss": 1 / round_, **{f"m{i}": float(i) for i in range(600)}})
    assert MlflowExporter(tmp_path / "copy", store).flush() == 0
    assert sent.run_id is not None
    assert points(store, sent.run_id, "loss") == [
        *recorded(journal, "loss"),
        *recorded(again, "loss")[4:],
    ]
    assert [step for step, _, _ in points(store, sent.run_id, "m599")] == list(range(1, 8))


def test_values_that_replace_others_are_the_ones_shown(
    make_run: MakeRun, store: str, tmp_path: Path
) -> None:
    journal = make_run()
    journal.record_round(3, {"trials/failed": 1.0, "best/score": 0.25})
    MlflowExporter(tmp_path / "run", store).flush()
    assert not journal.record_round(3, {"trials/failed": 0.0})
    assert journal.record_round(3, {"trials/failed": 0.0, "best/score": 0.5}, replace=True)
    sender = MlflowExporter(tmp_path / "run", store)
    assert sender.flush() == 0
    shown = MlflowClient(tracking_uri=store).get_run(run_id_of(sender)).data.metrics
    assert shown == {"trials/failed": 0.0, "best/score": 0.5}
    assert journal.history().to_dict("records") == [{"round": 3, **shown}]


def test_many_metrics_in_one_round_and_many_rounds_at_once(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points
) -> None:
    journal = make_run()
    journal.record_round(0, {})
    journal.record_round(1, {f"client/{i}": float(i) for i in range(2500)})
    for round_ in range(2, 52):
        journal.record_round(round_, {f"m{i}": round_ + i / 100 for i in range(100)})
    journal.record_round(52, {})
    sender = MlflowExporter(tmp_path / "run", store)
    assert sender.flush() == 0
    run = MlflowClient(tracking_uri=store).get_run(run_id_of(sender))
    assert run.data.metrics["client/2499"] == 2499.0
    assert len(run.data.metrics) == 2600
    history = points(store, run.info.run_id, "m99")
    assert [(step, value) for step, value, _ in history] == [
        (round_, round_ + 0.99) for round_ in range(2, 52)
    ]


def test_a_stop_leaves_the_rest_for_later(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    journal = make_run()
    for round_ in range(30):
        journal.record_round(round_, {f"m{i}": 1.0 for i in range(100)})
    answers = iter([False] * 15 + [True])
    sender = MlflowExporter(tmp_path / "run", store)
    assert sender.flush(stop=lambda: next(answers)) == 20
    assert sender.flush() == 0
    assert points(store, run_id_of(sender), "m0") == recorded(journal, "m0")


def test_trials_hang_below_the_sweep_whoever_comes_first(
    make_run: MakeRun, store: str, tmp_path: Path
) -> None:
    make_run("sweep")
    make_run("trial", parent=f"{tmp_path.name}-sweep")
    make_run("moved", parent=f"{tmp_path.name}-sweep")
    trial = MlflowExporter(tmp_path / "trial", store, parent_dir=tmp_path / "sweep")
    assert trial.flush() == 0
    sweep = MlflowExporter(tmp_path / "sweep", store)
    assert sweep.unsent() == 1  # only the run was made, its settings are still to be sent
    assert sweep.flush() == 0
    moved = MlflowExporter(tmp_path / "moved", store)
    assert moved.flush() == 0
    client = MlflowClient(tracking_uri=store)
    for child in (trial, moved):
        assert client.get_run(run_id_of(child)).data.tags["mlflow.parentRunId"] == run_id_of(sweep)


def test_a_resumed_run_goes_on_in_the_same_run(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    journal = make_run()
    journal.record_round(0, {"loss": 2.0})
    journal.record_round(1, {"loss": 1.0})
    journal.end("KILLED")
    sender = MlflowExporter(tmp_path / "run", store)
    sender.flush()
    client = MlflowClient(tracking_uri=store)
    assert client.get_run(run_id_of(sender)).info.status == "KILLED"
    journal.close()
    journal = Journal(tmp_path / "run" / "journal.jsonl")
    journal.resume()
    for round_, loss in enumerate([2.0, 1.0, 0.5]):
        journal.record_round(round_, {"loss": loss})
    assert sender.flush() == 0
    assert client.get_run(run_id_of(sender)).info.status == "RUNNING"
    journal.end("FINISHED")
    assert sender.flush() == 0
    assert client.get_run(run_id_of(sender)).info.status == "FINISHED"
    assert points(store, run_id_of(sender), "loss") == recorded(journal, "loss")
    assert [value for _, value, _ in points(store, run_id_of(sender), "loss")] == [2.0, 1.0, 0.5]


def test_a_run_the_server_forgot_is_sent_again(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    journal = make_run()
    journal.record_round(0, {"loss": 0.5})
    cursor.save(tmp_path / "run", cursor.Cursor(resolve_uri(store), "f" * 32, "1", 0))
    sender = MlflowExporter(tmp_path / "run", store)
    assert sender.flush() == 0
    assert points(store, run_id_of(sender), "loss") == recorded(journal, "loss")


def test_a_run_the_server_forgot_is_sent_again_where_only_files_were_left(
    make_run: MakeRun, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    database = tmp_path / "store" / "mlflow.db"
    database.parent.mkdir()
    journal = make_run()
    journal.record_round(0, {"loss": 0.5})
    MlflowExporter(tmp_path / "run", f"sqlite:///{database}").flush()
    address = f"sqlite:///{database.with_name('new.db')}"  # its cursor's run is not known there
    known = cursor.load(tmp_path / "run", resolve_uri(f"sqlite:///{database}"))
    cursor.save(
        tmp_path / "run",
        cursor.Cursor(resolve_uri(address), known.run_id, known.experiment_id, known.offset),
    )
    (tmp_path / "run" / "curve.png").write_bytes(b"picture")
    journal.artifact("curve.png", "figures")
    sender = MlflowExporter(tmp_path / "run", address)
    assert sender.flush() == 0 and not sender.notices
    assert points(address, run_id_of(sender), "loss") == recorded(journal, "loss")
    client = MlflowClient(tracking_uri=address)
    (artifact,) = client.list_artifacts(run_id_of(sender), "figures")
    assert artifact.path == "figures/curve.png"


def test_a_deleted_experiment_and_a_deleted_run_are_said_clearly(
    make_run: MakeRun, store: str, tmp_path: Path
) -> None:
    journal = make_run()
    sender = MlflowExporter(tmp_path / "run", store)
    sender.flush()
    client = MlflowClient(tracking_uri=store)
    client.delete_run(run_id_of(sender))
    journal.record_round(0, {"loss": 1.0})
    with pytest.raises(TrackingRejectedError, match="active"):
        sender.flush()
    client.delete_experiment(client.get_experiment_by_name(tmp_path.name).experiment_id)
    (tmp_path / "run" / "tracking.json").unlink()
    with pytest.raises(TrackingRejectedError, match="is deleted there; restore it"):
        sender.flush()


def test_what_cannot_be_sent_does_not_hold_up_the_rest(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    (tmp_path / "secret").write_text("not part of the run")
    journal = make_run(params={"lr": "0.1"})
    journal.params({"lr": "0.2"})
    journal.artifact("gone.png")
    journal.artifact("../secret")
    journal.record_round(0, {"loss": 1.0})
    sender = MlflowExporter(tmp_path / "run", store)
    assert sender.flush() == 0
    assert [
        words in notice
        for words, notice in zip(("lr", "gone.png", "secret"), sender.notices, strict=True)
    ]
    client = MlflowClient(tracking_uri=store)
    assert client.list_artifacts(run_id_of(sender)) == []
    assert client.get_run(run_id_of(sender)).data.params == {"lr": "0.1"}
    assert points(store, run_id_of(sender), "loss") == recorded(journal, "loss")


def test_an_unreachable_server_costs_little_and_raises_nothing(
    make_run: MakeRun, tmp_path: Path
) -> None:
    journal = make_run()
    journal.record_round(0, {"loss": 1.0})
    sender = MlflowExporter(tmp_path / "run", "http://127.0.0.1:9")
    assert sender.flush() == 2
    assert sender.reason == "nobody answers there (connection refused)"


@pytest.mark.parametrize(
    "uri", ["htp://host", "mlruns", "file:///tmp/mlruns", "sqlite://", "sqlite:///:memory:", ""]
)
def test_an_address_of_no_use_is_refused_at_once(tmp_path: Path, uri: str) -> None:
    with pytest.raises(FlrayError, match="tracking address"):
        MlflowExporter(tmp_path, uri)


def test_a_database_that_cannot_be_used_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    make_run()
    (tmp_path / "text").write_text(
        "this is not a database, but it is long enough to be looked at " * 20
    )
    for path in (tmp_path / "run", tmp_path / "text", tmp_path / "text" / "x.db"):
        with pytest.raises(TrackingRejectedError) as error:
            MlflowExporter(tmp_path / "run", f"sqlite:///{path}").flush()
        assert "\n" not in str(error.value)
        assert str(path) in str(error.value)


def test_a_relative_database_means_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_uri("sqlite:///mlflow.db") == f"sqlite:///{tmp_path}/mlflow.db"
    assert resolve_uri("http://host:5000") == "http://host:5000"


def test_http_limits_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    before = dict(os.environ)
    with http_limits(), http_limits():
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert dict(os.environ) == before


@pytest.mark.slow
def test_two_processes_on_a_fresh_database(
    make_run: MakeRun, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    journals = []
    for name in ("a", "b"):
        journals.append(make_run(name))
        for round_ in range(40):
            journals[-1].record_round(round_, {f"m{i}": float(i + round_) for i in range(50)})
    code = (
        "import sys; from pathlib import Path; from flray.tracking.client import connect\n"
        "import mlflow.store.tracking.sqlalchemy_store\n"  # both are ready before either begins
        "from flray.tracking.exporter import MlflowExporter\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "sender = MlflowExporter(Path(sys.argv[1]), sys.argv[2])\n"
        "print(sender.flush(), sender.reason, sender.notices)\n"
    )
    uri = f"sqlite:///{tmp_path / 'fresh' / 'mlflow.db'}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / name), uri],
            env=os.environ,
            text=True,
            **pipes,
        )
        for name in ("a", "b")
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert (out, err) == ("0 None []\n", "")
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(tmp_path.name)
    assert len(client.search_runs([experiment.experiment_id])) == 2
    for name, journal in zip(("a", "b"), journals, strict=True):
        run_id = json.loads((tmp_path / name / "tracking.json").read_text())["run_id"]
        assert points(uri, run_id, "m49") == recorded(journal, "m49")


def test_a_process_killed_while_making_the_database_leaves_no_broken_one(
    make_run: MakeRun, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    journal = make_run()
    journal.record_round(0, {"loss": 0.5})
    database = tmp_path / "fresh" / "mlflow.db"
    code = (
        "import os, signal, sys\n"
        "from alembic.runtime import migration\n"
        "from pathlib import Path\n"
        "from flray.tracking.exporter import MlflowExporter\n"
        "done = []\n"
        "original = migration.HeadMaintainer.update_to_step\n"
        "def update(*args):\n"
        "    done.append(1); original(*args); len(done) == 20 and os.kill(os.getpid(), "
        "signal.SIGKILL)\n"
        "migration.HeadMaintainer.update_to_step = update\n"
        "MlflowExporter(Path(sys.argv[1]), sys.argv[2]).flush()\n"
    )
    arguments = [str(tmp_path / "run"), f"sqlite:///{database}"]
    killed = subprocess.run([sys.executable, "-c", code, *arguments], env=os.environ, timeout=120)
    assert killed.returncode == -9
    assert (tmp_path / "fresh" / ".mlflow.db.new").stat().st_size > 0
    assert not database.exists()
    sender = MlflowExporter(tmp_path / "run", arguments[1])
    assert sender.flush() == 0
    assert points(sender.uri, run_id_of(sender), "loss") == recorded(journal, "loss")
