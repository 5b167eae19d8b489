"""Runs client tasks in one process: (task, messages, state) -> (outcome, reply, new state), a pure function.

No task leaves anything behind that the next one could read: every task sets all parameters and
buffers.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, TypeAlias

import numpy as np
import psutil
import torch

from flray import rng, trees
from flray.algorithms.base import Algorithm
from flray.algorithms.client import Client
from flray.algorithms.common.aggregation import BlockSum, weight_of
from flray.algorithms.common.batched_clients import train_batched
from flray.algorithms.types import Phase, Predictor
from flray.data.types import ClientIndices, Rows
from flray.devices.memory import again_without_cache, keep_freed_memory, peak_bytes, reserved_bytes
from flray.devices.settings import make_repeatable
from flray.federation.failures import MACHINE_ERRORS, describe_failure
from flray.federation.messages import (
    ClientTask,
    ProcessUsage,
    TaskInput,
    TaskOutcome,
    join_predictions,
    split_small,
)
from flray.federation.spec import FederationSpec, evaluation_chunks
from flray.federation.worker.diagnostics import (
    MAX_CLIENTS,
    MAX_FEATURE_SAMPLES,
    MAX_PROBE_SAMPLES,
    client_diagnostics,
    evenly_spaced,
)
from flray.federation.worker.resources import WorkerResources
from flray.trees import Packed

Exhausted: TypeAlias = Literal["report", "raise", "exit"]
# A task's outcome, the large part of its reply, and the client's new state.
RunnerOutput: TypeAlias = tuple[TaskOutcome, Packed | None, Packed | None]


class ClientRunner:
    """The clients' side in one process.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    device : torch.device
        Device of models and data.
    threads : int
        Torch threads; set for the whole process.
    share : float
        Share of the GPU that is this process's.
    exhausted : {"report", "raise", "exit"}
        What becomes of a task for which the device has no memory twice, or whose device has
        failed: the client's failure, the error itself, or the end of this process, whose tasks
        are then run elsewhere.
    """

    def __init__(
        self,
        spec: FederationSpec,
        device: torch.device,
        threads: int,
        share: float = 1.0,
        exhausted: Exhausted = "report",
    ) -> None:
        self._exhausted = exhausted
        torch.set_num_threads(threads)
        tf32 = spec.config.local.precision == "tf32"
        make_repeatable(device, tf32=tf32, share=share)
        keep_freed_memory(large=True)
        spec.register_components()
        self.spec, self.device = spec, device
        self.task = spec.task
        self._process = psutil.Process()
        self._resources = WorkerResources(spec, device, share)
        self._common: tuple[str, dict[str, Any]] = ("", {})

    def run(
        self,
        client_task: ClientTask,
        common: Packed,
        private: Packed | None,
        state: Packed | None,
        sums: BlockSum | None = None,
    ) -> tuple[TaskOutcome, Packed | None, Packed | None]:
        """Run a task; an exception of the method or the model becomes a failure in the outcome.

        If there are `sums`, the reply's weights are added to them instead of being returned.
        """
        started = time.perf_counter()
        try:
            cuda = [self.device] if self.device.type == "cuda" else []
            with torch.random.fork_rng(devices=cuda):
                seed = rng.key(
                    self.spec.config.seed,
                    "dropout",
                    round=client_task.round,
                    client=client_task.client,
                    extra=f"{client_task.kind}/{client_task.stage.name}/{client_task.stage.index}",
                )
                rng.seed_default_generators(seed, self.device)
                if client_task.kind == "stage":
                    return again_without_cache(
                        lambda: self._stage(client_task, common, private, state, started, sums)
                    )
                predictions = again_without_cache(
                    lambda: self._evaluated(client_task, common, private, state)
                )
            return (
                TaskOutcome(
                    client_task.client,
                    predictions=predictions,
                    seconds=time.perf_counter() - started,
                    usage=self._usage(),
                ),
                None,
                None,
            )
        except Exception as error:
            self._end_if_exhausted(error)
            return _failed(client_task, error, time.perf_counter() - started)

    def _evaluated(
        self, client_task: ClientTask, common: Packed, private: Packed | None, state: Packed | None
    ) -> dict[str, Any]:
        if client_task.kind == "diagnostics":
            return self._diagnose(client_task, common, private, state)
        if client_task.kind == "global":
            return self._global(client_task, common, private, state)
        if client_task.kind == "unseen":
            return self._unseen(client_task, common)
        if client_task.kind == "ask":
            return self._asked(client_task, common, private, state)
        return self._personal(client_task, common, private, state)

    def _end_if_exhausted(self, error: Exception) -> None:
        """Apply the `exhausted` policy to a device error."""
        if not isinstance(error, MACHINE_ERRORS) or self._exhausted == "report":
            return
        if self._exhausted == "raise":
            raise error
        print(f"this process ends: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)

    def run_block(
        self, jobs: Sequence[TaskInput]
    ) -> tuple[list[TaskOutcome], Packed | None, list[Packed | None]]:
        """Run jobs of one stage in sequence.

        Parameters
        ----------
        jobs : sequence of TaskInput
            In client order, with packed trees for references.

        Returns
        -------
        outcomes : list of TaskOutcome
            One per job, failed ones included. If a failure ends the federation, the list stops
            there.
        sums : Packed or None
            The tree of `flray.algorithms.common.aggregation.BlockSum` over the successful jobs; None
            if they sent no weights.
        states : list of Packed or None
            The clients' new states, one per job.
        """
        sums = BlockSum()
        outcomes: list[TaskOutcome] = []
        states: list[Packed | None] = [None] * len(jobs)
        for position, (outcome, _, state) in enumerate(self._run_in_order(jobs, sums)):
            outcomes.append(outcome)
            states[position] = state
            if outcome.failure is not None and self.spec.config.faults.on_client_error == "fail":
                break
        tree = sums.tree()
        return outcomes, trees.pack(tree) if tree else None, states

    def _run_in_order(self, jobs: Sequence[TaskInput], sums: BlockSum) -> Iterator[RunnerOutput]:
        """Run a block's jobs in order; with batched clients, neighbours of one architecture together."""
        together = self.spec.config.local.clients_per_step
        for _, alike in groupby(jobs, lambda job: job.client_task.architecture):
            neighbours = list(alike)
            for start in range(0, len(neighbours), together):
                some = neighbours[start : start + together]
                if len(some) > 1:
                    yield from self._run_batched(some, sums)
                else:
                    yield from (
                        self.run(job.client_task, job.common, job.private, job.state, sums)
                        for job in some
                    )

    def _run_batched(self, jobs: Sequence[TaskInput], sums: BlockSum) -> Iterator[RunnerOutput]:
        """Run several clients' tasks in common steps; an error fails all of them."""
        started = time.perf_counter()
        try:
            clients, values = again_without_cache(lambda: self._trained(jobs))
            share = (time.perf_counter() - started) / len(jobs)
        except Exception as error:
            self._end_if_exhausted(error)
            seconds = (time.perf_counter() - started) / len(jobs)
            yield from (_failed(job.client_task, error, seconds) for job in jobs)
            return
        for job, client, weights in zip(jobs, clients, values, strict=True):
            begun = time.perf_counter() - share
            try:
                client.load(weights)
                yield self._answer(
                    job.client_task, client, self.spec.algorithm.report(client), begun, sums
                )
            except Exception as error:
                yield _failed(job.client_task, error, time.perf_counter() - begun)

    def _trained(self, jobs: Sequence[TaskInput]) -> tuple[list[Client], Any]:
        clients = [
            self._client(job.client_task, job.common, job.private, job.state) for job in jobs
        ]
        return clients, train_batched(self.spec.algorithm, clients)

    def networks(self) -> dict[str, int]:
        """Return how many instances of each architecture there are here: the trained one and its frozen copies."""
        return self._resources.networks()

    def _stage(
        self,
        client_task: ClientTask,
        common: Packed,
        private: Packed | None,
        state: Packed | None,
        started: float,
        sums: BlockSum | None,
    ) -> RunnerOutput:
        client = self._client(client_task, common, private, state)
        reply = getattr(self.spec.algorithm, client_task.stage.name)(client)
        client.check_received()
        return self._answer(client_task, client, reply, started, sums)

    def _answer(
        self,
        client_task: ClientTask,
        client: Client,
        reply: dict[str, Any],
        started: float,
        sums: BlockSum | None,
    ) -> RunnerOutput:
        """Build the task result: outcome, large part of the reply, new client state."""
        if client.resident.personal:
            client.state["personal"] = client.weights(client.resident.personal)
        if sums is not None:
            # The task's last step: a client that fails is not in the sums.
            samples = len(self.spec.data.clients[client_task.client].train)
            weight = weight_of(self.spec.weighting, samples)
            sums.add(client_task.architecture, reply.get("weights", {}), weight)
            reply = {}
        small, large = split_small(reply)
        packed_small, packed_large, packed_state = trees.pack_all(small, large, client.state)
        bulk = packed_large if large else None
        state = packed_state if client.state else None
        loss, tracked = client.numbers()
        outcome = TaskOutcome(
            client=client_task.client,
            small=packed_small,
            entries=tuple(large),
            stateful=state is not None,
            metrics={
                "loss": loss,
                "steps": float(client.steps),
                "samples": float(client.samples_seen),
                **tracked,
            },
            up=packed_small.nbytes + (bulk.nbytes if bulk is not None else 0),
            seconds=time.perf_counter() - started,
            usage=self._usage(),
        )
        return outcome, bulk, state

    def _usage(self) -> ProcessUsage:
        """Return the resources that this process has used so far."""
        return ProcessUsage(
            resident=self._process.memory_info().rss,
            peak=peak_bytes(),
            gpu_peak=reserved_bytes(self.device),
            cpu=time.process_time(),
        )

    def _client(
        self, client_task: ClientTask, common: Packed, private: Packed | None, state: Packed | None
    ) -> Client:
        data = self.spec.data
        rows = data.everyone[client_task.client]
        message = {
            **self._unpack(client_task, common),
            **(trees.unpack(private, self.device) if private is not None else {}),
        }
        client = Client(
            id=client_task.client,
            round=client_task.round,
            stage_index=client_task.stage.index,
            config=self.spec.config,
            resident=self._resources.resident(client_task.architecture),
            task=self.task,
            message=message,
            state=trees.unpack(state, self.device) if state is not None else {},
            train=self._resources.samples(self.spec.training_rows(client_task.client)),
            validation=self._resources.samples(rows.val),
            public=self._resources.public,
            num_classes=data.num_classes,
            work=client_task.work,
            device=self.device,
            residents=self._resources.resident,
        )
        if state is None and client_task.client < len(data.clients):
            self.spec.algorithm.setup(client)
        return client

    def _unpack(self, client_task: ClientTask, common: Packed) -> dict[str, Any]:
        """Return the common message on the device, moved there once per stage rather than once per client."""
        name = f"{client_task.token}/{client_task.architecture}"
        if not client_task.token or self._common[0] != name:
            self._common = (name, trees.unpack(common, self.device))
        return self._common[1]

    def _global(
        self, client_task: ClientTask, common: Packed, private: Packed | None, state: Packed | None
    ) -> dict[str, Any]:
        if client_task.client >= 0:
            client, rows = self._received(client_task, common, private, state)
            parts = {"test": rows.test, "validation": rows.val}
            return {n: self._predict(client.model.eval(), p) for n, p in parts.items() if len(p)}
        resident = self._resources.resident(client_task.architecture)
        resident.load(self._unpack(client_task, common)["weights"])
        return {
            "common": self._predict(
                resident.model.eval(), evaluation_chunks(self.spec.data)[client_task.block]
            )
        }

    def _personal(
        self, client_task: ClientTask, common: Packed, private: Packed | None, state: Packed | None
    ) -> dict[str, Any]:
        algorithm, data = self.spec.algorithm, self.spec.data
        client, predictor = self.personal_model(client_task, common, private, state)
        rows = data.clients[client_task.client]
        others = self.spec.config.evaluation.others
        predictions = {"test": self._predict(predictor, data.test if others else rows.test)}
        if len(rows.val):
            predictions["validation"] = self._predict(predictor, rows.val)
        return {
            **predictions,
            **{
                f"{name}/local": self._predict(part, rows.test)
                for name, part in algorithm.parts(client).items()
            },
        }

    def personal_model(
        self, client_task: ClientTask, common: Packed, private: Packed | None, state: Packed | None
    ) -> tuple[Client, Predictor]:
        """Return a client in test mode, and the predictor that scores its samples; both hold until the next task."""
        client, _ = self._received(client_task, common, private, state)
        return client, self.spec.algorithm.predictor(client, "personal")

    def _received(
        self, client_task: ClientTask, common: Packed, private: Packed | None, state: Packed | None
    ) -> tuple[Client, ClientIndices]:
        """Return a client that has received its model, and the rows that it holds."""
        client = self._client(client_task, common, private, state)
        self.spec.algorithm.receive(client)
        client.check_received()
        return client, self.spec.data.clients[client_task.client]

    def _unseen(self, client_task: ClientTask, common: Packed) -> dict[str, Any]:
        """Test the global model on a client that takes no part in training, and again after local steps from it."""
        client = self._client(client_task, common, None, None)
        client.load(client.message["weights"])
        test = self.spec.data.everyone[client_task.client].test
        found = {}
        if self.spec.has_common:
            found["global"] = self._predict(client.model.eval(), test)
        if steps := self.spec.config.evaluation.adapt_steps:
            Algorithm().train_phase(client, Phase(tag="adapt", local={"steps": steps}))
            found["adapted"] = self._predict(client.model.eval(), test)
        return found

    def _asked(
        self, client_task: ClientTask, common: Packed, private: Packed | None, state: Packed | None
    ) -> dict[str, Any]:
        predictor: Predictor
        if self.spec.algorithm.views[0] == "global" and self.spec.has_common:
            resident = self._resources.resident(client_task.architecture)
            resident.load(self._unpack(client_task, common)["weights"])
            predictor = resident.model.eval()
        else:
            _, predictor = self.personal_model(client_task, common, private, state)
        return {"train": self._predict(predictor, self.spec.data.clients[client_task.client].train)}

    def _diagnose(
        self, client_task: ClientTask, common: Packed, private: Packed | None, state: Packed | None
    ) -> dict[str, Any]:
        data = self.spec.data
        client = self._client(client_task, common, private, state)
        self.spec.algorithm.receive(client)
        predictor = self.spec.algorithm.predictor(client, self.spec.algorithm.views[0])
        share = max(1, MAX_FEATURE_SAMPLES // min(len(data.clients), MAX_CLIENTS))
        test = self._resources.samples(evenly_spaced(data.clients[client_task.client].test, share))
        if data.public is None:
            probes = self._resources.samples(evenly_spaced(data.test, MAX_PROBE_SAMPLES))
        else:
            probes = self._resources.public_samples(
                evenly_spaced(np.arange(len(data.public)), MAX_PROBE_SAMPLES)
            )
        return {"diagnostics": client_diagnostics(client, predictor, probes, test)}

    @torch.no_grad()
    def _predict(self, predictor: Predictor, rows: Rows) -> dict[str, Any]:
        samples = self._resources.samples(rows, once=True)
        return join_predictions(
            [
                self.task.predictions(predictor(x), y)
                for x, y in samples.in_order(self.spec.config.evaluation.batch_size)
            ]
        )


def _failed(client_task: ClientTask, error: Exception, seconds: float) -> RunnerOutput:
    failure = describe_failure(error)
    return TaskOutcome(client_task.client, failure=failure, seconds=seconds), None, None
