"""What `flray doctor` tells, and that no secret and no open door is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flray import doctor

SECRET = "hunter2-0123"


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
