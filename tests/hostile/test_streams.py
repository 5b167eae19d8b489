"""Readers, services and servers that go or hang: a run is stopped with care, a command ends in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import flray
from tests.hostile.values import GOOD
from tests.messages import mistyped

PATIENCE = 300  # seconds for a process on a busy machine


def write(**experiment: object) -> None:
    content = {"experiment": {**GOOD["experiment"], "model": "linear", "subset": 60, **experiment}}
    Path("x.yaml").write_text(yaml.safe_dump(content))


def test_a_locale_that_lacks_a_sign_gets_a_question_mark(tmp_path: Path) -> None:
    kept = Path(__file__).parents[2] / "search_spaces" / "quickstart.results.csv"
    words = [sys.executable, "-m", "flray", "report", str(kept), "--to", str(tmp_path)]
    locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(words, env=locale, capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert b" ? " in done.stdout, "in place of ±"


@pytest.mark.slow
def test_a_reader_that_goes_interrupts_a_run(tmp_cwd: Path) -> None:
    write(rounds=100_000, name="long")
    command = [sys.executable, "-m", "flray", "run", "x.yaml"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout.readline()
        run.stdout.close()
        said = run.stderr.read().decode()
        code = run.wait(PATIENCE)
    assert code == 129, said
    assert said.strip() == "stopped; go on with: flray resume runs/long/001"
    assert json.loads(Path("runs/long/001/run.json").read_text())["status"] == "interrupted"


@pytest.mark.slow
def test_closed_streams_are_as_good_as_none(tmp_cwd: Path) -> None:
    write(rounds=1, name="short")
    command = f"exec {sys.executable} -m flray run x.yaml >&- 2>&- <&-"
    assert subprocess.run(["bash", "-c", command], timeout=PATIENCE).returncode == 0
    assert json.loads(Path("runs/short/001/run.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_a_limit_of_file_sizes_is_one_line(tmp_cwd: Path) -> None:
    write(rounds=1, name="small")
    words = ["bash", "-c", f"ulimit -f 1; exec {sys.executable} -m flray run x.yaml"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1 and ended.stderr.startswith("flray: no space left")


def test_a_damaged_partition_is_told_before_the_rounds(tmp_cwd: Path) -> None:
    write(rounds=1, name="done")
    folder = flray.run("x.yaml").folder
    trial = folder / "trials" / "0001"  # as in a sweep's folder
    trial.mkdir(parents=True)
    for damaged in (trial, folder):
        (damaged / "partition.json").write_text("[1]")
        before = (folder / "journal.jsonl").read_bytes()
        mistyped("resume", "done", "rounds=3")
        assert (folder / "journal.jsonl").read_bytes() == before
        (damaged / "partition.json").unlink()
