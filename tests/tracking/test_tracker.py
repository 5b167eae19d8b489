"""The tracker's thread blocks no training, and the journal survives kills and says every round once."""

import errno
import functools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flray.records import JOURNAL, Journal, history_of, listen, read_events
from flray.tracking import background, client
from tests.helpers import python
from tests.messages import refused
from tests.tracking.helpers import Sending, recorded, tracking_threads, wait

NOWHERE = "http://127.0.0.1:9"


def test_rounds_arrive_while_training_and_the_thread_ends(to: Sending) -> None:
    said: list[str] = []
    sweep, journal = to.start("sweep"), to.start("trial")
    tracker = background.Tracker(to.uri, said.append)
    assert tracking_threads() == []
    trial = to.folder / "trial"
    tracker.register(trial, to.folder / "sweep")
    tracker.register(to.folder / "sweep")
    assert tracking_threads() == ["flray-tracking"]
    for round_ in range(20):
        journal.record_round(round_, {"loss": 1 / (round_ + 1)})
    wait(lambda: client.load_cursor(trial, tracker.uri).offset == journal.path.stat().st_size)
    for run in (sweep, journal):
        run.end("FINISHED")
    for _ in range(2):
        assert tracker.close(30) == 0 and tracking_threads() == []
    assert said == [] and to.points("loss", "trial") == recorded(journal, "loss")
    refused(tracker.register, trial)


def test_nothing_is_sent_while_it_rests_until_it_is_closed(to: Sending) -> None:
    journal, run = to.start(), to.folder / "run"
    tracker = background.Tracker(to.uri, print, rest=86_400)
    tracker.register(run)
    journal.record_round(0, {"loss": 1.0})
    assert (tracker._until_due() or 0.0) > 80_000 and client.read_cursor(run) is None
    assert tracker.close(30) == 0 and to.points("loss") == recorded(journal, "loss")


