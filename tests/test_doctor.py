"""What `flray doctor` tells, and that no secret and no open door is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flray import doctor, rundir
from flray.errors import FlrayError
from flray.loading import load
from flray.tracking.connection import redacted, resolve_uri
from flray.tracking.sender import MlflowSender

SECRET = "hunter2-0123"


@pytest.mark.parametrize(("uri", "shown"), [
    (f"http://ann:{SECRET}@host:5000/x", "http://ann:***@host:5000/x"),
    (f"postgresql+psycopg://ann:{SECRET}@db/mlflow", "postgresql+psycopg://ann:***@db/mlflow"),
    (f"http://:{SECRET}@host", "http://:***@host"),
    (f"http://ann:{SECRET}@home@host/", "http://ann:***@host/"),
    (f"mysql://ann:a/{SECRET}@host/db", "mysql://ann:***@host/db"),
    ("http://host:5000", "http://host:5000"), ("sqlite:////a/b.db", "sqlite:////a/b.db"), ("local.lr", "local.lr")])
def test_passwords_are_taken_out_of_addresses(uri: str, shown: str) -> None:
    assert redacted(uri) == shown


def test_no_password_in_files_parameters_or_messages(here: Path, digits: dict[str, Any],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"http://ann:{SECRET}@127.0.0.1:1"
    config = load({"experiment": {**digits, "tracking": {"uri": uri}, "rounds": 1,
                                  "resources": {"executor": "inline"}}})
    from flray.running import start

    lines: list[str] = []

    class Lines:
        def begin(self, world: Any, done: int) -> None: ...
        def round(self, finished: Any, metric: str) -> None: ...
        def end(self) -> None: ...
        def say(self, line: str) -> None:
            lines.append(line)

    result = start(config, progress=Lines())
    files = [p for p in here.rglob("*") if p.is_file()]
    assert {"config.yaml", "journal.jsonl", "run.json", "tracking.json"} <= {p.name for p in files}
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
    assert any("http://ann:***@127.0.0.1:1" in line for line in lines)
    assert SECRET not in "\n".join(lines)
    # The whole address comes from the environment when the run is taken up again.
    kept = load(result.folder / rundir.CONFIG).experiment.tracking.uri
    assert kept == "http://ann:***@127.0.0.1:1"
    with pytest.raises(FlrayError, match="set MLFLOW_TRACKING_URI"):
        resolve_uri(kept)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert resolve_uri(kept) == uri
    assert MlflowSender(result.folder, kept).uri == kept


def test_an_open_door_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = ("import socket, sys\ns = socket.create_server((sys.argv[1], 0))\n"
             "print(s.getsockname()[1], flush=True)\nsys.stdin.read()")
    process = subprocess.Popen([sys.executable, "-c", serve, "0.0.0.0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        monkeypatch.setattr(doctor, "SERVICES", (Path(sys.executable).name,))
        found = dict(doctor.report())
        assert f"0.0.0.0:{port}" in found["WARNING"]
    finally:
        process.kill()
        process.wait()


def test_a_token_others_can_read_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text(SECRET)
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.setattr(doctor, "SERVICES", ())
    found = list(doctor.report())
    assert ("WARNING", f"others can read {token}: chmod 600 {token}") in found
    assert SECRET not in str(found)
    token.chmod(0o600)
    assert "WARNING" not in dict(doctor.report())


OPEN = """
import os, subprocess, sys
import flray.tuning.session  # has imported ray long before a session begins
from flray.federation.cluster import ray_session
with ray_session(None):
    import ray
    call = f"import ray; ray.init({ray.get_runtime_context().gcs_address!r}); ray.cluster_resources()['CPU']"
    own = os.environ["RAY_AUTH_TOKEN"]
    tried = [subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.PIPE, text=True, env={
        **os.environ, "RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "token" if token else "disabled"})
        for token in ("0" * 64, "", own)]  # all at once: Ray tries for 20 s before it says that it was refused
    said = [process.communicate()[1] for process in tried]
for process, text in zip(tried, said):
    print("in" if process.returncode == 0 else "refused" if "AuthenticationError" in text else text)
"""


@pytest.mark.slow
def test_a_ray_of_our_own_asks_for_its_token(tmp_path: Path) -> None:
    """Ray listens to all the world (it cannot be bound to 127.0.0.1), so who has no token must be refused."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run([sys.executable, "-c", OPEN], env={**environment, "HOME": str(tmp_path)}, timeout=200,
                          capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "refused", "in"]
    assert "oken" not in done.stderr  # nothing a user would have to read
    assert not (tmp_path / ".ray").exists()
