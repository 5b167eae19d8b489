"""The executor on Ray: runs client tasks on a pool of client actors; any actor runs any client."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import ray

from flray.federation.failures import ObjectLostError
from flray.federation.messages import (
    Ref,
    SumResult,
    SumTask,
    TaskBlock,
    TaskBlockResult,
    TaskInput,
    TaskResult,
)
from flray.federation.ray_backend.handles import ObjectRef, ReplyInCall
from flray.federation.ray_backend.losses import OBJECT_LOST_ERRORS, OBJECT_LOST_MESSAGE
from flray.federation.ray_backend.pool import ActorPool
from flray.federation.ray_backend.scheduler import BlockTasks, SingleTasks, SumTasks
from flray.trees import Packed

MAX_INLINE_ARG_BYTES = int(0.9 * int(os.environ.get("RAY_max_direct_call_object_size", 100 * 1024)))  # noqa: SIM112
"""Bytes up to which Ray sends an argument within the call; see `flray.federation.ray_backend.session.ray_session`."""


class RayExecutor(ActorPool):
    """Runs client tasks on the pool; a dead actor's tasks are run again."""

    _last_call: tuple[ObjectRef | None, list[Packed]] = (None, [])

    def put(self, packed: Packed) -> Ref:
        """Put a packed tree into the object store; a small one is sent with each call instead, which is quicker."""
        return packed if packed.data.nbytes <= MAX_INLINE_ARG_BYTES else ray.put(packed)

    def fetch(self, handle: Ref) -> Packed:
        """Return a packed tree from the object store, without a copy if it is on this node."""
        if isinstance(handle, ReplyInCall):
            return self._replies(handle)[handle.place]
        if isinstance(handle, Packed):
            return handle
        packed: Packed = self._get(handle)
        return packed

    def _replies(self, handle: ReplyInCall) -> list[Packed]:
        """Return the replies of a call, and keep those of the last call until the next one is fetched."""
        call, replies = self._last_call
        if call is not handle.call:
            replies = self._get(handle.call)
            self._last_call = (handle.call, replies) if handle.number > 1 else (None, [])
        return replies

    def _get(self, reference: ObjectRef) -> Any:
        try:
            return ray.get(reference)
        except OBJECT_LOST_ERRORS as error:
            raise ObjectLostError(OBJECT_LOST_MESSAGE) from error

    def run_tasks(
        self, jobs: Sequence[TaskInput], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskResult]:
        """Run all jobs, longest first; two calls queue at each actor, so that none idles between jobs."""
        self._last_call = (None, [])
        return SingleTasks(self, jobs, timeout, idle).results()

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Run all blocks, each on one actor, scheduled as `run_tasks` does."""
        return BlockTasks(self, blocks, timeout).results()

    def add_up(self, tasks: Sequence[SumTask]) -> Iterator[SumResult]:
        """Add up entries of replies: each task runs on one actor, which reads the replies from the object store."""
        return SumTasks(self, tasks, None).results()
