"""Runs, sweeps, checkpoints and data in object storage: against a local S3-compatible server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray import api
from flray.cli.main import invoke
from flray.data.sources.cache import data_root, decoded, read_arrays
from flray.errors import FlrayError
from flray.files import storage
from flray.records import directory
from flray.records import mirror as lease
from flray.records.directory import checkpoints
from flray.records.mirror import Mirror
from flray.runs import runner
from flray.tracking.client import connect
from flray.tuning.trial_store import trial_folders
from tests.clusters import Gates
from tests.helpers import INLINE, Settings, StopAfter, inline, printed, told, tracked, written
from tests.messages import refused

BUCKET = "s3://flray-test"


@pytest.fixture(autouse=True)
def _bucket_of_each_test(tmp_cwd: Path, bucket: None) -> None:
    """Every test has the bucket."""


def test_a_mirror_follows_its_folder(tmp_cwd: Path) -> None:
    folder = tmp_cwd / "run"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "journal.jsonl").write_text("one\n")
    mirror = Mirror(folder, f"{BUCKET}/mirror", leave=("tune",))
    mirror.sync()
    assert storage.files(f"{BUCKET}/mirror") == {"journal.jsonl": 4}
    # A manifest whose files are not there yet is not shown to anybody who might restore it.
    (folder / "journal.jsonl").write_text("one\ntwo\n")
    (folder / "checkpoint" / "round-1.json").write_text(json.dumps({"files": {"a": ""}}))
    mirror.sync()
    assert storage.files(f"{BUCKET}/mirror") == {"journal.jsonl": 8}
    (folder / "checkpoint" / "a").write_bytes(b"abc")
    (folder / "tune").mkdir()
    (folder / "tune" / "large").write_bytes(b"abc")
    mirror.sync()
    shown = {"journal.jsonl", "checkpoint/round-1.json", "checkpoint/a"}
    assert set(storage.files(f"{BUCKET}/mirror")) == shown
    shutil.rmtree(folder / "checkpoint")
    storage.remove(f"{BUCKET}/mirror/checkpoint/a")  # by somebody else
    mirror.sync()
    assert set(storage.files(f"{BUCKET}/mirror")) == {"journal.jsonl"}
    assert storage.names(BUCKET) >= {"mirror"}


@pytest.mark.slow
def test_hosts_take_turns(tmp_cwd: Path, digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = {"uri": f"sqlite:///{tmp_cwd}/mlflow.db", "experiment": "hosts"}
    inline = {**digits, **INLINE, "rounds": 4}
    whole = runner.run({"experiment": {**inline, "name": "whole"}})
    output = f"{BUCKET}/hosts/"
    own = {"name": "turns", "output": output, "tracking": tracking}
    uri = f"{BUCKET}/hosts/turns/001"

    def on(host: str) -> None:
        monkeypatch.setenv("FLRAY_WORK", str(tmp_cwd / host))

    on("a")
    refused(runner.run, {"experiment": {**inline, **own}}, progress=StopAfter(2))
    there = storage.files(uri)
    assert {"config.yaml", "run.json", "journal.jsonl"} <= set(there)
    assert any(name.startswith("checkpoint/round-") for name in there)
    on("b")
    refused(runner.resume, directory.find("turns", output), progress=StopAfter(3))
    on("a")
    old = storage.local_cache_of(f"{BUCKET}/hosts") / "turns" / "001"
    refused(runner.resume, old)
    assert directory.find("turns", output) == old
    assert [path.name for path in old.parent.iterdir() if "old" in path.name] == ["001.old-1"]
    assert f"model SHA-256: {whole.sha256}" in printed("resume", "turns", "--output", output)
    on("b")
    # It is finished: nothing is run.
    assert runner.resume(directory.find("turns", output)).sha256 == whole.sha256
    storage.download(uri, tmp_cwd / "copy")
    assert directory.read(tmp_cwd / "copy")["sha256"] == whole.sha256
    assert (tmp_cwd / "copy" / "figures" / "curves.png").is_file()
    (run,) = tracked(**tracking)
    assert run.info.status == "FINISHED"
    for name in ("train/loss", "time/round"):
        history = connect(tracking["uri"]).get_metric_history(run.info.run_id, name)
        assert [point.step for point in history] == [1, 2, 3, 4]
    assert storage.names(f"{BUCKET}/hosts/turns") == {"001"}  # no lease is left
    on("c")  # does not take the number of a run it has never seen
    assert directory.create(output, "turns").name == "002"


@pytest.mark.slow
def test_no_living_worker_is_joined(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_INTERVAL_S", 0.3)
    uri, lines = f"{BUCKET}/leased/run/001", list[str]()
    mine = lease.Lease(uri, lines.append)
    mine.take()
    mine.keep(str)
    refused(lease.Lease(uri, lines.append).take)
    mine.give_back()
    again = lease.Lease(uri, lines.append)
    again.take()
    taken: list[Exception] = []
    again.keep(taken.append)
    note = {"token": "other", "beat": "1", "host": "far-away", "pid": 1}
    storage.write(f"{uri}.lease", json.dumps(note).encode())
    end = time.monotonic() + 300
    while not taken and time.monotonic() < end:
        time.sleep(0.05)
    assert str(taken[0]) == f"{uri}: process 1 on far-away works on it now"
    again.give_back()  # and leaves the other's alone
    monkeypatch.setattr(lease, "LAPSE_S", 4.0)  # S3's times are whole seconds
    storage.write(f"{uri}.lease", json.dumps(note).encode())
    lease.Lease(uri, lines.append).take()
    assert "was worked on by process 1 on far-away; continuing when it has not" in lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize("lapsed", [False, True])
def test_one_of_two_workers_gets_it(lapsed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_INTERVAL_S", 0.2)
    uri = f"{BUCKET}/raced-{lapsed}/run/001"
    if lapsed:  # both find a dead worker's lease
        storage.write(f"{uri}.lease", b'{"token": "other", "beat": "1"}')
    has_read, may_write, answers = threading.Event(), threading.Event(), list[str]()

    class Aged(lease.Lease):
        """Finds that the dead worker's has lapsed."""

        def _read(self) -> Any:
            self.found = super()._read()
            return self.found

        def _age(self) -> float:
            return 2 * lease.LAPSE_S if self.found[0].get("token") == "other" else 0.0

    class Slow(Aged):
        def _read(self) -> Any:
            found = super()._read()
            has_read.set()
            assert may_write.wait(60)
            return found

    def work() -> None:
        try:
            Slow(uri, str).take()
            answers.append("taken")
        except FlrayError as error:
            answers.append(str(error))

    slow = threading.Thread(target=work)
    slow.start()
    assert has_read.wait(60)
    fast = Aged(uri, str)
    fast.take()
    fast.keep(str)
    may_write.set()
    slow.join(60)
    (answer,) = answers
    assert f"is being worked on by process {os.getpid()} on" in answer
    fast.renew()  # it is still the fast one's
    fast.give_back()
    assert storage.read(f"{uri}.lease") is None


