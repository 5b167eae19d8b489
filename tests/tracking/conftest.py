from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import Service, tracking_server
from tests.tracking.helpers import Sending


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Service]:
    """A server that has not been started."""
    server = tracking_server(tmp_path / "server")
    yield server
    server.kill()


@pytest.fixture
def to(store: str, tmp_path: Path) -> Sending:
    """The runs of this test, and that database."""
    return Sending(tmp_path, store)
