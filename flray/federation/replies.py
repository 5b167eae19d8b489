"""Replies of a stage's clients: single ones in client order, or sums over blocks of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from flray import trees
from flray.algorithms.common.aggregation import InBlocks, average_blocks
from flray.algorithms.types import Reply, Stage
from flray.errors import RunFailedError
from flray.federation.failures import ClientError
from flray.federation.messages import ClientReply, Ref, SumTask, TaskBlock, TaskInput, TaskResult
from flray.federation.round_metrics import RoundMetrics
from flray.federation.state import FederationState
from flray.trees import Packed, Tree, Weights

Collected = TypeVar("Collected")


class _Collector:
    """Collects the clients' outcomes, states and failures in a stage.

    Attributes
    ----------
    states : dict of int to Ref
        The new states of all clients that replied.
    """

    def __init__(
        self, federation: FederationState, stage: Stage, round_metrics: RoundMetrics
    ) -> None:
        self._federation, self._stage, self._metrics = federation, stage, round_metrics
        self._skip = federation.spec.config.faults.on_client_error == "skip"
        self.states: dict[int, Ref] = {}

    def _await(self, results: Iterator[Collected]) -> Iterator[Collected]:
        while True:
            with self._metrics.timed("train"):
                result = next(results, None)
            if result is None:
                return
            yield result

    def _take(self, result: TaskResult) -> bool:
        """Record one client's outcome and state; return whether it succeeded."""
        if result.outcome.failure is not None:
            self._failed(result)
            return False
        self._metrics.add(result)
        self._federation.usage.add(result)
        self.states[result.client_task.client] = result.state
        return True

    def _fetch(self, handle: Ref) -> Packed:
        with self._metrics.timed("receive"):
            return self._federation.executor.fetch(handle)

    def _failed(self, result: TaskResult) -> None:
        failure, client_task = result.outcome.failure, result.client_task
        assert failure is not None
        name = self._federation.server.clients[client_task.client].name
        where = f" at {failure.where}" if failure.where else ""
        line = f"client {client_task.client} ({name}), round {client_task.round + 1}"
        line += f", {self._stage.name}: {failure.what}{where}"
        timed_out = failure.kind == "timeout"
        if not (self._skip or timed_out):
            raise ClientError(f"{line}\n{failure.trace}".rstrip())
        self._metrics.left_out.add(client_task.client)
        self._federation.warn(f"left out: {line}")


class StageReplies(_Collector):
    """A stage's replies in client order; see `flray.algorithms.types.Replies`.

    Iterating yields each reply as soon as it and all before it have arrived, and releases it
    afterwards; `wait` collects all of them first, after which iterating can be repeated.
    """

    def __init__(
        self,
        federation: FederationState,
        jobs: Sequence[TaskInput],
        stage: Stage,
        round_metrics: RoundMetrics,
    ) -> None:
        super().__init__(federation, stage, round_metrics)
        self._results = federation.executor.run_tasks(
            jobs, federation.spec.config.faults.round_timeout
        )
        self._kept: list[ClientReply] | None = None
        self._started = False

    def __iter__(self) -> Iterator[ClientReply]:
        if self._kept is not None:
            yield from self._kept
        elif self._started:
            raise RuntimeError(
                "replies are gone after one pass; call replies.wait() first to go through them "
                "again"
            )
        else:
            yield from self._arrivals()

    def wait(self) -> Sequence[ClientReply]:
        """Return all replies once the last has arrived; large entries are not fetched yet."""
        if self._kept is None:
            self._kept = list(self._arrivals())
        return self._kept

    def release(self) -> None:
        """Forget the replies, which reach their large entries through this object.

        Otherwise these entries, and the states that came with them, stay in memory until Python
        collects cycles. If a round makes few objects, that may take several rounds.
        """
        self._kept, self._started = None, True

    def _received(self, result: TaskResult) -> int:
        """Return the bytes of a reply that reach the server."""
        return result.outcome.up

    def _arrivals(self) -> Iterator[ClientReply]:
        self._started = True
        for result in self._await(self._results):
            if self._take(result):
                self._metrics.bytes["up"] += self._received(result)
                samples = self._federation.server.clients[result.client_task.client].num_samples
                yield ClientReply(result, samples, self._fetch)


