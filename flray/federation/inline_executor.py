"""The executor without Ray: plays every turn in this process, in client order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import psutil
import torch

from flray.federation.messages import (
    Failure,
    Ref,
    TaskBlock,
    TaskBlockResult,
    TaskInput,
    TaskOutcome,
    TaskResult,
    failed_block,
)
from flray.federation.spec import FederationSpec
from flray.federation.worker.client_runner import ClientRunner
from flray.federation.worker.resources import default_device, thread_count
from flray.trees import Packed


class InlineExecutor:
    """Plays turns in this process, with as many threads as one actor would have.

    Parameters
    ----------
    spec : FederationSpec
        What is played.
    """

    def __init__(self, spec: FederationSpec) -> None:
        self._threads = torch.get_num_threads()
        self._runner = ClientRunner(spec, default_device(spec), thread_count(spec.config))

    def put(self, packed: Packed) -> Ref:
        """Return the tree itself."""
        return packed

    def fetch(self, handle: Ref) -> Packed:
        """Return the tree itself."""
        packed: Packed = handle
        return packed

    def run_tasks(
        self, jobs: Sequence[TaskInput], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskResult]:
        """Play the jobs one after another; those not begun within `timeout` seconds are left out.

        One that hangs cannot be stopped in this process: `idle` has no effect.
        """
        started = time.monotonic()
        for job in jobs:
            if timeout is not None and time.monotonic() - started > timeout:
                failure = Failure(f"no answer within {timeout:g} s")
                yield TaskResult(
                    job.client_task, TaskOutcome(job.client_task.client, failure=failure)
                )
                continue
            outcome, bulk, state = self._runner.run(
                job.client_task, job.common, job.private, job.state
            )
            yield TaskResult(job.client_task, outcome, bulk, state)

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Play the blocks one after another; those not begun within `timeout` seconds are left out."""
        started = time.monotonic()
        for block in blocks:
            if timeout is not None and time.monotonic() - started > timeout:
                yield failed_block(block, Failure(f"no answer within {timeout:g} s"))
                continue
            outcomes, sums, states = self._runner.run_block(block.jobs)
            yield TaskBlockResult(
                tuple(
                    TaskResult(job.client_task, outcome, state=state)
                    for job, outcome, state in zip(block.jobs, outcomes, states, strict=False)
                ),
                sums,
                sums.nbytes if sums is not None else 0,
            )

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of this process."""
        return {"inline": psutil.Process().memory_info().rss}

    def close(self) -> None:
        """Restore the process's number of torch threads."""
        torch.set_num_threads(self._threads)
