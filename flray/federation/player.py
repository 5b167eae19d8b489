"""Plays turns in one process: (turn, messages, state) -> (outcome, reply, new state), a pure function.

Nothing of a turn is left behind that the next one could read: every turn sets all parameters and buffers.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from flray import keys, trees
from flray.algorithms.averaging import BlockSum
from flray.algorithms.client import Client
from flray.algorithms.together import trained
from flray.data.types import FederatedData
from flray.federation.executor import Failure, Job, Outcome, Turn, evidence_arrays, split_small
from flray.federation.memory import gpu_peak_bytes, keep_freed_memory, peak_bytes
from flray.federation.workshop import Workshop
from flray.federation.world import World
from flray.trees import Packed

# A turn's outcome, the large part of its reply, and the client's new state.
Answer: TypeAlias = tuple[Outcome, Packed | None, Packed | None]

BLOCK = 2048
"""Samples of the common test set in one evaluation turn; fixed, so that the bits do not depend on the workers."""


class Player:
    """The clients' side in one process.

    Parameters
    ----------
    world : World
        What is played.
    device : torch.device
        Where models and data live.
    threads : int
        Torch threads; set for the whole process.
    """

    def __init__(self, world: World, device: torch.device, threads: int) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        world.register_components()
        self.world, self.device = world, device
        self.task = world.task
        self._process = psutil.Process()
        self._workshop = Workshop(world, device)
        self._common: tuple[str, dict[str, Any]] = ("", {})

    def play(self, turn: Turn, common: Packed, private: Packed | None, state: Packed | None,
             sums: BlockSum | None = None) -> tuple[Outcome, Packed | None, Packed | None]:
        """Play a turn; an exception of the method or the model becomes a failure in the outcome.

        Where there are `sums`, the reply's weights are added to them instead of being returned.
        """
        started = time.perf_counter()
        try:
            cuda = [self.device] if self.device.type == "cuda" else []
            with torch.random.fork_rng(devices=cuda):
                torch.manual_seed(keys.key(self.world.config.seed, "dropout", round=turn.round, client=turn.client,
                                           extra=f"{turn.kind}/{turn.stage.name}/{turn.stage.index}"))
                if turn.kind == "stage":
                    return self._stage(turn, common, private, state, started, sums)
                if turn.kind == "portrait":
                    evidence = self._portrait(turn, common, private, state)
                else:
                    evidence = self._global(turn, common) if turn.kind == "global" \
                        else self._personal(turn, common, private, state)
            return Outcome(turn.client, evidence=evidence, seconds=time.perf_counter() - started,
                           resident=self._process.memory_info().rss), None, None
        except Exception as error:
            return Outcome(turn.client, failure=describe(error), seconds=time.perf_counter() - started), None, None

    def play_block(self, jobs: Sequence[Job]) -> tuple[list[Outcome], Packed | None, list[Packed | None]]:
        """Play jobs of one stage one after another.

        Parameters
        ----------
        jobs : sequence of Job
            In client order, with packed trees for handles.

        Returns
        -------
        outcomes : list of Outcome
            Those of failed clients among them; up to the first of these where it ends the federation.
        sums : Packed or None
            The tree of `flray.algorithms.averaging.BlockSum` over the others; None if they sent no weights.
        states : list of Packed or None
            The clients' new states, one per job.
        """
        sums = BlockSum(self.world.weighting)
        outcomes: list[Outcome] = []
        states: list[Packed | None] = [None] * len(jobs)
        for position, (outcome, _, state) in enumerate(self._played(jobs, sums)):
            outcomes.append(outcome)
            states[position] = state
            if outcome.failure is not None and self.world.config.faults.on_client_error == "fail":
                break
        tree = sums.tree()
        return outcomes, trees.pack(tree) if tree else None, states

    def _played(self, jobs: Sequence[Job], sums: BlockSum) -> Iterator[Answer]:
        """Play a block's jobs in their order; neighbours of one architecture together, where that is wanted."""
        together = self.world.config.local.clients_per_step
        for _, alike in groupby(jobs, lambda job: job.turn.architecture):
            neighbours = list(alike)
            for start in range(0, len(neighbours), together):
                some = neighbours[start:start + together]
                if len(some) > 1:
                    yield from self._together(some, sums)
                else:
                    yield from (self.play(job.turn, job.common, job.private, job.state, sums) for job in some)

    def _together(self, jobs: Sequence[Job], sums: BlockSum) -> Iterator[Answer]:
        """Play some clients' turns in common steps; what goes wrong is everyone's failure."""
        started = time.perf_counter()
        try:
            clients = [self._client(job.turn, job.common, job.private, job.state) for job in jobs]
            values = trained(self.world.algorithm, clients)
            share = (time.perf_counter() - started) / len(jobs)
        except Exception as error:
            failure = describe(error)
            seconds = (time.perf_counter() - started) / len(jobs)
            yield from ((Outcome(job.turn.client, failure=failure, seconds=seconds), None, None) for job in jobs)
            return
        for job, client, weights in zip(jobs, clients, values, strict=True):
            begun = time.perf_counter() - share
            try:
                client.load(weights)
                yield self._answer(job.turn, client, self.world.algorithm.report(client), begun, sums)
            except Exception as error:
                seconds = time.perf_counter() - begun
                yield Outcome(job.turn.client, failure=describe(error), seconds=seconds), None, None

    def networks(self) -> dict[str, int]:
        """Return how many instances of each architecture there are here: the trained one and its frozen twins."""
        return self._workshop.networks()

    def _stage(self, turn: Turn, common: Packed, private: Packed | None, state: Packed | None,
               started: float, sums: BlockSum | None) -> Answer:
        client = self._client(turn, common, private, state)
        reply = getattr(self.world.algorithm, turn.stage.name)(client)
        client.check_received()
        return self._answer(turn, client, reply, started, sums)

    def _answer(self, turn: Turn, client: Client, reply: dict[str, Any], started: float,
                sums: BlockSum | None) -> Answer:
        """Return what a client's turn came to."""
        if client.bench.personal:
            client.state["personal"] = client.weights(client.bench.personal)
        kept = trees.pack(client.state) if client.state else None
        if sums is not None:
            # The turn's last act: a client that fails is not in the sums.
            sums.add(turn.architecture, reply, len(self.world.data.clients[turn.client].train))
            reply = {}
        small, large = split_small(reply)
        packed_small = trees.pack(small)
        bulk = trees.pack(large) if large else None
        outcome = Outcome(
            client=turn.client, small=packed_small, entries=tuple(large), stateful=kept is not None,
            metrics={"loss": client.mean_loss, "steps": float(client.steps), "samples": float(client.samples_seen),
                     **client.metrics},
            up=packed_small.nbytes + (bulk.nbytes if bulk is not None else 0),
            seconds=time.perf_counter() - started, resident=self._process.memory_info().rss, peak=peak_bytes(),
            gpu_peak=gpu_peak_bytes(self.device))
        return outcome, bulk, kept

    def _client(self, turn: Turn, common: Packed, private: Packed | None, state: Packed | None) -> Client:
        data = self.world.data
        rows = data.clients[turn.client]
        message = {**self._unpack(turn, common), **(trees.unpack(private) if private is not None else {})}
        client = Client(
            id=turn.client, round=turn.round, stage_index=turn.stage.index, config=self.world.config,
            bench=self._workshop.bench(turn.architecture), task=self.task, message=message,
            state=trees.to_device(trees.unpack(state), self.device) if state is not None else {},
            train=self._workshop.samples(rows.train), validation=self._workshop.samples(rows.val),
            public=self._workshop.public, num_classes=data.num_classes, work=turn.work, device=self.device,
            benches=self._workshop.bench)
        if state is None:
            self.world.algorithm.setup(client)
        return client

    def _unpack(self, turn: Turn, common: Packed) -> dict[str, Any]:
        """Return the common message on the device, moved there once per stage rather than once per client."""
        name = f"{turn.token}/{turn.architecture}"
        if not turn.token or self._common[0] != name:
            self._common = (name, trees.to_device(trees.unpack(common), self.device))
        return self._common[1]

    def _global(self, turn: Turn, common: Packed) -> dict[str, Any]:
        bench = self._workshop.bench(turn.architecture)
        bench.load(self._unpack(turn, common)["weights"])
        return {"common": self._evidence(bench.model.eval(), blocks(self.world.data)[turn.block])}

    def _personal(self, turn: Turn, common: Packed, private: Packed | None, state: Packed | None) -> dict[str, Any]:
        algorithm, data = self.world.algorithm, self.world.data
        client = self._client(turn, common, private, state)
        algorithm.receive(client)
        client.check_received()
        predictor = algorithm.predictor(client, "personal")
        rows = data.clients[turn.client]
        others = self.world.config.evaluation.others
        evidence = {"test": self._evidence(predictor, data.test if others else rows.test)}
        if len(rows.val):
            evidence["validation"] = self._evidence(predictor, rows.val)
        return {**evidence, **{f"{name}/local": self._evidence(part, rows.test)
                               for name, part in algorithm.parts(client).items()}}

    def _portrait(self, turn: Turn, common: Packed, private: Packed | None, state: Packed | None) -> dict[str, Any]:
        from flray.federation import portrait

        data = self.world.data
        client = self._client(turn, common, private, state)
        self.world.algorithm.receive(client)
        predictor = self.world.algorithm.predictor(client, self.world.algorithm.views[0])
        share = max(1, portrait.SAMPLES // min(len(data.clients), portrait.CLIENTS))
        test = self._workshop.samples(portrait.chosen(data.clients[turn.client].test, share))
        if data.public is None:
            probes = self._workshop.samples(portrait.chosen(data.test, portrait.PROBES))
        else:
            probes = self._workshop.public_samples(portrait.chosen(np.arange(len(data.public)), portrait.PROBES))
        return {"portrait": portrait.sit(client, predictor, probes, test)}

    @torch.no_grad()
    def _evidence(self, predictor: Any, rows: Any) -> dict[str, Any]:
        samples = self._workshop.samples(rows)
        return evidence_arrays([self.task.evidence(predictor(x), y)
                                for x, y in samples.in_order(self.world.config.evaluation.batch_size)])


def blocks(data: FederatedData) -> list[NDArray[np.int64]]:
    """Return the rows of each evaluation turn of a global model: the common test set, then all validation parts."""
    return [rows[start:start + BLOCK] for rows in (data.test, data.validation) for start in range(0, len(rows), BLOCK)]


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its text, and what helps where memory was lacking."""
    what = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)):
        return f"out of memory ({what}); a smaller local.batch_size or fewer resources.actors need less"
    return what


def describe(error: BaseException) -> Failure:
    """Return what went wrong and where: the innermost line outside of installed libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and Path(f.filename).name != "player.py"
           and not f.filename.startswith(sys.base_prefix)]
    frame = (own or list(frames))[-1] if frames else None
    return Failure(
        what=first_line(error),
        where=f"{frame.filename}:{frame.lineno}" if frame else "",
        trace="".join(traceback.format_exception(error)))
