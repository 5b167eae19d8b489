"""A real tracking server, killed with SIGKILL and started again: all rounds arrive, each once."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flray.records.journal import Journal
from flray.tracking import cursor
from flray.tracking.background import Tracker
from flray.tracking.exporter import MlflowExporter
from flray.tracking.sync import sync

pytestmark = pytest.mark.timeout(400)
MakeRun = Callable[..., Journal]
Points = Callable[[str, str, str], list[tuple[int, float, int]]]
Recorded = Callable[[Journal, str], list[tuple[int, float, int]]]


@pytest.mark.slow
def test_the_server_is_killed_twice_in_mid_run(
    make_run: MakeRun, server: Any, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    server.start()
    said: list[str] = []
    journal = make_run(params={"lr": "0.1"})
    (tmp_path / "run" / "curve.png").write_bytes(b"picture")
    tracker = Tracker(server.uri, said.append)
    tracker.register(tmp_path / "run")
    restarts: list[threading.Thread] = []
    for round_ in range(300):
        metrics = {f"m{i}": round_ + i / 10 for i in range(20)}
        journal.record_round(round_, metrics | {"bad": math.nan, "up": math.inf})
        if round_ in (60, 240):
            for restart in restarts:
                restart.join()
            # No pause between the kill and the rounds: some batch may be half-way in the server
            # just now.
            server.kill()
            restarts.append(threading.Thread(target=server.start))
            restarts[-1].start()
        time.sleep(0.03)
    journal.artifact("curve.png", "plots")
    journal.end("FINISHED")
    for restart in restarts:
        restart.join()
    assert tracker.close(120) == 0
    assert [thread for thread in threading.enumerate() if thread.name == "flray-tracking"] == []
    assert [("is away" in line, "is back" in line) for line in said] == [
        (True, False),
        (False, True),
    ] * (len(said) // 2)
    assert len(said) in (2, 4)

    client = MlflowClient(tracking_uri=server.uri)
    (run,) = client.search_runs([client.get_experiment_by_name(tmp_path.name).experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1"}
    for metric in ("m0", "m19"):
        arrived = points(server.uri, run.info.run_id, metric)
        assert [step for step, _, _ in arrived] == list(range(300))
        assert arrived == recorded(journal, metric)
    for metric in ("bad", "up"):
        assert [step for step, _, _ in points(server.uri, run.info.run_id, metric)] == list(
            range(300)
        )
    (artifact,) = client.list_artifacts(run.info.run_id, "plots")
    assert (artifact.path, artifact.file_size) == ("plots/curve.png", 7)


@pytest.mark.slow
def test_the_training_and_the_server_are_both_killed_and_the_run_is_resumed(
    make_run: MakeRun, server: Any, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    make_run().close()
    code = (
        "import sys, time; from pathlib import Path\n"
        "from flray.records.journal import Journal; from flray.tracking.background import Tracker\n"
        "run, uri, first, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), "
        "int(sys.argv[4])\n"
        "with Journal(run / 'journal.jsonl') as journal, Tracker(uri, print) as tracker:\n"
        "    tracker.register(run)\n"
        "    for round_ in range(first, last):\n"
        "        journal.record_round(round_, {f'm{i}': round_ + i / 10 for i in range(20)})\n"
        "        print(round_, flush=True); time.sleep(0.02)\n"
    )

    def train(first: int, last: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-c",
            code,
            str(tmp_path / "run"),
            server.uri,
            str(first),
            str(last),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ))

    def sent() -> int:
        known = cursor.read(tmp_path / "run")
        return 0 if known is None else known.offset

    server.start()
    training = train(0, 10**6)
    deadline = time.monotonic() + 120
    while sent() < 5000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    training.send_signal(signal.SIGKILL)
    training.communicate()
    server.kill()
    with Journal(tmp_path / "run" / "journal.jsonl") as journal:
        reached = len(journal.rounds())
    # Resumed from a checkpoint some rounds back, the server still away: everything waits.
    training = train(max(0, reached - 15), reached + 20)
    out, _ = training.communicate(timeout=120)
    assert training.returncode == 0
    assert b"is away" in out
    server.start()
    assert sync(tmp_path / "run").events > 0
    with Journal(tmp_path / "run" / "journal.jsonl") as journal:
        run_id = cursor.load(tmp_path / "run", server.uri).run_id
        assert run_id is not None
        arrived = points(server.uri, run_id, "m7")
        assert arrived == recorded(journal, "m7")
        assert [step for step, _, _ in arrived] == list(range(reached + 20))


def test_all_batches_sent_twice_over_http_leave_single_points(
    make_run: MakeRun, server: Any, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    server.start()
    journal = make_run()
    for round_ in range(30):
        journal.record_round(
            round_, {f"m{i}": 0.1 * i for i in range(100)} | {"bad": math.nan, "up": math.inf}
        )
    for _ in range(2):
        sender = MlflowExporter(tmp_path / "run", server.uri)
        assert sender.flush() == 0
        run_id = cursor.load(tmp_path / "run", server.uri).run_id
        assert run_id is not None
        (tmp_path / "run" / "tracking.json").unlink()
    assert points(server.uri, run_id, "m99") == recorded(journal, "m99")
    for metric in ("bad", "up"):
        assert [step for step, _, _ in points(server.uri, run_id, metric)] == list(range(30))


def test_a_server_that_accepts_but_never_answers_is_given_up(
    make_run: MakeRun, tmp_path: Path
) -> None:
    import socket

    make_run()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tracker = Tracker(uri, print)
        tracker.register(tmp_path / "run")
        time.sleep(1.0)
        before = time.monotonic()
        assert tracker.close(1.0) == 1
        assert time.monotonic() - before < 13.0
    assert [thread for thread in threading.enumerate() if thread.name == "flray-tracking"] == []


def test_an_address_that_is_no_tracking_server_is_said_as_such(
    make_run: MakeRun, tmp_path: Path
) -> None:
    make_run()
    said: list[str] = []
    command = [
        sys.executable,
        "-u",
        "-m",
        "http.server",
        "--bind",
        "127.0.0.1",
        "0",
        "--directory",
        str(tmp_path),
    ]
    web = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert web.stdout is not None
        port = web.stdout.readline().split(b" port ")[1].split()[0].decode()
        tracker = Tracker(f"http://127.0.0.1:{port}", said.append)
        tracker.register(tmp_path / "run")
        assert tracker.close(20) == 1
    finally:
        web.kill()
        web.wait()
    (line,) = said
    assert "404" in line
    assert "is no longer sent" in line
