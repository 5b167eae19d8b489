"""Replies of a stage's clients: single ones in client order, or sums over blocks of clients."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

from flray import trees
from flray.algorithms.common.aggregation import InBlocks
from flray.algorithms.types import Reply, Stage
from flray.errors import RunFailedError
from flray.federation.failures import ClientError
from flray.federation.messages import ClientReply, Ref, TaskBlock, TaskInput, TaskResult
from flray.federation.round_metrics import RoundMetrics
from flray.federation.state import FederationState
from flray.trees import Packed, Tree

Item = TypeVar("Item")


class StageReplies(Sequence[ClientReply]):
    """A stage's replies in client order; see `flray.algorithms.types.Replies`.

    Iterating yields each reply as soon as it and all before it have arrived, and releases it
    afterwards; `wait` collects all of them first, after which iterating can be repeated.

    Attributes
    ----------
    states : dict of int to Ref
        The new states of all clients that replied.
    """

    def __init__(
        self,
        federation: FederationState,
        blocks: Sequence[TaskBlock],
        stage: Stage,
        round_metrics: RoundMetrics,
    ) -> None:
        self._federation, self._stage, self._metrics = federation, stage, round_metrics
        faults = federation.spec.config.faults
        self._skip = faults.on_client_error == "skip"
        self._results = federation.executor.run_blocks(blocks, faults.round_timeout)
        self._kept: list[ClientReply] | None = None
        self._started = False
        self.states: dict[int, Ref] = {}

    def __iter__(self) -> Iterator[ClientReply]:
        if self._kept is not None:
            yield from self._kept
        elif self._started:
            raise RuntimeError(
                "replies are gone after one pass; call replies.wait() first to go through them again"
            )
        else:
            yield from self._arrivals()

    def __len__(self) -> int:
        return len(self.wait()._kept or ())

    def __getitem__(self, place: Any) -> Any:
        return (self.wait()._kept or [])[place]

    def wait(self) -> "StageReplies":
        """Return all replies once the last has arrived; large entries are not fetched yet."""
        if self._kept is None:
            self._kept = list(self._arrivals())
        return self

    def release(self) -> None:
        """Forget the replies, which reach their large entries through this object.

        Otherwise these entries, and the states that came with them, stay in memory until Python
        collects cycles. If a round makes few objects, that may take several rounds.
        """
        self._kept, self._started = None, True

    def _arrivals(self) -> Iterator[ClientReply]:
        self._started = True
        for block in self._await(self._results):
            for result in filter(self._take, block.results):
                self._metrics.bytes["up"] += self._received(result)
                samples = self._federation.server.clients[result.client_task.client].num_samples
                yield ClientReply(result, samples, self._fetch)

    def _received(self, result: TaskResult) -> int:
        """Return the bytes of a reply that reach the server."""
        return result.outcome.up

    def _await(self, results: Iterator[Item]) -> Iterator[Item]:
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
        line = f"client {client_task.client} ({name}), round {client_task.round + 1}"
        line += f", {self._stage.name}: {failure}"
        if not (self._skip or failure.kind == "timeout"):
            raise ClientError(f"{line}\n{failure.trace}".rstrip())
        self._metrics.left_out.add(client_task.client)
        self._federation.warn(f"left out: {line}")


class BlockwiseReplies(StageReplies, InBlocks):
    """A stage's replies whose means are added up in blocks near the clients once all have arrived.

    Single replies can be looked at too; what is fetched of them, and the sums, count as received.
    """

    def block_sums(self, weigh: Callable[[Reply], float], entry: str) -> Iterator[Tree]:
        """Yield the sums of each block of clients with the same ``client // size``."""
        size = self._federation.spec.config.aggregation.block
        assert size is not None
        blocks = [
            tuple(
                (reply.architecture, weigh(reply), packed)
                for reply in block
                if (packed := reply.packed(entry)) is not None
            )
            for _, block in groupby(self.wait(), lambda reply: reply.client // size)
        ]
        tasks = [self._federation.sum_task(entry, parts) for parts in blocks if parts]
        for result in self._await(self._federation.executor.run_tasks(tasks)):
            if (failure := result.outcome.failure) is not None:
                raise RunFailedError(
                    f"{self._stage.name}: replies could not be added up: {failure.what}\n{failure.trace}".rstrip()
                )
            yield trees.unpack(self._fetch(result.bulk))

    def _received(self, result: TaskResult) -> int:
        return result.outcome.small.nbytes if result.outcome.small is not None else 0

    def _fetch(self, handle: Ref) -> Packed:
        packed = super()._fetch(handle)
        self._metrics.bytes["up"] += packed.nbytes
        return packed


class SummedReplies(StageReplies, InBlocks):
    """The sums of a stage's blocks of clients; memory holds one sum at a time, and no single client's weights."""

    def block_sums(self, weigh: Callable[[Reply], float], entry: str) -> Iterator[Tree]:
        """Yield the sums of each block, which its process weighed as `Algorithm.weigh` does."""
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
    summed = size is not None and algorithm.takes_mean_only()
    blocks = into_blocks(jobs, size if summed else None)
    kind = SummedReplies if summed else StageReplies if size is None else BlockwiseReplies
    replies = kind(federation, blocks, stage, round_metrics)
    try:
        with federation.hook("aggregate"):
            algorithm.aggregate(federation.server, stage, replies)
        replies.wait()
    finally:
        replies.release()
    return replies.states


def into_blocks(jobs: Sequence[TaskInput], size: int | None) -> list[TaskBlock]:
    """Group jobs, which are in client order, into blocks of clients with the same ``client // size``; or none."""
    if size is None:
        return [TaskBlock((job,)) for job in jobs]
    return [
        TaskBlock(tuple(block), summed=True)
        for _, block in groupby(jobs, lambda job: job.client_task.client // size)
    ]
