"""Nodes that will soon be gone, by Ray's own notice (a drain), and saving what they hold."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import ray

from flray.federation.ray_backend.cluster_state import draining_nodes
from flray.federation.ray_backend.handles import ReplyInCall

LOOK_SECONDS = 1.0
"""Seconds between two looks; a cloud gives notice of 30 seconds at least."""

COPY_SECONDS = 30.0
"""Seconds that are waited for copies; those under way then go on."""


class NodeWatch:
    """Knows which nodes Ray drains; asks for them at most once in `LOOK_SECONDS`.

    Attributes
    ----------
    leaving : frozenset of str
        Their ids, as of the last look.
    """

    def __init__(self) -> None:
        self.leaving: frozenset[str] = frozenset()
        self._next = 0.0
        self._own = ""

    def look(self) -> frozenset[str]:
        """Return those of which this was not known before."""
        if time.monotonic() < self._next:
            return frozenset()
        before = self.leaving
        with contextlib.suppress(Exception):  # a look that fails is made again
            self.leaving = draining_nodes()
        self._next = time.monotonic() + LOOK_SECONDS
        return self.leaving - before

    def leaves(self) -> bool:
        """Return whether the node of this process is drained."""
        self.look()
        if self.leaving and not self._own:
            self._own = ray.get_runtime_context().get_node_id()
        return self._own in self.leaving

    def copy_here(self, objects: Iterable[object]) -> int:
        """Copy objects that only such nodes hold to this one; return how many there were.

        When the node of an object dies, Ray goes on with its copy. Nothing is copied to a node that
        will be gone itself.
        """
        whole = [one.call if isinstance(one, ReplyInCall) else one for one in objects]
        found = list({one for one in whole if isinstance(one, ray.ObjectRef)})
        if not found or self.leaves():
            return 0
        places = ray.experimental.get_object_locations(found)
        alone = [
            one
            for one in found
            if places[one]["node_ids"] and self.leaving.issuperset(places[one]["node_ids"])
        ]
        if alone:
            ray.wait(alone, num_returns=len(alone), timeout=COPY_SECONDS, fetch_local=True)
        return len(alone)
