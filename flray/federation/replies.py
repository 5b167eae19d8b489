"""Replies of a stage's clients, single ones in client order or sums over blocks, and the metrics of a round."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from flray import trees
from flray.algorithms.base import Algorithm, Reply, Server, Stage
from flray.algorithms.common.aggregation import InBlocks
from flray.errors import RunFailedError
from flray.federation import messages
from flray.federation.state import MAX_CLIENT_METRICS, FederationState, each_within
from flray.tasks.base import finite_or_infinite
from flray.trees import Packed, Tree

ADDITIVE_METRICS = ("steps", "samples")
"""Metrics that are summed over a round's stages and clients."""


PHASES = ("ask", "send", "train", "receive", "aggregate", "evaluate")
"""What a round's seconds are spent on; nothing is asked unless a sampler does."""


@dataclass
class Cohort:
    """The clients of a round.

    Attributes
    ----------
    clients : list of int
        The participants, sorted.
    works : dict of int to float
        Each participant's share of the local work.
    asked : list of int
        The clients that only answered a query of the sampler.
    down, up : int
        Bytes of the queries. For participants the answer alone counts, because they get the model
        anyway.
    dropped : list of int
        The clients that were chosen and do not answer.
    """

    clients: list[int]
    works: Mapping[int, float]
    asked: list[int] = field(default_factory=list)
    down: int = 0
    up: int = 0
    dropped: list[int] = field(default_factory=list)


class RoundMetrics:
    """Observes one round: its clients' metrics, the server's, its seconds and bytes.

    Parameters
    ----------
    server : Server
        For names and the cohort.

    Attributes
    ----------
    left_out, diverged : set of int
        Clients that failed, and those whose loss is not finite.
    seconds : dict of str to float
        By phase, each without those of the others within it.
    bytes : dict of str to int
        To and from the clients, ``down`` and ``up``.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._began = server, time.perf_counter()
        self.seconds, self._timed = dict.fromkeys(PHASES, 0.0), 0.0
        self.bytes = {"up": 0, "down": 0}
        self._asked: dict[str, float] = {}
        self._further: dict[str, float] = {}
        self.metrics: dict[str, dict[int, float]] = {}
        self.left_out: set[int] = set()
        self.diverged: set[int] = set()
        self.resident: dict[int, float] = {}

    def add(self, result: messages.TaskResult) -> None:
        """Add one client's outcome of a stage: steps and samples are summed, others are the last stage's."""
        client = result.client_task.client
        metrics = {**result.outcome.metrics, "seconds": result.outcome.seconds}
        if metrics.get("steps") and not math.isfinite(metrics["loss"]):
            self.diverged.add(client)
            metrics["loss"] = finite_or_infinite(metrics["loss"])
        for name, value in metrics.items():
            values = self.metrics.setdefault(name, {})
            if name in (*ADDITIVE_METRICS, "seconds"):
                values[client] = values.get(client, 0.0) + value
            elif client not in values or not math.isnan(value):
                values[client] = value
        self.resident[client] = float(result.outcome.usage.resident)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of a block to a phase, without those that it adds to others."""
        began, before = time.perf_counter(), self._timed
        yield
        took = time.perf_counter() - began
        self.seconds[phase] += took - (self._timed - before)
        self._timed = before + took

    def add_cohort(self, cohort: Cohort) -> None:
        """Add the cost of asking clients for the choice of a cohort, and the shares of work if some may not do all."""
        self.bytes = {"up": cohort.up, "down": cohort.down}
        if cohort.up:
            self._asked = {
                "cohort/asked": float(len(cohort.asked)),
                "bytes/asked": float(cohort.down + cohort.up),
            }
        else:
            del self.seconds["ask"]
        works = dict.fromkeys(cohort.dropped, 0.0) | {
            client: round(work, 9) for client, work in cohort.works.items()
        }
        simulated = self._server.config.participation
        if works and (simulated.dropout or simulated.stragglers or simulated.work):
            self.metrics["work"] = works
            self._asked["cohort/slow"] = float(sum(0 < work < 1 for work in works.values()))
            self._asked["cohort/dropped"] = float(len(cohort.dropped))

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add the server's own metrics, or those of an evaluation."""
        self._further |= {name: float(value) for name, value in metrics.items()}

    def summary(self) -> dict[str, float]:
        """Return everything that is tracked of the round, which ends with this."""
        metrics = self._of_clients() | self._asked | self._further
        metrics |= {f"time/{name}": seconds for name, seconds in self.seconds.items()}
        metrics["time/round"] = time.perf_counter() - self._began
        if metrics.get("train/samples") and self.seconds["train"]:
            metrics["time/samples_per_second"] = metrics["train/samples"] / self.seconds["train"]
        return metrics | {f"bytes/{name}": float(count) for name, count in self.bytes.items()}

    def _of_clients(self) -> dict[str, float]:
        """Return means over the cohort and single clients' values."""
        server = self._server
        summary = {
            "cohort/size": float(len(server.cohort)),
            "cohort/left_out": float(len(self.left_out)),
        }
        if self.resident:
            summary["memory/client"] = max(self.resident.values())
        for name, values in sorted(self.metrics.items()):
            if name in ADDITIVE_METRICS:
                summary[f"train/{name}"] = float(sum(values.values()))
                continue
            known = {c: v for c, v in sorted(values.items()) if not math.isnan(v)}
            if known:
                total = sum(server.clients[c].num_samples for c in known)
                weighted = (v * server.clients[c].num_samples for c, v in known.items())
                summary[f"train/{name}"] = trees.total(weighted) / total
            if len(server.clients) <= MAX_CLIENT_METRICS and name != "seconds":
                summary.update(
                    {f"train/{name}/client/{server.clients[c].name}": v for c, v in known.items()}
                )
        return summary