def test_many_rounds_go_in_few_requests(to: Sending, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rests for many times as long as it worked: here until it is closed."""
    assert background._REST >= 100 and background._LONGEST_REST > 1
    monkeypatch.setattr(background, "_REST", 1e9)
    monkeypatch.setattr(background, "_LONGEST_REST", 1e9)
    journal, run = to.start(), to.folder / "run"
    tracker, _ = to.tracker("run")
    wait(lambda: client.load_cursor(run, tracker.uri).offset > 0)
    sent = client.load_cursor(run, tracker.uri).offset
    (thread,) = (one for one in threading.enumerate() if one.name == "flray-tracking")
    its_time = functools.partial(time.clock_gettime, time.pthread_getcpuclockid(thread.ident))

    def rests() -> bool:
        before = its_time()
        time.sleep(0.5)
        return its_time() == before

    wait(rests)
    for round_ in range(50):
        journal.record_round(round_, {"loss": 1.0})
    wait(rests)
    assert client.load_cursor(run, tracker.uri).offset == sent and tracker.close(30) == 0
    assert to.points("loss") == recorded(journal, "loss")


def test_a_server_away_is_said_once(to: Sending, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries slow down, and new rounds do not hurry them."""
    monkeypatch.setattr(background, "_FIRST_PAUSE", 0.25)
    journal = to.start()
    tracker, said = to.tracker("run", uri=NOWHERE)
    retries: list[float] = []
    costs: list[float] = []

    def retried_thrice() -> bool:
        before = time.thread_time()
        journal.record_round(len(journal.rounds()), {"loss": 1.0})
        costs.append(time.thread_time() - before)
        if tracker._retry_at and tracker._retry_at not in retries:
            retries.append(tracker._retry_at)
        return len(retries) == 3

    wait(retried_thrice)
    # One more try, which is refused at once: the time is not waited for.
    assert tracker.close(86_400) == len(journal.rounds()) + 1 and tracking_threads() == []
    (line,) = said
    away = "is away: nobody answers there (connection refused)"
    assert line.startswith(f"tracking at {NOWHERE} {away}")
    assert statistics.median(costs) < 0.1  # a few pay for a collection of garbage
    assert retries[1] - retries[0] >= 0.5 and retries[2] - retries[1] >= 1.0
    assert client.read_cursor(to.folder / "run") == client.Cursor(NOWHERE)


def test_a_refusal_is_said_once_and_the_other_runs_go_on(to: Sending) -> None:
    good = to.start("good")
    bad = Journal(to.folder / "bad" / "journal.jsonl")  # a journal without a start
    tracker, said = to.tracker("bad", "good")
    for round_ in range(3):
        good.record_round(round_, {"loss": 1.0})
        bad.record_round(round_, {"loss": 1.0})
    assert tracker.close(60) == 3
    (line,) = said
    assert "the run's start is missing" in line and f"{to.folder / 'bad'} is no longer sent" in line
    assert to.points("loss", "good") == recorded(good, "loss")


@pytest.mark.parametrize("made", [os.mkdir, os.mkfifo])
def test_a_journal_that_cannot_be_read_is_said_once_and_the_other_runs_go_on(
    made: Callable[[Path], None], to: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncaught: list[object] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    to.start("spoiled").close()
    other = to.start("other")
    (to.folder / "spoiled" / JOURNAL).unlink()
    made(to.folder / "spoiled" / JOURNAL)
    tracker, said = to.tracker("spoiled", "other")
    other.record_round(1, {"loss": 1.0})
    assert tracker.close(60) == 0
    assert not uncaught and to.points("loss", "other") == recorded(other, "loss")
    (line,) = said
    assert line.endswith("its values stay in journal.jsonl") and "\n" not in line


def test_rounds_come_back_bit_for_bit_with_values_that_are_not_finite(tmp_path: Path) -> None:
    values = {"a": 0.1 + 0.2, "b": math.nan, "c": math.inf, "d": -math.inf, "e": 5e-324, "f": 1}
    with Journal(tmp_path / "run" / "journal.jsonl") as journal:
        assert journal.record_round(0, values)
        (event,) = journal.rounds()
    assert event["metrics"]["a"] == 0.30000000000000004 and math.isnan(event["metrics"]["b"])
    assert [event["metrics"][name] for name in "cdef"] == [math.inf, -math.inf, 5e-324, 1.0]
    assert isinstance(event["time"], int)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads((tmp_path / "run" / "journal.jsonl").read_text(), parse_constant=refuse)


def test_a_round_is_recorded_once_also_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        assert journal.record_round(1, {"x": 1.0}) and not journal.record_round(1, {"x": 2.0})
        first = journal.rounds()
    before = path.read_bytes()
    with Journal(path) as journal:
        assert not journal.record_round(1, {"x": 1.0}) and path.read_bytes() == before
        assert journal.rounds() == first and journal.record_round(2, {"x": 3.0})
        assert journal.history()["x"].tolist() == [1.0, 3.0]


def test_a_torn_last_line_is_cut_off_wherever_it_tore(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.record_round(0, {"loss": 0.5})
        whole = path.stat().st_size
        journal.record_round(1, {"loss": 0.25})
    data = path.read_bytes()
    for cut in range(whole, len(data)):
        path.write_bytes(data[:cut])
        assert [event["round"] for event in read_events(tmp_path)] == [0]
        with Journal(path) as journal:
            assert path.stat().st_size == whole and journal.record_round(1, {"loss": 0.125})
            assert journal.history()["loss"].tolist() == [0.5, 0.125]
    path.write_bytes(data[:whole] + b"\0\0\0\n\0\0")
    with Journal(path) as journal:
        assert len(journal.rounds()) == 1
    assert path.read_bytes() == data[:whole]


def test_what_no_kill_leaves_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        for round_, loss in enumerate((0.5, 0.25)):
            journal.record_round(round_, {"loss": loss})
    data = path.read_bytes()
    for damaged in (
        *(data.decode().encode("utf-16"), b"{oops\n" + data, data.replace(b"\n", b"\r")),
        *(b"[1]\n[2]\n", data + b"[1]\n", data + b"words", data.replace(b"0.25}", b"0.25")),
    ):
        path.write_bytes(damaged)
        for use in (Journal, read_events):
            refused(use, path)
        assert path.read_bytes() == damaged


def test_history_is_sorted_with_round_first_and_gaps_as_nan(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        assert journal.history().columns.tolist() == ["round"] and len(journal.history()) == 0
        journal.record_round(2, {"time/train": 3.0, "accuracy": 0.5})
        journal.record_round(1, {"accuracy": 0.25})
        table = journal.history()
    assert table.columns.tolist() == ["round", "time/train", "accuracy"]
    assert table["round"].tolist() == [1, 2] and table["accuracy"].tolist() == [0.25, 0.5]
    assert math.isnan(table["time/train"][0]) and history_of(read_events(tmp_path)).equals(table)


def test_start_is_written_once_and_by_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.start(uid="u", experiment="e", name="n", params={"lr": "0.1"})
        journal.start(uid="v", experiment="e", name="n")
        refused(Journal, path)
    with Journal(path) as journal:
        journal.start(uid="w", experiment="e", name="n")
    event, *others = read_events(path)
    assert [one["type"] for one in others] == ["resume", "resume"]
    wanted = {"uid": "u", "parent": None, "params": {"lr": "0.1"}, "tags": {}}
    assert wanted.items() <= event.items()


def test_names_that_would_fall_together_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        refused(journal.record_round, 0, {"a*": 1.0, "a?": 2.0})
        assert journal.record_round(0, {"a*": 1.0})
        assert journal.history().columns.tolist() == ["round", "a_"]


def test_a_killed_writer_loses_no_round_it_reported(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from flray.records import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for i in range(10**9):\n"
        "    journal.record_round(i, {f'm{j}': float(i * j) for j in range(50)})\n"
        "    print(i, flush=True)\n"
    )
    path = tmp_path / "journal.jsonl"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    reported = [int(process.stdout.readline()) for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    reported += [int(line) for line in process.stdout.read().split(b"\n") if line]
    process.wait()
    with Journal(path) as journal:
        rounds = [event["round"] for event in journal.rounds()]
        assert rounds[: len(reported)] == reported and rounds == list(range(len(rounds)))
        assert journal.record_round(len(rounds), {})


def test_whoever_listens_hears_of_every_event(tmp_path: Path) -> None:
    heard: list[Path] = []
    with Journal(tmp_path / "a.jsonl") as first, Journal(tmp_path / "b.jsonl") as second:
        end = listen(heard.append)
        first.record_round(1, {"loss": 1.0})
        first.record_round(1, {"loss": 1.0})  # there already: nothing is written
        second.tags({"a": "b"})
        end()
        second.end("FINISHED")
    assert heard == [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]


def test_a_line_cut_off_by_a_full_disk_is_taken_back(tmp_path: Path) -> None:
    """In a process of its own, whose files may not grow beyond a size, as on a disk that is full."""
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from flray.records import Journal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with Journal(Path(sys.argv[1])) as journal:\n"
        "    journal.record_round(1, {'loss': 1.0})\n"
        "    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 20, hard))\n"
        "    try:\n"
        "        journal.record_round(2, {'loss': 2.0})\n"
        "    except OSError as error:\n"
        "        print(error.errno)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "    print(journal.record_round(2, {'loss': 3.0})); journal.end('FAILED')\n"
    )
    path = tmp_path / "journal.jsonl"
    assert python(code, str(path)).stdout.split() == [str(errno.EFBIG), "True"]
    metrics = [event.get("metrics") for event in read_events(path)]
    assert metrics == [{"loss": 1.0}, {"loss": 3.0}, None]
