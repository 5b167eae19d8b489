"""What the end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.pool import Pools


@pytest.fixture(scope="module")
def pools(ray_here: dict[str, float]) -> Iterator[Pools]:
    """Client actors by their number: ``pools[2]``."""
    pools = Pools()
    yield pools
    for pool in pools.values():
        pool.close()