class StageReplies(Sequence[messages.ClientReply]):
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
        blocks: Sequence[messages.TaskBlock],
        stage: Stage,
        round_metrics: RoundMetrics,
    ) -> None:
        self._federation, self._stage, self._metrics = federation, stage, round_metrics
        self._awaited = partial(each_within, partial(round_metrics.timed, "train"))
        timeout = federation.spec.config.faults.round_timeout
        self._results = federation.executor.run_blocks(blocks, timeout)
        self._kept: list[messages.ClientReply] | None = None
        self._started = False
        self.states: dict[int, messages.Ref] = {}

    def __iter__(self) -> Iterator[messages.ClientReply]:
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

    def _arrivals(self) -> Iterator[messages.ClientReply]:
        self._started = True
        for block in self._awaited(self._results):
            for result in filter(self._take, block.results):
                self._metrics.bytes["up"] += self._received(result)
                samples = self._federation.server.clients[result.client_task.client].num_samples
                yield messages.ClientReply(result, samples, self._fetch)

    def _received(self, result: messages.TaskResult) -> int:
        """Return the bytes of a reply that reach the server."""
        return result.outcome.up

    def _take(self, result: messages.TaskResult) -> bool:
        """Record one client's outcome and state; return whether it succeeded."""
        failure, task = result.outcome.failure, result.client_task
        if failure is not None:
            name = self._federation.server.clients[task.client].name
            who = f"client {task.client} ({name}), round {task.round + 1}, {self._stage.name}"
            self._federation.leave_out(who, failure)
            self._metrics.left_out.add(task.client)
            return False
        self._metrics.add(result)
        self._federation.usage.add(result)
        self.states[task.client] = result.state
        return True

    def _fetch(self, handle: messages.Ref) -> Packed:
        with self._metrics.timed("receive"):
            return self._federation.executor.fetch(handle)


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
        for result in self._awaited(self._federation.executor.run_tasks(tasks)):
            if (failure := result.outcome.failure) is not None:
                raise RunFailedError(
                    f"{self._stage.name}: replies could not be added up: {failure.what}\n{failure.trace}".rstrip()
                )
            yield trees.unpack(self._fetch(result.bulk))

    def _received(self, result: messages.TaskResult) -> int:
        return result.outcome.small.nbytes if result.outcome.small is not None else 0

    def _fetch(self, handle: messages.Ref) -> Packed:
        packed = super()._fetch(handle)
        self._metrics.bytes["up"] += packed.nbytes
        return packed


class SummedReplies(StageReplies, InBlocks):
    """The sums of a stage's blocks of clients; memory holds one sum at a time, and no single client's weights."""

    def block_sums(self, weigh: Callable[[Reply], float], entry: str) -> Iterator[Tree]:
        """Yield the sums of each block, which its process weighed as `Algorithm.weigh` does."""
        for block in self._awaited(self._results):
            for result in block.results:
                self._take(result)
            self._metrics.bytes["up"] += block.up
            if block.sums is not None:
                yield trees.unpack(self._fetch(block.sums))


def aggregate(
    federation: FederationState,
    jobs: Sequence[messages.TaskInput],
    stage: Stage,
    round_metrics: RoundMetrics,
) -> dict[int, messages.Ref]:
    """Run a stage's tasks, let the method aggregate the replies, and return the clients' new states."""
    algorithm, size = federation.spec.algorithm, federation.spec.config.aggregation.block
    summed = size is not None and algorithm.takes_mean_only()
    blocks = into_blocks(jobs, size if summed else None)
    kind = SummedReplies if summed else StageReplies if size is None else BlockwiseReplies
    replies = kind(federation, blocks, stage, round_metrics)
    server, before = federation.server, dict(federation.server.models)
    try:
        with federation.hook("aggregate"):
            algorithm.aggregate(server, stage, replies)
        replies.wait()
    finally:
        replies.release()
    averages = stage.name == "train" and type(algorithm).aggregate is Algorithm.aggregate
    same = all(server.models[name] is model for name, model in before.items())
    if averages and same and replies.states and any(server.shared_names.values()):
        server.warn(
            "weights",
            'no reply of stage train has "weights", so the global model stays as it was: return them in report, or '
            'set shared = "none"',
        )
    return replies.states


def into_blocks(jobs: Sequence[messages.TaskInput], size: int | None) -> list[messages.TaskBlock]:
    """Group jobs, which are in client order, into blocks of clients with the same ``client // size``; or none."""
    if size is None:
        return [messages.TaskBlock((job,)) for job in jobs]
    return [
        messages.TaskBlock(tuple(block), summed=True)
        for _, block in groupby(jobs, lambda job: job.client_task.client // size)
    ]
