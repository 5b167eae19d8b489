"""What `flray doctor` tells, and that a Ray of its own leaves no secret and no open port behind."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flray.cli import doctor
from flray.cli.main import invoke
from flray.data.sources.cache import decoded
from tests.helpers import python

SECRET = "hunter2-0123"


def test_a_readable_token_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text(SECRET)
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    found = list(doctor.diagnose())
    words = "torch", "ray", "mlflow", "CPUs", "GPUs", "data folder"
    assert all(word in str(found) for word in words)
    assert ("WARNING", f"others can read {token}: chmod 600 {token}") in found
    assert SECRET not in str(found)
    token.chmod(0o600)
    assert "WARNING" not in dict(doctor.diagnose())


def test_sets_to_be_fetched_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    for folder, still in (("mnist-m", "mnist, flray data get usps"), ("mnist", "usps")):
        decoded(tmp_path / folder, lambda _: {})
        absent = dict(doctor.diagnose())["data to be fetched"]
        assert absent == f"flray data get digits5-local, flray data get {still}"


def test_open_folders_of_ray_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    tmp_path.chmod(0o777)
    found = list(doctor.diagnose())
    assert ("Ray's sessions", f"{tmp_path}/flray-*: each in a folder of this user alone") in found
    warning = next(text for name, text in found if name == "WARNING" and str(tmp_path) in text)
    assert f"chmod o-w {tmp_path}" in warning
    tmp_path.chmod(0o1777)
    assert str(tmp_path) not in " ".join(t for n, t in doctor.diagnose() if n == "WARNING")


SESSIONS = """
import json, os, subprocess, sys
import flray.tuning.tuner  # has imported ray long before a session begins
import psutil
from flray.ray_session import ray_session

os.environ["RAY_AUTH_MODE"] = "disabled"
before = dict(os.environ)
with ray_session(None):
    import ray

    actor = ray.remote(type("Actor", (), {"answer": lambda self: 1})).remote()
    ray.get(actor.answer.remote(), timeout=60)
    call = f"import ray; ray.init({ray.get_runtime_context().gcs_address!r}); ray.cluster_resources()['CPU']"
    own = os.environ["RAY_AUTH_TOKEN"]
    tried = [subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.PIPE, text=True, env={
        **os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else Ray asks at the machine's other address
        "RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "token" if token else "disabled"})
        for token in ("0" * 64, "", own)]  # all at once: Ray tries for 20 s before it says that it was refused
    said = [process.communicate()[1] for process in tried]
    me = psutil.Process()
    family = {me.pid: me} | {child.pid: child for child in me.children(recursive=True)}
    doors = [(process.name(), door.laddr.ip.removeprefix("::ffff:")) for process in family.values()
             for door in process.net_connections("tcp") if door.status == psutil.CONN_LISTEN]
after_local = dict(os.environ)
os.environ["RAY_AUTH_MODE"] = "token"
before_joining = dict(os.environ)
with ray_session(sys.argv[1]):
    cpus = ray.cluster_resources()["CPU"]
print(json.dumps({
    "tried": ["in" if process.returncode == 0 else "refused" if "AuthenticationError" in text else text
              for process, text in zip(tried, said)],
    "doors": doors, "local": after_local == before,
    "joined": before_joining == dict(os.environ), "cpus": cpus}))
"""


@pytest.mark.slow
def test_a_ray_of_our_own_is_shut_to_others_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """It listens on this machine only, asks for a token whatever the environment says, and is forgotten afterwards:
    in the same process a cluster can be joined that has a token of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["HOME"] = str(tmp_path)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("f" * 64)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    head = ["start", "--head", f"--port={port}", "--num-cpus=3", "--block"]
    silent = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    command = [Path(sys.executable).with_name("ray"), *head, "--include-dashboard=false"]
    cluster = subprocess.Popen(command, env={**environment, "RAY_AUTH_MODE": "token"}, **silent)
    try:
        done = python(SESSIONS, f"127.0.0.1:{port}", env=environment)
    finally:
        members = psutil.Process(cluster.pid).children(recursive=True)
        cluster.terminate()
        cluster.wait(60)
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    found = json.loads(done.stdout)
    assert found["tried"] == ["refused", "refused", "in"]
    assert {"gcs_server", "raylet", "ray::Actor"} <= {name for name, _ in found["doors"]}
    assert {address for _, address in found["doors"]} == {"127.0.0.1"}
    assert (found["local"], found["joined"], found["cpus"]) == (True, True, 3.0)
    assert (tmp_path / ".ray" / "auth_token").read_text() == "f" * 64
    assert "oken" not in done.stderr  # nothing a user would have to read


@pytest.mark.slow
def test_the_gpu_s_check_runs_on_a_cpu_too_and_ends_with_1_if_anything_fails(
    ray_here: dict[str, float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "ON_CPU", ("lenet", 64, (2,)))
    code = invoke(["doctor", "--gpu"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0 and all(line.startswith("PASS  ") for line in lines), lines
    assert "sees no GPU here" in lines[0]
    assert "(no actor, no actor, again, 2 actors)" in "".join(lines)
    assert sum("images/s" in line for line in lines) == 3
    monkeypatch.setattr(doctor, "ON_CPU", ("lenet", 64, ()))
    monkeypatch.setattr(doctor, "alike", lambda digests: (False, "they differ"))
    assert invoke(["doctor", "--gpu"]) == 1
    assert "FAIL  any number of actors learns the same: they differ" in capsys.readouterr().out
    assert invoke(["doctor", "--gpu", "--json"]) == 1
    failed = json.loads(capsys.readouterr().out)
    assert not all(one["passed"] for one in failed) and {*failed[0]} == {"check", "passed", "found"}


def test_other_digests_are_a_failure() -> None:
    assert doctor.alike({"first": "a", "second": "a"})[0]
    assert not doctor.alike({"first": "a", "second": "b"})[0]
