"""What the end-to-end tests share."""

from __future__ import annotations

import pytest

from tests.end_to_end.pool import Pools

_POOLS: dict[str, Pools] = {}
"""By the address of their Ray: pools of one that has ended are of no use."""


@pytest.fixture
def pools(ray_here: dict[str, float]) -> Pools:
    """Client actors by their number: ``pools[2]``."""
    import ray

    return _POOLS.setdefault(ray.get_runtime_context().gcs_address, Pools())
