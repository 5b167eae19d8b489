"""The background thread neither blocks training nor outlives its tracker."""

import functools
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flray.records.journal import JOURNAL, Journal
from flray.tracking import background, client
from flray.tracking.background import Tracker
from tests.messages import refused
from tests.tracking.helpers import Sending, recorded, tracking_threads, wait

NOWHERE = "http://127.0.0.1:9"


def test_rounds_arrive_while_training_and_the_thread_ends(to: Sending) -> None:
    said: list[str] = []
    sweep, journal = to.start("sweep"), to.start("trial")
    tracker = Tracker(to.uri, said.append)
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
        assert tracker.close(30) == 0
        assert tracking_threads() == []
    assert said == []
    assert to.points("loss", "trial") == recorded(journal, "loss")
    refused(tracker.register, trial)


def test_many_rounds_go_in_few_requests_and_nothing_new_is_no_work(
    to: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rests for many times as long as it worked: here until it is closed."""
    assert background._REST >= 100 and background._LONGEST_REST > 1
    monkeypatch.setattr(background, "_REST", 1e9)
    monkeypatch.setattr(background, "_LONGEST_REST", 1e9)
    journal, run = to.start(), to.folder / "run"
    tracker = Tracker(to.uri, print)
    tracker.register(run)
    wait(lambda: client.load_cursor(run, tracker.uri).offset > 0)
    sent = client.load_cursor(run, tracker.uri).offset
    (thread,) = (one for one in threading.enumerate() if one.name == "flray-tracking")
    assert thread.ident is not None
    its_time = functools.partial(time.clock_gettime, time.pthread_getcpuclockid(thread.ident))

    def rests() -> bool:
        before = its_time()
        time.sleep(0.5)
        return its_time() == before

    wait(rests)
    for round_ in range(50):
        journal.record_round(round_, {"loss": 1.0})
    wait(rests)
    assert client.load_cursor(run, tracker.uri).offset == sent
    assert tracker.close(30) == 0
    assert to.points("loss") == recorded(journal, "loss")


def test_a_server_that_is_away_is_said_once_and_costs_the_training_nothing(
    to: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retries slow down, and new rounds do not hurry them."""
    monkeypatch.setattr(background, "_FIRST_PAUSE", 0.25)
    said: list[str] = []
    journal = to.start()
    tracker = Tracker(NOWHERE, said.append)
    tracker.register(to.folder / "run")
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
    assert tracker.close(86_400) == len(journal.rounds()) + 1
    assert tracking_threads() == []
    (line,) = said
    assert line.startswith(
        f"tracking at {NOWHERE} is away: nobody answers there (connection refused)"
    )
    assert statistics.median(costs) < 0.1  # a few pay for a collection of garbage
    assert retries[1] - retries[0] >= 0.5 and retries[2] - retries[1] >= 1.0
    assert client.read_cursor(to.folder / "run") == client.Cursor(NOWHERE)


def test_a_refusal_is_said_once_and_the_other_runs_go_on(to: Sending) -> None:
    said: list[str] = []
    good = to.start("good")
    bad = Journal(to.folder / "bad" / "journal.jsonl")  # a journal without a start
    tracker = Tracker(to.uri, said.append)
    for name in ("bad", "good"):
        tracker.register(to.folder / name)
    for round_ in range(3):
        good.record_round(round_, {"loss": 1.0})
        bad.record_round(round_, {"loss": 1.0})
    assert tracker.close(60) == 3
    (line,) = said
    assert "the run's start is missing" in line
    assert f"{to.folder / 'bad'} is no longer sent" in line
    assert to.points("loss", "good") == recorded(good, "loss")


@pytest.mark.parametrize("made", [os.mkdir, os.mkfifo])
def test_a_journal_that_cannot_be_read_is_said_once_and_the_other_runs_go_on(
    made: Callable[[Path], None], to: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncaught: list[object] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    said: list[str] = []
    to.start("spoiled").close()
    other = to.start("other")
    (to.folder / "spoiled" / JOURNAL).unlink()
    made(to.folder / "spoiled" / JOURNAL)
    tracker = Tracker(to.uri, said.append)
    for name in ("spoiled", "other"):
        tracker.register(to.folder / name)
    other.record_round(1, {"loss": 1.0})
    assert tracker.close(60) == 0
    assert not uncaught and to.points("loss", "other") == recorded(other, "loss")
    (line,) = said
    assert line.endswith("its values stay in journal.jsonl") and "\n" not in line
