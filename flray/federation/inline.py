"""The executor without Ray: plays every turn in this process, in client order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import psutil
import torch

from flray.federation.executor import Block, BlockResult, Failure, Handle, Job, Outcome, Result, all_failed
from flray.federation.player import Player
from flray.federation.workshop import default_device, threads_of
from flray.federation.world import World
from flray.trees import Packed


class InlineExecutor:
    """Plays turns in this process, with as many threads as one actor would have.

    Parameters
    ----------
    world : World
        What is played.
    """

    def __init__(self, world: World) -> None:
        self._threads = torch.get_num_threads()
        self._player = Player(world, default_device(world), threads_of(world.config))

    def put(self, packed: Packed) -> Handle:
        """Return the tree itself."""
        return packed

    def fetch(self, handle: Handle) -> Packed:
        """Return the tree itself."""
        packed: Packed = handle
        return packed

    def play(self, jobs: Sequence[Job], timeout: float | None = None, idle: float | None = None) -> Iterator[Result]:
        """Play the jobs one after another; those not begun within `timeout` seconds are left out.

        One that hangs cannot be stopped in this process: `idle` has no effect.
        """
        started = time.monotonic()
        for job in jobs:
            if timeout is not None and time.monotonic() - started > timeout:
                failure = Failure(f"no answer within {timeout:g} s")
                yield Result(job.turn, Outcome(job.turn.client, failure=failure))
                continue
            outcome, bulk, state = self._player.play(job.turn, job.common, job.private, job.state)
            yield Result(job.turn, outcome, bulk, state)

    def play_blocks(self, blocks: Sequence[Block], timeout: float | None = None) -> Iterator[BlockResult]:
        """Play the blocks one after another; those not begun within `timeout` seconds are left out."""
        started = time.monotonic()
        for block in blocks:
            if timeout is not None and time.monotonic() - started > timeout:
                yield all_failed(block, Failure(f"no answer within {timeout:g} s"))
                continue
            outcomes, sums, states = self._player.play_block(block.jobs)
            yield BlockResult(tuple(Result(job.turn, outcome, state=state) for job, outcome, state
                                    in zip(block.jobs, outcomes, states, strict=False)),
                              sums, sums.nbytes if sums is not None else 0)

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of this process."""
        return {"inline": psutil.Process().memory_info().rss}

    def close(self) -> None:
        """Restore the process's number of torch threads."""
        torch.set_num_threads(self._threads)
