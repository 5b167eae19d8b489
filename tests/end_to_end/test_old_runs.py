"""What an older flray began goes on: names, forms and bits of the files on disk stay, whatever the code looks like.

tests/fixtures holds a run (SCAFFOLD, 4 rounds) and a sweep (FedSKC and LG-Mix, 5 rounds) as flray 0.1.0 left them when
it was killed: the journals have one or two rounds that the last checkpoint, of round 2, lacks. Tune's own state,
which no resume reads, is left out. `unbroken.json` has what the same settings came to with no kill. Only what users
hold in their hands is used here: the command line and the files. Where a test fails the code is to be mended, and the
fixtures stay, for there are runs like them on people's disks.
"""

import csv
import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import steady

FIXTURES = Path(__file__).parents[1] / "fixtures"
UNBROKEN: dict[str, Any] = json.loads((FIXTURES / "unbroken.json").read_text())
NO_PORTABLE_BITS = r"experiment\.resources\.bits: found portable; (this CPU|in this process)"
"""What is said on a CPU that has no portable bits, or other ones than those known."""


def flray(here: Path, *arguments: str) -> None:
    """Run a command in a process of its own: portable bits have to be asked for before it imports numpy or torch."""
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    how |= {"cwd": here, "stdin": subprocess.DEVNULL, "timeout": 300}
    done = subprocess.run([sys.executable, "-m", "flray", *arguments], **how)
    if done.returncode == 2 and re.search(NO_PORTABLE_BITS, done.stdout):
        pytest.skip("this CPU has no portable bits")
    assert done.returncode == 0, done.stdout


def copied(here: Path, fixture: str, name: str) -> Path:
    return Path(shutil.copytree(FIXTURES / fixture, here / "runs" / name / "001"))


def rounds(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return all rounds in a journal, in its order, with what no clock measured."""
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    rounds = [event for event in events if event["type"] == "round"]
    return [(event["round"], steady(event["metrics"])) for event in rounds]


def assert_as_unbroken(folder: Path, wanted: dict[str, Any]) -> None:
    """Assert that a run or trial is finished, with every round once, and the numbers and bits of one nobody killed."""
    run, history = json.loads((folder / "run.json").read_text()), rounds(folder)
    assert run["status"] == "finished"
    assert [number for number, _ in history] == [int(number) for number in wanted["rounds"]]
    assert [set(metrics) for _, metrics in history] == [*map(set, wanted["rounds"].values())]
    # Other versions of the libraries may have other last bits, whatever flray does.
    versions = {name: metadata.version(name).partition("+")[0] for name in UNBROKEN["versions"]}
    if versions == UNBROKEN["versions"]:
        assert dict(history) == {int(n): metrics for n, metrics in wanted["rounds"].items()}
        assert run["sha256"] == wanted["sha256"]


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    folder = copied(tmp_path, "begun_run", "begun")
    before = (folder / "journal.jsonl").read_bytes()
    assert [number for number, _ in rounds(folder)] == [1, 2, 3]
    flray(tmp_path, "resume", "begun")
    assert_as_unbroken(folder, UNBROKEN["run"])
    assert (folder / "journal.jsonl").read_bytes().startswith(before)


@pytest.mark.slow
def test_a_sweep(tmp_path: Path) -> None:
    folder = copied(tmp_path, "begun_sweep", "begun-sweep")
    trials = {name: folder / "trials" / name for name in UNBROKEN["trials"]}
    before = {name: (trial / "journal.jsonl").read_bytes() for name, trial in trials.items()}
    recorded = {name: [number for number, _ in rounds(trial)] for name, trial in trials.items()}
    assert recorded == {"0001": [1, 2, 3, 4, 5], "0002": [1, 2, 3, 4]}
    flray(tmp_path, "resume", "begun-sweep")
    assert json.loads((folder / "sweep.json").read_text())["status"] == "finished"
    for name, trial in trials.items():
        assert_as_unbroken(trial, UNBROKEN["trials"][name])
        assert (trial / "journal.jsonl").read_bytes().startswith(before[name])
    with (folder / "results.csv").open(newline="") as file:
        rows = {row["trial"]: row for row in csv.DictReader(file)}
    for name, method in (("0001", "skc"), ("0002", "mix")):
        row = rows.pop(name)
        found = [row[key] for key in ("arms.method", "seed", "status", "rounds", "sha256")]
        digest = json.loads((trials[name] / "run.json").read_text())["sha256"]
        assert found == [method, "3", "finished", "5", digest]
    assert not rows
