"""Executors run client tasks: the protocol, and the one that runs them in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import psutil
import torch

from flray.devices.identity import GpuIdentity, distinct, gpu_identity
from flray.federation.failures import Failure
from flray.federation.messages import Ref, TaskBlock, TaskBlockResult, TaskInput, TaskResult
from flray.federation.spec import FederationSpec
from flray.federation.worker.client_runner import ClientRunner, Exhausted
from flray.federation.worker.resources import default_device, thread_count
from flray.trees import Packed


class Executor(Protocol):
    """Runs client tasks. Results come in the tasks' order, each as soon as it and all before it are done."""

    def put(self, packed: Packed) -> Ref:
        """Make a packed tree available to all processes. Default: the tree itself."""
        return packed

    def fetch(self, handle: Ref) -> Packed:
        """Return a packed tree. Default: what it was given."""
        packed: Packed = handle
        return packed

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Run all blocks, each in one process.

        Those unfinished after `timeout` seconds fail. If none finishes for `idle` seconds, those
        that are running fail, and those queued behind them are run.
        """

    def run_tasks(
        self, jobs: Sequence[TaskInput], idle: float | None = None
    ) -> Iterator[TaskResult]:
        """Run single tasks; see `run_blocks`."""
        for block in self.run_blocks([TaskBlock((job,)) for job in jobs], idle=idle):
            yield block.results[0]

    def watch_over(self, states: Callable[[], Iterable[Ref]], warn: Callable[[str], None]) -> None:
        """Copy client states off a node that is about to be drained. Default: nothing, all is in this process.

        Parameters
        ----------
        states : callable
            Returns the clients' states as they are.
        warn : callable
            Called with a line when it has happened.
        """
        return

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each process that runs tasks."""

    def gpus(self) -> list[GpuIdentity]:
        """Return the kinds of GPU that tasks are computed on."""

    def close(self) -> None:
        """Release all resources."""


class InlineExecutor(Executor):
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

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Run the blocks one after another; those not begun within `timeout` seconds fail.

        A task that hangs cannot be stopped in this process, so that `idle` has no effect.
        """
        started = time.monotonic()
        for block in blocks:
            if timeout is not None and time.monotonic() - started > timeout:
                late = Failure(f"no answer within {timeout:g} s", "timeout")
                yield TaskBlockResult.failed(block, late)
                continue
            outcomes, bulk, states = self._runner.run_block(block)
            up = bulk.nbytes if bulk is not None else 0
            yield TaskBlockResult.of(block, outcomes, bulk, states, up=up)

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of this process."""
        return {"inline": psutil.Process().memory_info().rss}

    def gpus(self) -> list[GpuIdentity]:
        """Return the kind of this process's GPU, if it computes on one."""
        return distinct([gpu_identity(self._runner.device)])

    def close(self) -> None:
        """Restore the process's number of torch threads."""
        torch.set_num_threads(self._threads)