def test_storage_that_cannot_be_used_is_named(tmp_cwd: Path, digits: Settings) -> None:
    lines: list[str] = []
    mine = lease.Lease(f"file://{tmp_cwd}/001", lines.append)
    mine.take()
    mine.renew()
    mine.give_back()
    (line,) = lines
    assert "cannot keep a second worker from the run" in line
    refused(lease.Lease("s3://no-such-bucket/run/001", str).take)
    (tmp_cwd / "file").write_text("x")
    refused(Mirror(tmp_cwd, "s3://no-such-bucket/x").sync)
    refused(storage.files, "nowhere://bucket/x")
    with_keys = {**digits, "output": "s3://key:hunter2@bucket/x"}
    caught = refused(runner.run, {"experiment": with_keys}, ["resources.executor=inline"])
    assert "hunter2" not in str(caught)


def test_a_worker_who_lost_the_run_stops_and_writes_nothing_there(
    tmp_cwd: Path, digits: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_INTERVAL_S", 1.0)
    monkeypatch.setattr(lease, "MIRROR_INTERVAL_S", 0.01)  # this thread sees it first
    uri = f"{BUCKET}/lost/lost/001"

    class Rob(StopAfter):
        def round(self, finished: Any, metric: str) -> None:
            if finished.number >= 2:
                storage.write(f"{uri}.lease", b'{"token": "other", "host": "far-away", "pid": 1}')
            time.sleep(0.1)

    progress = Rob(0)
    own = {"name": "lost", "rounds": 10_000, "output": f"{BUCKET}/lost"}
    refused(runner.run, {"experiment": {**digits, **INLINE, **own}}, progress=progress)
    (line,) = progress.find("far-away")
    assert line.startswith(f"{uri}: process 1 on far-away works on it now; this process stops")
    pushed = json.loads(storage.read(f"{uri}/run.json") or b"")
    assert pushed["status"] == "running" and storage.read(f"{uri}.lease") is not None


def test_a_copy_that_was_cut_off_is_not_taken_for_the_whole(tmp_cwd: Path) -> None:
    uri = f"{BUCKET}/cut/whole/001"
    storage.write(f"{uri}/sweep.json", b'{"uid": "a", "status": "running", "versions": {}}')
    storage.write(f"{uri}/trials/0001/run.json", b'{"status": "finished"}')
    # where a file is a folder too, copying stops in the middle
    storage.write(f"{uri}/trials/0001/run.json/x", b"")
    for _ in range(2):
        refused(directory.find, "whole", f"{BUCKET}/cut")
        assert not (storage.local_cache_of(f"{BUCKET}/cut") / "whole" / "001").exists()
    storage.remove(f"{uri}/trials/0001/run.json/x")
    found = directory.find("whole", f"{BUCKET}/cut")
    assert directory.read(found)["uid"] == "a"
    assert (found / "trials" / "0001" / "run.json").is_file()


@pytest.mark.slow
def test_plugins_that_came_with_a_run_are_not_executed(
    tmp_cwd: Path, digits: Settings, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_cwd / "own.py").write_text(
        "from flray import register_algorithm\nfrom flray.algorithms import Algorithm\n"
        "@register_algorithm('bucket-own')\nclass Own(Algorithm):\n    'FedAvg.'\n"
    )
    own = {"name": "code", "output": f"{BUCKET}/code", "plugins": ["own.py"]}
    refused(runner.run, inline(digits, algorithm="bucket-own", **own), progress=StopAfter(2))
    # Whoever may write to the bucket plants a file beside the settings and names it there.
    uri, mark = f"{BUCKET}/code/code/001", tmp_cwd / "executed"
    there = ["code", "--output", f"{BUCKET}/code"]
    storage.write(f"{uri}/evil.py", f"open({str(mark)!r}, 'w')".encode())
    settings = (storage.read(f"{uri}/config.yaml") or b"").decode()
    monkeypatch.setattr(lease, "LAPSE_S", 4.0)
    monkeypatch.setenv("FLRAY_WORK", str(tmp_cwd / "another-machine"))
    work = storage.local_cache_of(f"{BUCKET}/code") / "code" / "001"
    for named in ("evil.py", str(work / "evil.py")):
        planted = settings.replace(str(tmp_cwd / "own.py"), named)
        assert planted != settings
        storage.write(f"{uri}/config.yaml", planted.encode())
        shutil.rmtree(storage.local_cache_of(f"{BUCKET}/code"), ignore_errors=True)
        (error,) = told(2, "resume", *there).splitlines()
        assert "experiment.plugins names" in error and "--plugin FILE.py" in error
        for command in (("sync", *there, "--uri", store), ("report", *there)):
            assert told(0, *command) == ""
        said = told(2, "resume", *there, "--plugin", str(work / "evil.py"))
        assert "a file in the run's own folder" in said
    assert invoke(["resume", *there, "--plugin", "own.py"]) == 0 and not mark.exists()


@pytest.mark.slow  # for its retries
def test_unreached_bucket(digits: Settings, tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow asks for the region of a bucket before anything else."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    refused(runner.run, {"experiment": {**digits, "output": "s3://bucket/x"}})
    assert list(tmp_cwd.iterdir()) == []


def test_data_are_fetched_once_and_checked(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded(tmp_cwd / "data" / "toy", lambda _: {"x": np.arange(12, dtype=np.uint8)})
    Mirror(tmp_cwd / "data", f"{BUCKET}/data").sync()
    monkeypatch.setenv("FLRAY_DATA", f"{BUCKET}/data")
    assert read_arrays(data_root() / "toy", "toy")["x"].tolist() == list(range(12))
    folder = data_root() / "toy"
    before = folder.stat().st_ino
    assert folder.stat().st_mode == (tmp_cwd / "data").stat().st_mode
    read_arrays(folder, "toy")
    assert folder.stat().st_ino == before
    (folder / "x.npy").write_bytes(b"x" * (folder / "x.npy").stat().st_size)
    refused(read_arrays, folder, "toy")
    shutil.rmtree(folder)  # as the message says
    assert read_arrays(folder, "toy")["x"].tolist() == list(range(12))
    refused(read_arrays, data_root() / "other", "other")


def test_files_may_vanish_during_a_fetch(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a sweep that still runs removed an old checkpoint after the files were listed."""
    uri, listed = f"{BUCKET}/vanishing", storage.files
    for name in ("a", "b"):
        storage.write(f"{uri}/{name}", name.encode())

    def files(address: str) -> dict[str, int]:
        found = listed(address)
        storage.remove(f"{uri}/b")
        return found

    monkeypatch.setattr(storage, "files", files)
    assert storage.fetch(uri, tmp_cwd / "copy")
    assert [path.name for path in (tmp_cwd / "copy").iterdir()] == ["a"]


SWEEP = "import sys; from flray import api; api.tune(sys.argv[1])"


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_killed_sweep_goes_on_from_the_bucket_on_another_machine(
    tmp_cwd: Path, digits: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = Gates(tmp_cwd, [4])
    experiment = {**digits, **INLINE, "rounds": 5, "name": "swept"}
    whole = runner.run({"experiment": {**experiment, "name": "whole", "algorithm": "local"}})
    held = {"algorithm": "held", "plugins": [str(tmp_cwd / "held.py")]}
    own, space = {**experiment, **held, "output": f"{BUCKET}/sweeps"}, {"grid": [0.05]}
    file = written(own, space={"local.lr": space})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SWEEP, file]
    process = subprocess.Popen(command, start_new_session=True, env=environment)
    storage_folder = f"{BUCKET}/sweeps/swept/001/tune"
    try:
        while not (gates.reached(4) and checkpoints(storage_folder, "0001")):
            assert process.poll() is None
            time.sleep(0.3)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    gates.wait_until_gone(4)  # Ray ends the trial's process when it misses the driver
    gates.open(4)
    monkeypatch.setattr(lease, "LAPSE_S", 4.0)
    monkeypatch.setenv("FLRAY_WORK", str(tmp_cwd / "another-machine"))
    found = directory.find("swept", f"{BUCKET}/sweeps")
    result = api.resume_sweep(found, plugins=[str(tmp_cwd / "held.py")])
    assert list(result.results["sha256"]) == [whole.sha256]
    assert {"results.csv", "summary.csv"} <= set(storage.files(f"{BUCKET}/sweeps/swept/001"))

    # A third machine, which has never seen it, takes the trial over from the bucket: nothing is run.
    monkeypatch.setenv("FLRAY_WORK", str(tmp_cwd / "third-machine"))
    monkeypatch.setattr("flray.tuning.tuner.run_trials", None)
    again = api.tune(file)
    assert again.folder.name == "002" and list(again.results["sha256"]) == [whole.sha256]
    (trial,) = trial_folders(again.folder)
    assert trial.identity["taken_over"] == "swept/001/0001"
    (checkpoint,) = checkpoints(f"{BUCKET}/sweeps/swept/002/tune", "0001")
    assert checkpoint.round == 5
