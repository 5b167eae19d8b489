"""The background thread neither blocks training nor outlives its tracker."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flray.errors import FlrayError
from flray.records.journal import Journal
from flray.tracking import cursor
from flray.tracking.background import Tracker

MakeRun = Callable[..., Journal]
Points = Callable[[str, str, str], list[tuple[int, float, int]]]
Recorded = Callable[[Journal, str], list[tuple[int, float, int]]]
NOWHERE = "http://127.0.0.1:9"


def tracking_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "flray-tracking"]


def run_id_of(run_dir: Path) -> str:
    found = cursor.read(run_dir)
    assert found is not None
    assert found.run_id is not None
    return found.run_id


def test_rounds_arrive_while_training_and_the_thread_ends(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    said: list[str] = []
    sweep, journal = make_run("sweep"), make_run("trial")
    tracker = Tracker(store, said.append)
    assert tracking_threads() == []
    tracker.register(tmp_path / "trial", tmp_path / "sweep")
    tracker.register(tmp_path / "sweep")
    assert tracking_threads() == ["flray-tracking"]
    for round_ in range(20):
        journal.record_round(round_, {"loss": 1 / (round_ + 1)})
    deadline = time.monotonic() + 60
    while cursor.load(tmp_path / "trial", tracker.uri).offset < journal.path.stat().st_size:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for run in (sweep, journal):
        run.end("FINISHED")
    assert tracker.close(30) == 0
    assert tracking_threads() == []
    assert tracker.close(30) == 0
    assert said == []
    assert points(store, run_id_of(tmp_path / "trial"), "loss") == recorded(journal, "loss")
    with pytest.raises(RuntimeError, match="closed"):
        tracker.register(tmp_path / "trial")


def started(tracker: Tracker, run: Path) -> None:
    """Register a run and wait until its beginning was sent."""
    tracker.register(run)
    deadline = time.monotonic() + 60
    while cursor.load(run, tracker.uri).offset == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_many_rounds_go_in_few_requests(make_run: MakeRun, store: str, tmp_path: Path) -> None:
    journal, seen = make_run(), set()
    tracker = Tracker(store, print)
    started(tracker, tmp_path / "run")
    for round_ in range(100):
        journal.record_round(round_, {"loss": 1.0})
        time.sleep(0.02)
        seen.add(cursor.load(tmp_path / "run", tracker.uri).offset)
    assert tracker.close(30) == 0
    assert len(seen) < 20  # it keeps still for fifty times as long as it worked


def test_a_server_that_is_away_is_said_once_and_costs_the_training_nothing(
    make_run: MakeRun, tmp_path: Path
) -> None:
    said: list[str] = []
    journal = make_run()
    tracker = Tracker(NOWHERE, said.append)
    tracker.register(tmp_path / "run")
    longest = 0.0
    for round_ in range(200):
        before = time.thread_time()
        journal.record_round(round_, {"loss": 1.0})
        longest = max(longest, time.thread_time() - before)
        time.sleep(0.005)
    deadline = time.monotonic() + 30
    while not said:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    before = time.monotonic()
    assert tracker.close(20) == 201
    assert time.monotonic() - before < 10  # one more try, refused at once: not the whole timeout
    assert tracking_threads() == []
    (line,) = said
    assert line.startswith(
        f"tracking at {NOWHERE} is away: nobody answers there (connection refused)"
    )
    assert longest < 0.01
    assert cursor.read(tmp_path / "run") == cursor.Cursor(NOWHERE)


def test_retries_slow_down_and_news_do_not_hurry_them(make_run: MakeRun, tmp_path: Path) -> None:
    journal = make_run()
    tracker = Tracker(NOWHERE, lambda _: None)
    pauses = []
    tracker.register(tmp_path / "run")
    deadline = time.monotonic() + 30
    while len(pauses) < 3:
        journal.record_round(len(journal.rounds()), {"loss": 1.0})
        if tracker._retry_at and tracker._retry_at not in pauses:
            pauses.append(tracker._retry_at)
        assert time.monotonic() < deadline
        time.sleep(0.01)
    tracker.close(0)
    assert pauses[1] - pauses[0] >= 2.0
    assert pauses[2] - pauses[1] >= 4.0


def test_a_refusal_is_said_once_and_the_other_runs_go_on(
    make_run: MakeRun, store: str, tmp_path: Path, points: Points, recorded: Recorded
) -> None:
    said: list[str] = []
    good = make_run("good")
    bad = Journal(tmp_path / "bad" / "journal.jsonl")  # a journal without a start
    tracker = Tracker(store, said.append)
    for name in ("bad", "good"):
        tracker.register(tmp_path / name)
    for round_ in range(3):
        good.record_round(round_, {"loss": 1.0})
        bad.record_round(round_, {"loss": 1.0})
        time.sleep(0.05)
    assert tracker.close(60) == 3
    (line,) = said
    assert "the run's start is missing" in line
    assert f"{tmp_path / 'bad'} is no longer sent" in line
    assert points(store, run_id_of(tmp_path / "good"), "loss") == recorded(good, "loss")


def test_nothing_new_means_no_work(make_run: MakeRun, store: str, tmp_path: Path) -> None:
    make_run()
    tracker = Tracker(store, print)
    started(tracker, tmp_path / "run")
    time.sleep(0.2)
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.02
    assert tracker.close(10) == 0


def test_an_address_of_no_use_is_refused_before_any_thread(tmp_path: Path) -> None:
    with pytest.raises(FlrayError, match="tracking address 'htp://x'"):
        Tracker("htp://x", print)
    assert tracking_threads() == []
