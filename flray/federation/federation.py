"""A federation: owns the server's side, runs rounds on an executor, measures, saves and restores."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from flray import bits, rng, trees
from flray.algorithms.common.resident_model import ResidentModel
from flray.algorithms.server import ClientInfo, Server
from flray.algorithms.types import Stage
from flray.federation.evaluation import evaluate
from flray.federation.hooks import iterate_hook, method_hook
from flray.federation.memory import keep_freed_memory, peak_bytes, resident_bytes
from flray.federation.messages import ClientTask, Executor, NobodyAnsweredError, Ref, TaskInput
from flray.federation.replies import BlockSums, StageReplies, into_blocks
from flray.federation.round_metrics import RoundMetrics
from flray.federation.spec import FederationSpec
from flray.federation.worker.resources import WorkerResources, default_device, thread_count
from flray.trees import Packed

Notify = Callable[[str], None]


@dataclass
class RoundResult:
    """What one round was.

    Attributes
    ----------
    number : int
        From 1.
    metrics : dict of str to float
        Everything tracked, by name.
    """

    number: int
    metrics: dict[str, float] = field(default_factory=dict)


class Federation:
    """The rounds of one experiment.

    Parameters
    ----------
    spec : FederationSpec
        The experiment's unchanging part.
    executor : Executor
        Who plays the clients' turns.
    warn : callable
        Is given one line for everything a user should know at once, such as a client left out.
    """

    def __init__(self, spec: FederationSpec, executor: Executor, warn: Notify = print) -> None:
        keep_freed_memory()
        spec.register_components()
        self.spec, self.executor, self.warn = spec, executor, warn
        config, algorithm = spec.config, spec.algorithm
        residents = {
            key: ResidentModel(
                spec.build(key), algorithm.shared, config.aggregation.buffers == "local"
            )
            for key in spec.architectures
        }
        for key, resident in residents.items():
            if "batch_norm" in algorithm.shared and not resident.batch_norm:
                warn(
                    f"{key} has no batch norm: {config.algorithm.name} keeps nothing of it at the "
                    f"clients"
                )
        counts = (
            torch.from_numpy(spec.data.class_counts())
            if spec.data.has_classes
            else torch.zeros(len(spec.data.clients), 0, dtype=torch.int64)
        )
        self.server = Server(
            config=config,
            clients=tuple(
                ClientInfo(c.name, c.domain, len(c.train), counts[i], spec.architecture_of[i])
                for i, c in enumerate(spec.data.clients)
            ),
            models={key: resident.initial for key, resident in residents.items()},
            shared_names={key: resident.shared for key, resident in residents.items()},
            parameter_names={
                key: frozenset(resident.parameters) for key, resident in residents.items()
            },
            num_classes=spec.data.num_classes,
            num_public=len(spec.data.public) if spec.data.public is not None else 0,
            weighting=spec.weighting,
        )
        # The server's sums too: their last bits must not depend on OMP_NUM_THREADS of somebody's
        # environment.
        torch.set_num_threads(thread_count(config))
        if algorithm.trains_at_server:
            resources = WorkerResources(spec, default_device(spec))
            self.server.model_for, self.server.public = resources.resident, resources.public
        with self._hook("server_setup"):
            algorithm.server_setup(self.server)
        self.states: list[Ref] = [None] * len(spec.data.clients)
        self.versions: list[int] = [0] * len(spec.data.clients)
        self._diverged = self._mixed = False
        self._seconds: dict[str, float] = {}
        self._bytes = {"up": 0, "down": 0}

    @property
    def rounds_done(self) -> int:
        """Number of finished rounds."""
        return self.server.round

    def step(self) -> RoundResult:
        """Run one round, evaluation included.

        Raises
        ------
        ClientError
            If a client's code raises and ``faults.on_client_error`` is ``fail``.
        """
        server, config = self.server, self.spec.config
        started = time.perf_counter()
        self._seconds = dict.fromkeys(("send", "train", "receive", "aggregate", "evaluate"), 0.0)
        self._bytes = {"up": 0, "down": 0}
        server.metrics = {}
        server.cohort, works = self._cohort()
        round_metrics = RoundMetrics(server)
        with self._hook("exchanges"):
            stages = self.spec.algorithm.exchanges(server)
        for stage in iterate_hook(stages, config.algorithm.name, "exchanges", server.round + 1):
            self._stage(stage, works, round_metrics)
        self._warn_of_divergence(round_metrics.diverged)
        if not self._mixed and len(getattr(self.executor, "kinds", ())) > 1:
            self._mixed = True
            self.warn(bits.MIXED)
        with self._hook("refine"):
            self._timed("aggregate", lambda: self.spec.algorithm.refine(server))
        with self._hook("server.metrics"):
            own = {name: float(value) for name, value in server.metrics.items()}
        server.round += 1
        metrics = {**round_metrics.summary(), **own}
        if server.round % config.evaluation.every == 0 or server.round == config.rounds:
            metrics.update(self._timed("evaluate", self.evaluate))
        metrics.update({f"time/{name}": seconds for name, seconds in self._seconds.items()})
        metrics["time/round"] = time.perf_counter() - started
        if metrics.get("train/samples") and self._seconds["train"]:
            metrics["time/samples_per_second"] = metrics["train/samples"] / self._seconds["train"]
        metrics.update({f"bytes/{name}": float(count) for name, count in self._bytes.items()})
        metrics["memory/server"] = float(resident_bytes())
        metrics["memory/peak/server"] = float(peak_bytes())
        return RoundResult(server.round, metrics)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the current models; nothing changes."""
        return evaluate(self)

    def message(self, stage: Stage) -> tuple[dict[str, Ref], dict[str, int]]:
        """Return the common message of each architecture, put once, and its bytes."""
        with self._hook("send"):
            extra = self.spec.algorithm.send(self.server, stage)
        handles: dict[str, Ref] = {}
        sizes: dict[str, int] = {}
        for key, weights in self.server.models.items():
            shared = {
                name: weights[name] for name in weights if name in self.server.shared_names[key]
            }
            packed = trees.pack({**({"weights": shared} if shared else {}), **extra})
            handles[key], sizes[key] = self.executor.put(packed), packed.nbytes
        return handles, sizes

    def sha256(self) -> str:
        """Return one digest of everything the federation has learnt: global models, server and client states."""
        states = (
            {str(client): trees.unpack(self.executor.fetch(handle))}
            for client, handle in enumerate(self.states)
            if handle is not None
        )
        return trees.sha256(self.server.models, self.server.state, *states)

    def snapshot(self) -> dict[str, Any]:
        """Return the server's side as a tree (client states are saved apart, see `flray.federation.checkpoint`)."""
        tree = {
            "models": self.server.models,
            "state": self.server.state,
            "round": self.server.round,
        }
        with method_hook(self.spec.config.algorithm.name, "server.state", self.server.round):
            dict(trees.flatten(tree))  # what a method keeps may be of any type
        return tree

    def restore(
        self, tree: Mapping[str, Any], states: Mapping[int, Packed], versions: Sequence[int]
    ) -> None:
        """Continue from a snapshot and the client states that belong to it."""
        copied = trees.clone(tree)
        self.server.models, self.server.round = copied["models"], copied["round"]
        self.server.state = copied["state"]
        self.states = [
            self.executor.put(states[i]) if i in states else None for i in range(len(self.states))
        ]
        self.versions = list(versions)

    def _cohort(self) -> tuple[list[int], dict[int, float]]:
        """Return who takes part in this round, sorted, and each one's share of the local work."""
        spec, server = self.spec, self.server
        participation, seed, count = (
            spec.config.participation,
            spec.config.seed,
            len(spec.data.clients),
        )
        generator = rng.numpy_generator(seed, "sampling", round=server.round)
        chosen = sorted(int(c) for c in generator.permutation(count)[: spec.cohort_size])
        drops = rng.numpy_generator(seed, "dropouts", round=server.round).random(count)
        slow = rng.numpy_generator(seed, "stragglers", round=server.round).random(count)
        cohort = [c for c in chosen if drops[c] >= participation.dropout]
        works = {
            c: participation.straggler_work if slow[c] < participation.stragglers else 1.0
            for c in cohort
        }
        return cohort, works

    def _stage(self, stage: Stage, works: Mapping[int, float], round_metrics: RoundMetrics) -> None:
        server, algorithm = self.server, self.spec.algorithm
        token = uuid.uuid4().hex
        commons, sizes = self._timed("send", lambda: self.message(stage))
        jobs: list[TaskInput] = []
        for client in [client for client in server.cohort if client not in round_metrics.left_out]:
            with self._hook("send_private"):
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
        if (size := self.spec.config.aggregation.block) is None:
            replies = StageReplies(self, jobs, stage, round_metrics)
            with self._hook("aggregate"):
                algorithm.aggregate(server, stage, replies)
            replies.wait()
        else:
            replies = BlockSums(self, into_blocks(jobs, size), stage, round_metrics)
            for architecture, mean in replies.means().items():
                with self._hook("apply"):
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
        """Say once that training has diverged; everything after it is worth nothing."""
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

    def _hook(self, name: str) -> contextlib.AbstractContextManager[None]:
        return method_hook(self.spec.config.algorithm.name, name, self.server.round + 1)

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        result = call()
        self._seconds[name] += time.perf_counter() - begun
        return result
