"""A federation: runs rounds on an executor, evaluates, saves and restores."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from flray import bits, trees
from flray.algorithms.types import Stage
from flray.devices import identity
from flray.devices.identity import GpuIdentity
from flray.federation import checkpoint
from flray.federation.cohort import draw_cohort
from flray.federation.diagnostics import collect_diagnostics
from flray.federation.evaluation import evaluate
from flray.federation.executor import InlineExecutor
from flray.federation.failures import NobodyAnsweredError
from flray.federation.hooks import iterate_hook
from flray.federation.messages import ClientTask, TaskInput
from flray.federation.replies import BlockSums, BlockwiseReplies, StageReplies, into_blocks
from flray.federation.round_metrics import RoundMetrics
from flray.federation.spec import FederationSpec
from flray.federation.state import FederationState, Notify
from flray.federation.unseen import evaluate_unseen
from flray.federation.worker.diagnostics import Diagnostics

T = TypeVar("T")
PHASES = ("ask", "send", "train", "receive", "aggregate", "evaluate")
"""What a round's seconds are spent on; nothing is asked but where a sampler does."""


@dataclass
class RoundResult:
    """The result of one round.

    Attributes
    ----------
    number : int
        From 1.
    metrics : dict of str to float
        Everything tracked, by name.
    last : bool
        Whether the federation ends with it.
    leaving : bool
        Whether the server's node will soon be gone, so that it should be saved at once.
    """

    number: int
    metrics: dict[str, float] = field(default_factory=dict)
    last: bool = False
    leaving: bool = False


