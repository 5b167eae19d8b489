"""A federation: runs rounds on an executor, evaluates, saves and restores."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from flray import bits, devices, rng
from flray.algorithms.types import Stage
from flray.devices import GpuIdentity
from flray.errors import MethodError, nearest
from flray.federation import FederationSpec, checkpoint, work_share
from flray.federation.evaluation import collect_diagnostics, evaluate, evaluate_unseen, predict
from flray.federation.messages import NobodyAnsweredError, TaskInput
from flray.federation.replies import Cohort, RoundMetrics, aggregate
from flray.federation.state import FederationState, Notify, each_within
from flray.federation.worker.client_runner import InlineExecutor
from flray.federation.worker.diagnostics import Diagnostics
from flray.metrics import VIEWS
from flray.samplers import Sampling, check_clients, choose

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
        return Cohort([0], {})
    sampler = participation.sampler
    drops = rng.numpy_generator(seed, "dropouts", round=server.round).random(count)
    sizes: dict[int, int] = {}
    answers: dict[int, dict[str, float]] = {}

    def ask(numbers: Iterable[int]) -> dict[int, dict[str, float]]:
        """Return the metrics of clients' models on their training samples."""
        wanted = check_clients(sampler.name, numbers, server.round, count)
        new = [c for c in wanted if c not in sizes and drops[c] >= participation.dropout]
        alone = spec.algorithm.views[0] == "global" and spec.has_common
        message = (federation.whole_models if alone else federation.message)(Stage("evaluate"))
        tasks = federation.tasks_for("ask", new, message)
        for task, found in predict(federation, tasks):
            answers[task.client] = spec.task.summarise(found["train"])
        sizes.update({task.client_task.client: message.bytes_of(task) for task in tasks})
        return {client: dict(answers[client]) for client in wanted if client in answers}

    sampling = Sampling(
        server.round,
        spec.cohort_size,
        server.clients,
        rng.numpy_generator(seed, "sampling", round=server.round),
        federation.sampler_state,
        ask,
    )
    with federation.hook("choice", f"sampler {sampler.name}"):
        chosen = choose(sampler.name, partial(federation.sampler, **sampler.options), sampling)
    cohort = [c for c in chosen if drops[c] >= participation.dropout]
    asked = sorted(sizes.keys() - set(cohort))
    return Cohort(
        cohort,
        dict(_works(federation, cohort)),
        asked,
        sum(sizes[client] for client in asked),
        sum(FLOAT_BYTES * len(values) for values in answers.values()),
        [c for c in chosen if drops[c] < participation.dropout],
    )


