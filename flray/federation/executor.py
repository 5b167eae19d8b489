"""Executors run client tasks: the protocol, and the one that runs them in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import psutil
import torch

from flray.algorithms.common.aggregation import add_up
from flray.devices.identity import GpuIdentity, distinct, gpu_identity
from flray.federation.failures import Failure
from flray.federation.messages import (
    Ref,
    SumResult,
    SumTask,
    TaskBlock,
    TaskBlockResult,
    TaskInput,
    TaskResult,
    failed_block,
    failed_task,
)
from flray.federation.spec import FederationSpec
from flray.federation.worker.client_runner import ClientRunner, Exhausted
from flray.federation.worker.resources import default_device, thread_count
from flray.trees import Packed


class Executor(Protocol):
    """Runs client tasks. Results come in the order of the jobs, each as soon as it and all before it are done."""

    def put(self, packed: Packed) -> Ref:
        """Make a packed tree available to all processes."""

    def fetch(self, handle: Ref) -> Packed:
        """Return a packed tree."""

    def run_tasks(
        self, jobs: Sequence[TaskInput], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskResult]:
        """Run all jobs.

        Jobs unfinished after `timeout` seconds fail. If no job finishes for `idle` seconds, those
        that are running fail, and those queued behind them are run.
        """

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Run all blocks; one unfinished after `timeout` seconds is a failure of all its clients."""

    def add_up(self, tasks: Sequence[SumTask]) -> Iterator[SumResult]:
        """Add up entries of replies without moving the replies."""

    def watch_over(self, states: Callable[[], Iterable[Ref]], warn: Callable[[str], None]) -> None:
        """Copy client states off a node that is about to be drained.

        Parameters
        ----------
        states : callable
            Returns the clients' states as they are.
        warn : callable
            Called with a line when it has happened.
        """

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each process that runs tasks."""

    def gpus(self) -> list[GpuIdentity]:
        """Return the kinds of GPU that tasks are computed on."""

    def close(self) -> None:
        """Release all resources."""


class InlineExecutor:
    """Runs client tasks in this process, with as many threads as one actor would have.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    device : torch.device, optional
        The device to train on; default: this process's GPU, if the experiment uses one.
    share : float
        This process's share of the GPU.
    exhausted : {"report", "raise", "exit"}
        See `flray.federation.worker.client_runner.ClientRunner`.
    """

    def __init__(
        self,
        spec: FederationSpec,
        device: torch.device | None = None,
        share: float = 1.0,
        exhausted: Exhausted = "report",
    ) -> None:
        self._threads = torch.get_num_threads()
        device = device or default_device(spec)
        self._runner = ClientRunner(spec, device, thread_count(spec.config), share, exhausted)

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
        """Run the jobs one after another; those not begun within `timeout` seconds fail.

        A job that hangs cannot be stopped in this process, so that `idle` has no effect.
        """
        started = time.monotonic()
        for job in jobs:
            if timeout is not None and time.monotonic() - started > timeout:
                yield failed_task(job, Failure(f"no answer within {timeout:g} s", "timeout"))
                continue
            outcome, bulk, state = self._runner.run(
                job.client_task, job.common, job.private, job.state
            )
            yield TaskResult(job.client_task, outcome, bulk, state)

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Run the blocks one after another; those not begun within `timeout` seconds fail."""
        started = time.monotonic()
        for block in blocks:
            if timeout is not None and time.monotonic() - started > timeout:
                yield failed_block(block, Failure(f"no answer within {timeout:g} s", "timeout"))
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

    def add_up(self, tasks: Sequence[SumTask]) -> Iterator[SumResult]:
        """Add up entries of replies, one task after another."""
        for task in tasks:
            sums = add_up(task.entry, task.parts)
            yield SumResult(sums, sums.nbytes)

    def watch_over(self, states: Callable[[], Iterable[Ref]], warn: Callable[[str], None]) -> None:
        """Do nothing: all is in this process."""

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of this process."""
        return {"inline": psutil.Process().memory_info().rss}

    def gpus(self) -> list[GpuIdentity]:
        """Return the kind of this process's GPU, if it computes on one."""
        return distinct([gpu_identity(self._runner.device)])

    def close(self) -> None:
        """Restore the process's number of torch threads."""
        torch.set_num_threads(self._threads)