class _ArrivedReplies(list[ClientReply], InBlocks):
    """All replies of a stage, whose large entries are added up in blocks."""

    def __init__(self, found: Sequence[ClientReply], replies: BlockwiseReplies) -> None:
        super().__init__(found)
        self._replies = replies

    def block_sums(self, weigh: Callable[[Reply], float], entry: str) -> Iterator[Tree]:
        """Yield the sums of each block."""
        return self._replies.block_sums(weigh, entry)


class BlockwiseReplies(StageReplies, InBlocks):
    """A stage's replies whose means are added up in blocks near the clients once all have arrived.

    Single replies can be looked at too; what is fetched of them, and the sums, count as received.
    """

    def __init__(
        self,
        federation: FederationState,
        jobs: Sequence[TaskInput],
        stage: Stage,
        round_metrics: RoundMetrics,
        size: int,
    ) -> None:
        super().__init__(federation, jobs, stage, round_metrics)
        self._size = size

    def wait(self) -> Sequence[ClientReply]:
        """Return all replies once the last has arrived; large entries are not fetched yet."""
        if self._kept is None:
            self._kept = _ArrivedReplies(list(self._arrivals()), self)
        return self._kept

    def block_sums(self, weigh: Callable[[Reply], float], entry: str) -> Iterator[Tree]:
        """Yield the sums of each block of clients with the same ``client // size``."""
        tasks = [
            SumTask(entry, parts)
            for _, block in groupby(self.wait(), lambda reply: reply.client // self._size)
            if (
                parts := tuple(
                    (reply.architecture, weigh(reply), packed)
                    for reply in block
                    if (packed := reply.packed(entry)) is not None
                )
            )
        ]
        for result in self._await(self._federation.executor.add_up(tasks)):
            if result.failure is not None:
                raise RunFailedError(
                    f"{self._stage.name}: replies could not be added up: {result.failure.what}\n"
                    f"{result.failure.trace}".rstrip()
                )
            yield trees.unpack(self._fetch(result.sums))

    def _received(self, result: TaskResult) -> int:
        return result.outcome.small.nbytes if result.outcome.small is not None else 0

    def _fetch(self, handle: Ref) -> Packed:
        packed = super()._fetch(handle)
        self._metrics.bytes["up"] += packed.nbytes
        return packed


class BlockSums(_Collector):
    """The sums of a stage's blocks of clients; memory holds one sum at a time, and no single client's weights."""

    def __init__(
        self,
        federation: FederationState,
        blocks: Sequence[TaskBlock],
        stage: Stage,
        round_metrics: RoundMetrics,
    ) -> None:
        super().__init__(federation, stage, round_metrics)
        self._results = federation.executor.run_blocks(
            blocks, federation.spec.config.faults.round_timeout
        )

    def means(self) -> dict[str, Weights]:
        """Wait for all blocks, and return the mean of their clients' weights by architecture."""
        return average_blocks(self._sums())

    def _sums(self) -> Iterator[Mapping[str, Any]]:
        for block in self._await(self._results):
            for result in block.results:
                self._take(result)
            self._metrics.bytes["up"] += block.up
            if block.sums is not None:
                yield trees.unpack(self._fetch(block.sums))


def aggregate(
    federation: FederationState,
    jobs: Sequence[TaskInput],
    stage: Stage,
    round_metrics: RoundMetrics,
) -> dict[int, Ref]:
    """Run a stage's tasks, let the method aggregate the replies, and return the clients' new states."""
    algorithm, size = federation.spec.algorithm, federation.spec.config.aggregation.block
    if size is not None and algorithm.takes_mean_only():
        sums = BlockSums(federation, into_blocks(jobs, size), stage, round_metrics)
        for architecture, mean in sums.means().items():
            with federation.hook("apply"):
                algorithm.apply(federation.server, architecture, mean)
        return sums.states
    replies = (
        StageReplies(federation, jobs, stage, round_metrics)
        if size is None
        else BlockwiseReplies(federation, jobs, stage, round_metrics, size)
    )
    try:
        with federation.hook("aggregate"):
            algorithm.aggregate(federation.server, stage, replies)
        replies.wait()
    finally:
        replies.release()
    return replies.states


def into_blocks(jobs: Sequence[TaskInput], size: int) -> list[TaskBlock]:
    """Group jobs, which are in client order, into blocks of clients with the same ``client // size``."""
    return [
        TaskBlock(tuple(block))
        for _, block in groupby(jobs, lambda job: job.client_task.client // size)
    ]