class Federation(FederationState):
    """The rounds of one experiment, as the server runs them.

    Used directly in this process; on Ray it lives in
    `flray.federation.ray_backend.server_actor.ServerActor`. Both are driven through
    `flray.federation.handle.FederationHandle`.
    """

    def reset(self) -> None:
        """Reset to the state before round 1."""
        super().reset()
        self._diverged = self._mixed = self._mixed_gpus = False
        self._seconds: dict[str, float] = {}
        self._bytes = {"up": 0, "down": 0}
        self._last: RoundResult | None = None
        self.between_rounds = True

    def step(self) -> RoundResult:
        """Run one round, evaluation included.

        Raises
        ------
        ClientError
            If a client's code raises and ``faults.on_client_error`` is ``fail``.
        """
        server, config = self.server, self.spec.config
        self.between_rounds = False
        started = time.perf_counter()
        self._seconds = dict.fromkeys(PHASES, 0.0)
        server.metrics = {}
        cohort = self._timed("ask", lambda: draw_cohort(self))
        server.cohort = cohort.clients
        self._bytes = {"up": cohort.up, "down": cohort.down}
        round_metrics = RoundMetrics(server)
        with self.hook("exchanges"):
            stages = self.spec.algorithm.exchanges(server)
        for stage in iterate_hook(stages, config.algorithm.name, "exchanges", server.round + 1):
            self._stage(stage, cohort.works, round_metrics)
        self._warn_of_divergence(round_metrics.diverged)
        if not self._mixed and len(getattr(self.executor, "kinds", ())) > 1:
            self._mixed = True
            self.warn(bits.MIXED)
        if not self._mixed_gpus and len(getattr(self.executor, "gpu_kinds", ())) > 1:
            self._mixed_gpus = True
            self.warn(f"{identity.MIXED}; {identity.ADVICE}")
        with self.hook("refine"):
            self._timed("aggregate", lambda: self.spec.algorithm.refine(server))
        with self.hook("server.metrics"):
            own = {name: float(value) for name, value in server.metrics.items()}
        server.round += 1
        metrics = {**round_metrics.summary(), **own}
        if cohort.up:
            metrics["cohort/asked"] = float(len(cohort.asked))
            metrics["bytes/asked"] = float(cohort.down + cohort.up)
        else:
            del self._seconds["ask"]
        if server.round % config.evaluation.every == 0 or server.round == config.rounds:
            metrics.update(self._timed("evaluate", self.evaluate))
        metrics.update({f"time/{name}": seconds for name, seconds in self._seconds.items()})
        metrics["time/round"] = time.perf_counter() - started
        if metrics.get("train/samples") and self._seconds["train"]:
            metrics["time/samples_per_second"] = metrics["train/samples"] / self._seconds["train"]
        metrics.update({f"bytes/{name}": float(count) for name, count in self._bytes.items()})
        inline = isinstance(self.executor, InlineExecutor)
        metrics.update(self.usage.since_last_round(inline=inline))
        if self.early_stop is not None:
            self.early_stop.add(metrics)
            if self.early_stop.reason:
                self.warn(f"round {server.round} is the last: {self.early_stop.reason}")
        self._last = RoundResult(server.round, metrics, self.has_ended())
        self.between_rounds = True
        return self._last

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the current models."""
        return {**evaluate(self), **evaluate_unseen(self)}

    def wait_for_round(self) -> RoundResult | None:
        """Return the last round, or None if it was interrupted: nothing runs in the background here."""
        return self._last if self.between_rounds else None

    def restart(self) -> None:
        """Restart after a loss; the caller restores the last checkpoint."""
        self.reset()

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint; see `flray.federation.checkpoint.save`."""
        checkpoint.save(self, folder, keep)

    def restore(self, folder: Path) -> int:
        """Restore the newest complete checkpoint; return the rounds done."""
        return checkpoint.restore(self, folder, self.warn)

    def diagnostics(self, final: bool) -> Diagnostics:
        """Return the models' data for figures; see `flray.federation.diagnostics`."""
        return collect_diagnostics(self, final)

    def gpus(self) -> list[GpuIdentity]:
        """Return the kinds of GPU that clients are computed on, and the server's if it trains."""
        own = identity.gpu_identity(self._device) if self.spec.algorithm.trains_at_server else None
        return identity.distinct([own, *self.executor.gpus()])

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each process that runs tasks."""
        return self.executor.memory()

    def close(self) -> None:
        """Close the executor."""
        self.executor.close()

    def _stage(self, stage: Stage, works: Mapping[int, float], round_metrics: RoundMetrics) -> None:
        server, algorithm = self.server, self.spec.algorithm
        token = uuid.uuid4().hex
        commons, sizes = self._timed("send", lambda: self.message(stage))
        jobs: list[TaskInput] = []
        for client in [client for client in server.cohort if client not in round_metrics.left_out]:
            with self.hook("send_private"):
                private = algorithm.send_private(server, client, stage)
            packed = trees.pack(private) if private else None
            info = server.clients[client]
            self._bytes["down"] += sizes[info.architecture] + (
                packed.nbytes if packed is not None else 0
            )
            client_task = ClientTask(
                "stage",
                client,
                server.round,
                info.architecture,
                stage,
                works[client],
                token=token,
                cost=info.num_samples * works[client],
            )
            jobs.append(
                TaskInput(client_task, commons[info.architecture], packed, self.states[client])
            )
        replies: StageReplies | BlockSums
        begun = time.perf_counter()
        size = self.spec.config.aggregation.block
        if size is None or not algorithm.takes_mean_only():
            replies = (
                StageReplies(self, jobs, stage, round_metrics)
                if size is None
                else BlockwiseReplies(self, jobs, stage, round_metrics, size)
            )
            try:
                with self.hook("aggregate"):
                    algorithm.aggregate(server, stage, replies)
                replies.wait()
            finally:
                replies.release()
        else:
            replies = BlockSums(self, into_blocks(jobs, size), stage, round_metrics)
            for architecture, mean in replies.means().items():
                with self.hook("apply"):
                    algorithm.apply(server, architecture, mean)
        if jobs and not replies.states:
            raise NobodyAnsweredError(
                f"round {server.round + 1}, {stage.name}: none of the {len(jobs)} clients "
                f"answered, so nothing can be "
                "learnt from it; see what was said of each, or give them longer "
                "(faults.round_timeout)"
            )
        elapsed = time.perf_counter() - begun
        self._seconds["train"] += replies.waited
        self._seconds["receive"] += replies.fetched
        self._seconds["aggregate"] += elapsed - replies.waited - replies.fetched
        self._bytes["up"] += replies.up
        for client, handle in replies.states.items():
            self.states[client] = handle
            self.versions[client] = server.round + 1

    def _warn_of_divergence(self, clients: Collection[int]) -> None:
        """Warn once that training has diverged; later results are meaningless."""
        if clients and not self._diverged:
            self._diverged = True
            some = ", ".join(self.server.clients[client].name for client in sorted(clients)[:3])
            self.warn(
                f"round {self.server.round + 1}: the loss of {len(clients)} of "
                f"{len(self.server.cohort)} clients "
                f"({some}{', ...' if len(clients) > 3 else ''}) is no finite number, training has "
                f"diverged: "
                "lower local.lr, or set local.clip_norm, for example to 1"
            )

    def _timed(self, name: str, call: Callable[[], T]) -> T:
        begun = time.perf_counter()
        result = call()
        self._seconds[name] += time.perf_counter() - begun
        return result


def inline_federation(spec: FederationSpec, warn: Notify = print) -> Federation:
    """Return a federation whose clients run in this process."""
    return Federation(spec, InlineExecutor(spec), warn)
