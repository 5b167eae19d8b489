"""A federation: runs rounds on an executor, evaluates, saves and restores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from flray import bits, rng
from flray.algorithms.types import Stage
from flray.devices import identity
from flray.devices.identity import GpuIdentity
from flray.federation import checkpoint
from flray.federation.diagnostics import collect_diagnostics
from flray.federation.evaluation import evaluate, evaluate_unseen, predict
from flray.federation.executor import InlineExecutor
from flray.federation.failures import NobodyAnsweredError, iterate_hook, method_hook
from flray.federation.replies import aggregate
from flray.federation.round_metrics import Cohort, RoundMetrics
from flray.federation.spec import FederationSpec
from flray.federation.state import FederationState, Notify
from flray.federation.worker.diagnostics import Diagnostics
from flray.samplers.sampling import Sampling, check_clients, choose

FLOAT_BYTES = 8
"""Bytes of each number that an asked client answers."""


def draw_cohort(federation: FederationState) -> Cohort:
    """Return the next round's cohort.

    Draws are keyed by seed and round, so they do not depend on the workers or on kills.

    Raises
    ------
    MethodError
        If a sampler of the user's own raises, or returns no clients.
    """
    spec, server = federation.spec, federation.server
    participation, seed, count = spec.config.participation, spec.config.seed, len(server.clients)
    if spec.algorithm.pools:
        return Cohort([0], {0: 1.0})
    sampler = participation.sampler
    drops = rng.numpy_generator(seed, "dropouts", round=server.round).random(count)
    slow = rng.numpy_generator(seed, "stragglers", round=server.round).random(count)
    sizes: dict[int, int] = {}
    answers: dict[int, dict[str, float]] = {}

    def ask(numbers: Iterable[int]) -> dict[int, dict[str, float]]:
        wanted = check_clients(sampler.name, numbers, server.round, count)
        new = [c for c in wanted if c not in sizes and drops[c] >= participation.dropout]
        found, sent = _ask(federation, new)
        sizes.update(sent)
        answers.update(found)
        return {client: dict(answers[client]) for client in wanted if client in answers}

    sampling = Sampling(
        server.round,
        spec.cohort_size,
        server.clients,
        rng.numpy_generator(seed, "sampling", round=server.round),
        federation.sampler_state,
        ask,
    )
    with method_hook(f"sampler {sampler.name}", "choice", server.round + 1):
        chosen = choose(sampler.name, sampler.options, sampling)
    cohort = [c for c in chosen if drops[c] >= participation.dropout]
    asked = sorted(sizes.keys() - set(cohort))
    return Cohort(
        cohort,
        {
            c: participation.straggler_work if slow[c] < participation.stragglers else 1.0
            for c in cohort
        },
        asked,
        sum(sizes[client] for client in asked),
        sum(FLOAT_BYTES * len(values) for values in answers.values()),
    )


def _ask(
    federation: FederationState, clients: list[int]
) -> tuple[dict[int, dict[str, float]], dict[int, int]]:
    """Return the metrics of clients' models on their training samples, and the bytes that were sent to each."""
    spec, server = federation.spec, federation.server
    alone = spec.algorithm.views[0] == "global" and spec.has_common
    message = (federation.whole_models if alone else federation.message)(Stage("evaluate"))
    jobs = [
        federation.task("ask", client, message, cost=float(server.clients[client].num_samples))
        for client in clients
    ]
    found = predict(federation, jobs, "asked before round", 1)
    return {
        client: spec.task.summarise(parts["train"])
        for client, parts in zip(clients, found, strict=True)
        if parts is not None
    }, {job.client_task.client: message.bytes_of(job) for job in jobs}


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
    `flray.federation.ray_backend.handle.ServerActor`. Both are driven through
    `flray.federation.federation.FederationHandle`.
    """

    def reset(self) -> None:
        """Reset to the state before round 1."""
        super().reset()
        self._last: RoundResult | None = None
        self.between_rounds = True

    def step(self) -> RoundResult:
        """Run one round, evaluation included.

        Raises
        ------
        ClientError
            If a client's code raises and `faults.on_client_error` is ``fail``.
        """
        server, algorithm, config = self.server, self.spec.algorithm, self.spec.config
        self.between_rounds, server.metrics, record = False, {}, RoundMetrics(server)
        with record.timed("ask"):
            cohort = draw_cohort(self)
        server.cohort = cohort.clients
        record.add_cohort(cohort)
        with self.hook("exchanges"):
            stages = algorithm.exchanges(server)
        for stage in iterate_hook(stages, config.algorithm.name, "exchanges", server.round + 1):
            self._exchange(stage, cohort, record)
        self._warn_of(record)
        with record.timed("aggregate"), self.hook("refine"):
            algorithm.refine(server)
        with self.hook("server.metrics"):
            record.add_metrics(server.metrics)
        server.round += 1
        if server.round % config.evaluation.every == 0 or server.round == config.rounds:
            with record.timed("evaluate"):
                evaluation = self.evaluate()
            record.add_metrics(evaluation)
        return self._finish(record)

    def _finish(self, record: RoundMetrics) -> RoundResult:
        """Return the result of a round; early stopping may end the federation with it."""
        inline = isinstance(self.executor, InlineExecutor)
        metrics = record.summary() | self.usage.since_last_round(inline=inline)
        if self.early_stop is not None:
            self.early_stop.add(metrics)
            if self.early_stop.reason:
                self.warn(f"round {self.server.round} is the last: {self.early_stop.reason}")
        self._last = RoundResult(self.server.round, metrics, self.has_ended())
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

    def _exchange(self, stage: Stage, cohort: Cohort, record: RoundMetrics) -> None:
        """Send a stage's messages, let the clients compute, and aggregate their replies."""
        server, works = self.server, cohort.works
        with record.timed("send"):
            message = self.message(stage)
            jobs = [
                self.task(
                    "stage",
                    client,
                    message,
                    work=works[client],
                    cost=server.clients[client].num_samples * works[client],
                )
                for client in server.cohort
                if client not in record.left_out
            ]
        record.bytes["down"] += sum(map(message.bytes_of, jobs))
        with record.timed("aggregate"):
            states = aggregate(self, jobs, stage, record)
        if jobs and not states:
            raise NobodyAnsweredError(
                f"round {server.round + 1}, {stage.name}: none of the {len(jobs)} clients "
                "answered, so nothing can be learnt from it; see what was said of each, or give "
                "them longer (faults.round_timeout)"
            )
        for client, handle in states.items():
            self.states[client], self.versions[client] = handle, server.round + 1

    def _warn_of(self, record: RoundMetrics) -> None:
        """Warn once that training has diverged, which makes later results meaningless, or of mixed processors."""
        if clients := sorted(record.diverged):
            some = ", ".join(self.server.clients[client].name for client in clients[:3])
            self.warn_once(
                "diverged",
                f"round {self.server.round + 1}: the loss of {len(clients)} of "
                f"{len(self.server.cohort)} clients ({some}{', ...' if len(clients) > 3 else ''}) "
                "is no finite number, training has diverged: lower local.lr, or set "
                "local.clip_norm, for example to 1",
            )
        for kinds, line in (
            ("kinds", bits.MIXED),
            ("gpu_kinds", f"{identity.MIXED}; {identity.ADVICE}"),
        ):
            if len(getattr(self.executor, kinds, ())) > 1:
                self.warn_once(kinds, line)


def inline_federation(spec: FederationSpec, warn: Notify = print) -> Federation:
    """Return a federation whose clients run in this process."""
    return Federation(spec, InlineExecutor(spec), warn)


class FederationHandle(Protocol):
    """A running federation, in this process or on Ray."""

    @property
    def between_rounds(self) -> bool:
        """Whether its state is that of a finished round, not of an interrupted one."""

    def step(self) -> RoundResult:
        """Run one round."""

    def wait_for_round(self) -> RoundResult | None:
        """After an interrupt: wait for the current round and return it; None if it was cut short or there is none."""

    def restart(self) -> None:
        """Restart after a loss; the caller restores the last checkpoint."""

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint."""

    def restore(self, folder: Path) -> int:
        """Restore the newest checkpoint; return the rounds done."""

    def has_ended(self) -> bool:
        """Return whether no round remains."""

    def sha256(self) -> str:
        """Return the digest of the learned state."""

    def diagnostics(self, final: bool) -> Diagnostics:
        """Return the models' data for figures; see `flray.federation.diagnostics`."""

    def gpus(self) -> list[GpuIdentity]:
        """Return the kinds of GPU that the federation computes on."""

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each process."""

    def close(self) -> None:
        """Release all resources."""
