"""A folder with runs and somebody's home beside it, and a stranger's server."""

import contextlib
import io
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flray.cli.main import invoke
from flray.records import directory
from tests.border import planted
from tests.border.planted import RUN
from tests.hostile.values import GOOD


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of one of two rounds, somebody's home, and settings that name all places."""
    base = tmp_path_factory.mktemp("world")
    (base / "here").mkdir()
    (base / "outside").mkdir()
    (base / "outside" / "letter").write_text("dear")
    (base / "outside" / "empty").write_text("")
    own = {"name": "m", "checkpoint": {"min_seconds": 0}}
    own |= {"data": {"name": "digits-sklearn", "samples": 96}}
    content = GOOD["experiment"] | own | {"tracking": {"uri": "sqlite:///mlflow.db"}}
    before = Path.cwd()
    os.chdir(base / "here")
    try:
        Path("x.yaml").write_text(yaml.safe_dump({"experiment": content}))
        with contextlib.redirect_stdout(io.StringIO()):
            assert invoke(["run", "x.yaml"]) == 0
        shutil.copytree(RUN, "runs/ok/001")
        directory.update(RUN, status="interrupted")
        planted.edit("config.yaml", "experiment", "rounds", value=2)(RUN)
        settings = directory.read(RUN)["settings"] | {"rounds": "2"}
        directory.update(RUN, settings=settings)
    finally:
        os.chdir(before)
    return base


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A server of a stranger on this machine, and what it was sent."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("LISTENER", f"http://127.0.0.1:{server.getsockname()[1]}")

        def listen() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as asked:
                        heard.append(asked.recv(10_000))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield heard
        server.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=60)


@pytest.fixture
def place(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the world, whose run folder is the current one's."""
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    for file in (tmp_path / "here").glob("runs/*/001/*.*"):
        if file.name in ("config.yaml", "tracking.json"):
            file.write_text(file.read_text().replace(str(world), str(tmp_path)))
    monkeypatch.chdir(tmp_path / "here")
    own = {"HOME": "outside", "FLRAY_WORK": "here/work", "FLRAY_DATA": "here/data"}
    secret = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "SECRET"}
    secret |= {"WANDB_API_KEY": "0" * 40}
    for name, value in ({one: str(tmp_path / part) for one, part in own.items()} | secret).items():
        monkeypatch.setenv(name, value)
    directory.source.cache_clear()
    return tmp_path
