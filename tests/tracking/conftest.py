from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracking.helpers import Sending, Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that has not been started."""
    server = Server(tmp_path / "server")
    yield server
    server.kill()


@pytest.fixture
def to(store: str, tmp_path: Path) -> Sending:
    """The runs of this test, and that database."""
    return Sending(tmp_path, store)