def _works(federation: FederationState, cohort: Iterable[int]) -> Iterator[tuple[int, float]]:
    """Yield each client of a cohort with its share of the local work."""
    config, server = federation.spec.config, federation.server
    participation, local, count = config.participation, config.local, len(server.clients)
    generator = rng.numpy_generator(config.seed, "stragglers", round=server.round)
    slow, late = generator.random(count), participation.straggler_work
    most = local.steps or max(int(local.epochs), 1)
    drawn, of_own = generator.integers(1, most + 1, count), generator.random(count)
    for client in cohort:
        share = work_share(config, server.clients[client])
        exact = share == 1
        if slow[client] < participation.stragglers:
            if late != "drawn":
                share *= late
            elif exact:
                exact, share = False, float(drawn[client]) / most
            else:  # whole epochs out of the client's own number
                own = max(int(round(share * most, 9)), 1)
                share = min(share, (1 + int(of_own[client] * own)) / most)
        # A product that is rounded up to whole steps must not gain one.
        yield client, share if exact else share * (1 - 1e-12)


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
    `flray.federation.ray_backend.handle.ServerActor`, whose handle
    `flray.federation.ray_backend.handle.RayFederation` has the same methods.
    """

    def reset(self) -> None:
        """Reset to the state before round 1."""
        super().reset()
        self._last: RoundResult | None = None

    def step(self) -> RoundResult:
        """Run one round, evaluation included.

        Raises
        ------
        ClientError
            If a client's code raises and `faults.on_client_error` is ``fail``.
        """
        cohort = self._draw()
        with self.hook("exchanges"):
            stages = iter(self.spec.algorithm.exchanges(self.server))
        for stage in each_within(partial(self.hook, "exchanges"), stages):
            self._aggregate(stage, self._send(stage, cohort))
        self._refine()
        self.server.round += 1
        every, rounds = self.spec.config.evaluation.every, self.spec.config.rounds
        due = self.server.round % every == 0 or self.server.round == rounds
        # The last round is evaluated, also if a training metric ends the run.
        if due or self._stops():
            with (
                self.record.timed("evaluate"),
                self.hook("evaluation", f"task {self.spec.task.name}"),
            ):
                self.record.add_metrics(self.evaluate())
        if due:
            self._stops()
        return self._finish()

    def _draw(self) -> Cohort:
        """Begin a round by choosing its clients."""
        self._last, self.server.metrics, self.number = None, {}, self.server.round + 1
        self.record = RoundMetrics(self.server)
        with self.record.timed("ask"):
            cohort = draw_cohort(self)
        self.server.cohort = cohort.clients
        self.record.add_cohort(cohort)
        return cohort

    def _send(self, stage: Stage, cohort: Cohort) -> list[TaskInput]:
        """Return the tasks of a stage with their messages."""
        with self.record.timed("send"):
            message = self.message(stage)
            clients = [c for c in self.server.cohort if c not in self.record.left_out]
            tasks = self.tasks_for("stage", clients, message, cohort.works)
        self.record.bytes["down"] += sum(map(message.bytes_of, tasks))
        return tasks

    def _aggregate(self, stage: Stage, tasks: list[TaskInput]) -> None:
        """Let the clients compute, and aggregate their replies."""
        with self.record.timed("aggregate"):
            states = aggregate(self, tasks, stage, self.record)
        if tasks and not states:
            raise NobodyAnsweredError(
                f"round {self.number}, {stage.name}: none of the {len(tasks)} clients answered, so nothing "
                "can be learnt from it; see what was said of each, or give them longer (faults.round_timeout)"
            )
        for client, handle in states.items():
            self.states[client], self.versions[client] = handle, self.number

    def _refine(self) -> None:
        self._warn_of_divergence()
        with self.record.timed("aggregate"), self.hook("refine"):
            self.spec.algorithm.refine(self.server)
        with self.hook("server.metrics"):
            # The last two: a history's first column, and what a sweep tracks of every round.
            taken = [*self.record.summary(), "round", "score"] if self.server.metrics else []
            for name in self.server.metrics:
                if name in taken or name.rpartition("/")[0] in VIEWS:
                    own = f"{self.spec.config.algorithm.name}/{name.rpartition('/')[2]}"
                    why = "which flray tracks by itself; take another name, such as"
                    raise MethodError(f"server.log({name!r}) would replace {name}, {why} {own}")
            self.record.add_metrics(self.server.metrics)

    def _stops(self) -> bool:
        """Return whether early stopping ends the federation with this round, which counts once more at each call."""
        if self.early_stop is None:
            return False
        metrics, wanted = self.record.summary(), self.early_stop.metric
        self.early_stop.add(metrics)
        if self.early_stop.reason:
            self.warn(f"round {self.server.round} is the last: {self.early_stop.reason}")
        elif wanted not in metrics and self.spec.primary_metric in metrics:  # an evaluated round
            self.warn_once(
                "stop.metric",
                f"experiment.stop.metric: found {wanted!r}, which round {self.server.round} did not "
                f"measure{nearest(wanted, metrics)}; stop has no effect without it",
            )
        return bool(self.early_stop.reason)

    def _finish(self) -> RoundResult:
        """Return the result of a round."""
        inline = isinstance(self.executor, InlineExecutor)
        metrics = self.record.summary() | self.usage.since_last_round(inline=inline)
        self._last = RoundResult(self.server.round, metrics, self.has_ended())
        return self._last

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the current models."""
        return {**evaluate(self), **evaluate_unseen(self)}

    def wait_for_round(self) -> RoundResult | None:
        """Return the last round, or None if it was interrupted: nothing runs in the background here."""
        return self._last

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
        """Return the models' data for figures; see `flray.federation.evaluation.collect_diagnostics`."""
        return collect_diagnostics(self, final)

    def gpus(self) -> list[GpuIdentity]:
        """Return the kinds of GPU that clients are computed on, and the server's if it trains."""
        own = devices.gpu_identity(self._device) if self.spec.algorithm.trains_at_server else None
        return devices.distinct([own, *self.executor.gpus()])

    def close(self) -> None:
        """Close the executor."""
        self.executor.close()

    def _warn_of_divergence(self) -> None:
        """Warn once that training has diverged, which makes later results meaningless, or of mixed processors."""
        if clients := sorted(self.record.diverged):
            some = ", ".join(self.server.clients[client].name for client in clients[:3])
            self.warn_once(
                "diverged",
                f"round {self.number}: the loss of {len(clients)} of {len(self.server.cohort)} clients "
                f"({some}{', ...' if len(clients) > 3 else ''}) is no finite number, training has diverged: lower "
                "local.lr, or set local.clip_norm, for example to 1",
            )
        mixed = {"kinds": bits.MIXED, "gpu_kinds": f"{devices.MIXED}; {devices.ADVICE}"}
        for kinds, line in mixed.items():
            if len(getattr(self.executor, kinds, ())) > 1:
                self.warn_once(kinds, line)


def inline_federation(spec: FederationSpec, warn: Notify = print) -> Federation:
    """Return a federation whose clients run in this process."""
    return Federation(spec, InlineExecutor(spec), warn)
