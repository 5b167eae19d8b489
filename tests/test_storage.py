"""Runs, sweeps, checkpoints and data in object storage: against a local S3-compatible server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flray import rundir, running, storage, tuning
from flray.cli import invoke
from flray.data.cache import data_root, read_arrays, write_arrays
from flray.errors import DataError, FlrayError
from flray.tuning.trials import checkpoints, next_session

BUCKET = "s3://flray-test"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/flray-test", method="PUT"), timeout=5).read()
            break
        except OSError:
            assert process.poll() is None and time.monotonic() < end, "the S3 server does not start"
            time.sleep(0.2)
    yield url
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def bucket(server: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "one", "AWS_SECRET_ACCESS_KEY": "two-secret",
                        "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
                        "FLRAY_WORK": str(here / "work")}.items():
        monkeypatch.setenv(name, value)


def test_a_mirror_follows_its_folder(here: Path) -> None:
    folder = here / "run"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "journal.jsonl").write_text("one\n")
    mirror = storage.Mirror(folder, f"{BUCKET}/mirror", leave=("tune",))
    mirror.push()
    assert storage.files(f"{BUCKET}/mirror") == {"journal.jsonl": 4}
    # A manifest whose files are not there yet is not shown to anybody who might restore it.
    (folder / "journal.jsonl").write_text("one\ntwo\n")
    (folder / "checkpoint" / "round-1.json").write_text(json.dumps({"files": {"a": ""}}))
    mirror.push()
    assert storage.files(f"{BUCKET}/mirror") == {"journal.jsonl": 8}
    (folder / "checkpoint" / "a").write_bytes(b"abc")
    (folder / "tune").mkdir()
    (folder / "tune" / "large").write_bytes(b"abc")
    mirror.push()
    assert set(storage.files(f"{BUCKET}/mirror")) == {"journal.jsonl", "checkpoint/round-1.json", "checkpoint/a"}
    shutil.rmtree(folder / "checkpoint")
    mirror.push()
    assert set(storage.files(f"{BUCKET}/mirror")) == {"journal.jsonl"}
    assert storage.names(BUCKET) >= {"mirror"}


def test_a_run_is_resumed_from_the_bucket_on_another_machine(
        here: Path, digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    inline = {**digits, "rounds": 4, "resources": {"executor": "inline"}}
    whole = running.run({"experiment": {**inline, "name": "whole"}})
    content = {"experiment": {**inline, "name": "moved", "output": f"{BUCKET}/runs/"}}

    class Stop:
        def begin(self, world: Any, done: int) -> None: ...
        def say(self, line: str) -> None: ...
        def end(self) -> None: ...
        def round(self, finished: Any, metric: str) -> None:
            if finished.number == 3:
                raise KeyboardInterrupt

    with pytest.raises(running.InterruptedRunError):
        running.run(content, progress=Stop())
    there = storage.files(f"{BUCKET}/runs/moved/001")
    assert {"config.yaml", "run.json", "journal.jsonl"} <= set(there)
    assert any(name.startswith("checkpoint/round-") for name in there)
    monkeypatch.setenv("FLRAY_WORK", str(here / "another-machine"))
    assert invoke(["resume", "moved", "--output", f"{BUCKET}/runs"]) == 0
    assert f"model SHA-256: {whole.sha256}" in capsys.readouterr().out
    storage.download(f"{BUCKET}/runs/moved/001", here / "copy")
    assert rundir.read(here / "copy")["sha256"] == whole.sha256
    assert (here / "copy" / "figures" / "curves.png").is_file()
    # A third machine does not take the number of a run it has never seen.
    monkeypatch.setenv("FLRAY_WORK", str(here / "third"))
    assert rundir.create(f"{BUCKET}/runs", "moved").name == "002"


def test_keys_do_not_belong_into_addresses(digits: dict[str, Any]) -> None:
    with pytest.raises(FlrayError, match=r"s3://\*\*\*:\*\*\*@bucket/x: keep keys out") as caught:
        running.run({"experiment": {**digits, "output": "s3://key:hunter2@bucket/x"}}, ["resources.executor=inline"])
    assert "hunter2" not in str(caught.value)
    with pytest.raises(FlrayError, match="no such kind of storage"):
        storage.files("nowhere://bucket/x")


def test_storage_that_cannot_be_used_is_named(here: Path) -> None:
    (here / "file").write_text("x")
    with pytest.raises(FlrayError, match="s3://no-such-bucket/x: the storage cannot be used"):
        storage.Mirror(here, "s3://no-such-bucket/x").push()


def test_data_are_fetched_once_and_checked(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"x": np.arange(12, dtype=np.uint8)}
    write_arrays(here / "data" / "toy", arrays)
    storage.Mirror(here / "data", f"{BUCKET}/data").push()
    monkeypatch.setenv("FLRAY_DATA", f"{BUCKET}/data")
    assert read_arrays(data_root() / "toy", "toy")["x"].tolist() == list(range(12))
    folder = data_root() / "toy"
    before = folder.stat().st_ino
    read_arrays(folder, "toy")
    assert folder.stat().st_ino == before
    (folder / "x.npy").write_bytes(b"x" * (folder / "x.npy").stat().st_size)
    with pytest.raises(DataError, match="was altered"):
        read_arrays(folder, "toy")
    with pytest.raises(DataError, match=f"data set other is not at {BUCKET}/data/other; run `flray data get other`"):
        read_arrays(data_root() / "other", "other")


SWEEP = """
import sys
from flray import tuning
tuning.tune(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_sweep_goes_on_from_the_bucket_on_another_machine(
        here: Path, digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = {**digits, "rounds": 8, "name": "swept", "resources": {"executor": "inline"},
                  "local": {"epochs": 3, "batch_size": 8, "lr": 0.02}}
    whole = running.run({"experiment": {**experiment, "name": "whole"}})
    content = {"experiment": {**experiment, "output": f"{BUCKET}/sweeps"}, "space": {"local.lr": {"grid": [0.02]}}}
    (here / "sweep.yaml").write_text(yaml.safe_dump(content))
    process = subprocess.Popen([sys.executable, "-c", SWEEP, "sweep.yaml"], start_new_session=True,
                               env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    storage_folder = f"{BUCKET}/sweeps/swept/001/tune"
    try:
        end = time.monotonic() + 120
        while not (found := checkpoints(storage_folder, "0001")) and time.monotonic() < end:
            assert process.poll() is None
            time.sleep(0.3)
        assert found and found[0].round < 8
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    monkeypatch.setenv("FLRAY_WORK", str(here / "another-machine"))
    assert next_session(storage_folder) == "002"
    result = tuning.resume(rundir.find("swept", f"{BUCKET}/sweeps"))
    assert list(result.results["sha256"]) == [whole.sha256]
    assert {"results.csv", "summary.csv"} <= set(storage.files(f"{BUCKET}/sweeps/swept/001"))
