"""Runs client tasks in one process: (task, messages, state) -> (outcome, reply, new state), a pure function.

No task leaves anything behind that the next one could read: every task sets all parameters and
buffers.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from flray import devices, rng, trees
from flray.algorithms.base import Algorithm, Client, Phase, Predictor
from flray.algorithms.common.aggregation import BlockSum, add_up, weight_of
from flray.algorithms.common.batched_clients import train_batched
from flray.data.types import Rows
from flray.federation import FederationSpec, messages
from flray.federation.worker import diagnostics
from flray.federation.worker.resources import WorkerResources, default_device, thread_count
from flray.trees import Packed

Exhausted: TypeAlias = Literal["report", "raise", "exit"]
# A task's outcome, the large part of its reply, and the client's new state.
RunnerOutput: TypeAlias = tuple[messages.TaskOutcome, Packed | None, Packed | None]


class ClientRunner:
    """The clients' side in one process.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    device : torch.device
        Device of models and data.
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
        share: float = 1.0,
        exhausted: Exhausted = "report",
    ) -> None:
        self._exhausted = exhausted
        torch.set_num_threads(thread_count(spec.config))  # for the whole process
        devices.make_repeatable(device, **spec.repeatable, share=share)
        devices.keep_freed_memory(large=True)
        spec.register_components()
        self.spec, self.device = spec, device
        self.task = spec.task
        self._resources = WorkerResources(spec, device, share)
        self._common: tuple[str, dict[str, Any]] = ("", {})
        self._has_parts = type(spec.algorithm).parts is not Algorithm.parts

    def run(self, job: messages.TaskInput, sums: BlockSum | None = None) -> RunnerOutput:
        """Run a task; an exception of the method or the model becomes a failure in the outcome.

        If there are `sums`, the reply's weights are added to them instead of being returned.
        """
        started, task = time.perf_counter(), job.client_task
        try:
            with rng.default_generators_kept(self.device):
                seed = rng.key(
                    self.spec.config.seed,
                    "dropout",
                    round=task.round,
                    client=task.client,
                    extra=f"{task.kind}/{task.stage.name}/{task.stage.index}",
                )
                rng.seed_default_generators(seed, self.device)
                if task.kind == "stage":
                    return devices.again_without_cache(lambda: self._stage(job, started, sums))
                added, predictions = None, {}
                if task.kind == "sum":
                    added = add_up(job.entry, job.parts)
                else:
                    evaluate = getattr(self, f"_{task.kind}")
                    predictions = devices.again_without_cache(lambda: evaluate(job))
            outcome = messages.TaskOutcome(
                entries=("sum",) if added is not None else (),
                predictions=predictions,
                seconds=time.perf_counter() - started,
                usage=self._usage(),
            )
            return outcome, added, None
        except Exception as error:
            self._end_if_exhausted(error)
            return _failed(error, time.perf_counter() - started)

    def _end_if_exhausted(self, error: Exception) -> None:
        """Apply the `exhausted` policy to a device error."""
        if not isinstance(error, messages.MACHINE_ERRORS) or self._exhausted == "report":
            return
        if self._exhausted == "raise":
            raise error
        print(f"this process ends: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)

    def run_block(
        self, block: messages.TaskBlock
    ) -> tuple[list[messages.TaskOutcome], Packed | None, list[Packed | None]]:
        """Run a block, whose references are packed trees.

        Returns
        -------
        outcomes : list of TaskOutcome
            One per task, failed ones included. If a failure ends the federation, the list stops
            there.
        bulk : Packed or None
            The large part of the only reply, or the tree of
            `flray.algorithms.common.aggregation.BlockSum` over the successful tasks; None if there
            is none.
        states : list of Packed or None
            The clients' new states, one per task.
        """
        if not block.summed:
            (job,) = block.jobs
            outcome, bulk, state = self.run(job)
            return [outcome], bulk, [state]
        sums = BlockSum()
        outcomes: list[messages.TaskOutcome] = []
        states: list[Packed | None] = [None] * len(block.jobs)
        for position, (outcome, _, state) in enumerate(self._run_in_order(block.jobs, sums)):
            outcomes.append(outcome)
            states[position] = state
            if outcome.failure is not None and self.spec.config.faults.on_client_error == "fail":
                break
        tree = sums.tree()
        return outcomes, trees.pack(tree) if tree else None, states

    def _run_in_order(
        self, jobs: Sequence[messages.TaskInput], sums: BlockSum
    ) -> Iterator[RunnerOutput]:
        """Run a block's jobs in order; with batched clients, neighbours of one architecture together."""
        together = self.spec.config.local.clients_per_step
        for _, alike in groupby(jobs, lambda job: job.client_task.architecture):
            neighbours = list(alike)
            for start in range(0, len(neighbours), together):
                some = neighbours[start : start + together]
                if len(some) > 1:
                    yield from self._run_batched(some, sums)
                else:
                    yield self.run(some[0], sums)

    def _run_batched(
        self, jobs: Sequence[messages.TaskInput], sums: BlockSum
    ) -> Iterator[RunnerOutput]:
        """Run several clients' tasks in common steps; an error fails all of them."""
        started = time.perf_counter()
        try:
            clients, values = devices.again_without_cache(lambda: self._trained(jobs))
            share = (time.perf_counter() - started) / len(jobs)
        except Exception as error:
            self._end_if_exhausted(error)
            seconds = (time.perf_counter() - started) / len(jobs)
            yield from (_failed(error, seconds) for _ in jobs)
            return
        for job, client, weights in zip(jobs, clients, values, strict=True):
            begun = time.perf_counter() - share
            try:
                client.load(weights)
                reply = self.spec.algorithm.report(client)
                yield self._answer(job.client_task, client, reply, begun, sums)
            except Exception as error:
                yield _failed(error, time.perf_counter() - begun)

    def _trained(self, jobs: Sequence[messages.TaskInput]) -> tuple[list[Client], Any]:
        clients = [self._client(job) for job in jobs]
        return clients, train_batched(self.spec.algorithm, clients)

    def _stage(
        self, job: messages.TaskInput, started: float, sums: BlockSum | None
    ) -> RunnerOutput:
        client = self._client(job)
        reply = getattr(self.spec.algorithm, job.client_task.stage.name)(client)
        client.check()
        return self._answer(job.client_task, client, reply, started, sums)

    def _answer(
        self,
        client_task: messages.ClientTask,
        client: Client,
        reply: dict[str, Any],
        started: float,
        sums: BlockSum | None,
    ) -> RunnerOutput:
        """Build the task result: outcome, large part of the reply, new client state."""
        if kept := client.resident.personal:
            if set(client.state.get("personal") or kept) != kept:
                raise RuntimeError(
                    "client.state['personal'] holds the part of the model that does not travel, here "
                    f"{min(kept)!r}; give yours another name"
                )
            client.state["personal"] = client.weights(kept)
        if sums is not None:
            # The task's last step: a client that fails is not in the sums.
            samples = len(self.spec.data.clients[client_task.client].train)
            weight = weight_of(self.spec.weighting, samples)
            sums.add(client_task.architecture, reply.get("weights", {}), weight)
            reply = {}
        small, large = messages.split_small(reply)
        packed_small, *packed = trees.pack_all(small, *filter(None, (large, client.state)))
        bulk = packed[0] if large else None
        state = packed[-1] if client.state else None
        loss, tracked = client.numbers()
        outcome = messages.TaskOutcome(
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

    def _usage(self) -> messages.ProcessUsage:
        """Return the resources that this process has used so far; its memory as it was a moment ago."""
        gpu_peak = devices.reserved_bytes(self.device)
        return messages.ProcessUsage(*devices.memory_lately(), gpu_peak, time.process_time())

    def _client(self, job: messages.TaskInput) -> Client:
        data, task = self.spec.data, job.client_task
        train, validation = self._resources.samples_of(task.client)
        message = {
            **self._unpack(job),
            **(trees.unpack(job.private, self.device) if job.private is not None else {}),
        }
        client = Client(
            id=task.client,
            round=task.round,
            stage_index=task.stage.index,
            config=self.spec.config,
            resident=self._resources.resident(task.architecture),
            task=self.task,
            message=message,
            state=trees.unpack(job.state, self.device) if job.state is not None else {},
            train=train,
            validation=validation,
            public=self._resources.public,
            num_classes=data.num_classes,
            work=task.work,
            device=self.device,
            residents=self._resources.resident,
        )
        if job.state is None and task.client < len(data.clients):
            self.spec.algorithm.setup(client)
        return client

    def _received(self, job: messages.TaskInput) -> Client:
        """Return a client that has received its model, which is in eval mode."""
        client = self._client(job)
        self.spec.algorithm.receive(client)
        client.check()
        client.model.eval()
        return client

    def _unpack(self, job: messages.TaskInput) -> dict[str, Any]:
        """Return the common message on the device, moved there once per stage rather than once per client."""
        name = f"{job.client_task.token}/{job.client_task.architecture}"
        if not job.client_task.token or self._common[0] != name:
            self._common = (name, trees.unpack(job.common, self.device))
        return self._common[1]

    def _common_model(self, job: messages.TaskInput) -> Predictor:
        """Return the global model as it is."""
        resident = self._resources.resident(job.client_task.architecture)
        resident.load(self._unpack(job)["weights"])
        model: Predictor = resident.model.eval()
        return model

    def _global(self, job: messages.TaskInput) -> dict[str, Any]:
        if job.client_task.client < 0:
            chunk = self.spec.evaluated[job.client_task.block]
            return {"common": self._predict(self._common_model(job), chunk)}
        client, rows = self._received(job), self.spec.data.clients[job.client_task.client]
        parts = {"test": rows.test, "validation": rows.val}
        return {n: self._predict(client.model, p) for n, p in parts.items() if len(p)}

    def _personal(self, job: messages.TaskInput) -> dict[str, Any]:
        data, rows = self.spec.data, self.spec.data.clients[job.client_task.client]
        client, predictor = self.personal_model(job)
        others = self.spec.config.evaluation.others
        predictions = {"test": self._predict(predictor, data.test if others else rows.test)}
        if len(rows.val):
            predictions["validation"] = self._predict(predictor, rows.val)
        predictions |= {
            f"{name}/local": self._predict(part, rows.test)
            for name, part in self.spec.algorithm.parts(client).items()
        }
        client.check()
        return predictions

    def personal_model(self, job: messages.TaskInput) -> tuple[Client, Predictor]:
        """Return a client in test mode, and the predictor that scores its samples; both hold until the next task."""
        client = self._received(job)
        return client, self.spec.algorithm.predictor(client, "personal")

    def _unseen(self, job: messages.TaskInput) -> dict[str, Any]:
        """Test the global model on a client that takes no part in training, and again after local steps from it."""
        client = self._client(job)
        client.load(client.message["weights"])
        test = self.spec.data.everyone[job.client_task.client].test
        found = {}
        if self.spec.has_common:
            found["global"] = self._predict(client.model.eval(), test)
        if steps := self.spec.config.evaluation.adapt_steps:
            Algorithm().adapt(client, Phase(tag="adapt", local={"steps": steps}))
            found["adapted"] = self._predict(client.model.eval(), test)
        return found

    def _ask(self, job: messages.TaskInput) -> dict[str, Any]:
        alone = self.spec.algorithm.views[0] == "global" and self.spec.has_common
        predictor = self._common_model(job) if alone else self.personal_model(job)[1]
        rows = self.spec.data.clients[job.client_task.client].train
        return {"train": self._predict(predictor, rows)}

    def _diagnostics(self, job: messages.TaskInput) -> dict[str, Any]:
        data, algorithm = self.spec.data, self.spec.algorithm
        client = self._received(job)
        predictor = algorithm.predictor(client, algorithm.views[0])
        share = max(
            1, diagnostics.MAX_FEATURE_SAMPLES // min(len(data.clients), diagnostics.MAX_CLIENTS)
        )
        test = self._resources.samples(
            diagnostics.evenly_spaced(data.clients[client.id].test, share)
        )
        most = diagnostics.MAX_PROBE_SAMPLES
        probes = (
            self._resources.samples(diagnostics.evenly_spaced(data.test, most))
            if data.public is None
            else self._resources.public_samples(
                diagnostics.evenly_spaced(np.arange(len(data.public)), most)
            )
        )
        return {"diagnostics": diagnostics.client_diagnostics(client, predictor, probes, test)}

    @torch.no_grad()
    def _predict(self, predictor: Predictor, rows: Rows) -> dict[str, Any]:
        shared = self.spec.config.evaluation.others or self._has_parts
        with self._resources.test_batches(rows, shared) as batches:
            found = [self.task.predictions(predictor(x), y) for x, y in batches]
        return {
            name: np.concatenate([one[name].cpu().numpy() for one in found]) for name in found[0]
        }


def _failed(error: Exception, seconds: float) -> RunnerOutput:
    return messages.TaskOutcome(messages.describe_failure(error), seconds=seconds), None, None


class InlineExecutor(messages.Executor):
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
        See `ClientRunner`.
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
        self._runner = ClientRunner(spec, device, share, exhausted)

    def run_blocks(
        self,
        blocks: Sequence[messages.TaskBlock],
        timeout: float | None = None,
        idle: float | None = None,
    ) -> Iterator[messages.TaskBlockResult]:
        """Run the blocks one after another; those not begun within `timeout` seconds fail.

        A task that hangs cannot be stopped in this process, so that `idle` has no effect.
        """
        started = time.monotonic()
        for block in blocks:
            if timeout is not None and time.monotonic() - started > timeout:
                late = messages.Failure(f"no answer within {timeout:g} s", "timeout")
                yield messages.TaskBlockResult.failed(block, late)
                continue
            outcomes, bulk, states = self._runner.run_block(block)
            up = bulk.nbytes if bulk is not None else 0
            yield messages.TaskBlockResult.of(block, outcomes, bulk, states, up=up)

    def gpus(self) -> list[devices.GpuIdentity]:
        """Return the kind of this process's GPU, if it computes on one."""
        return devices.distinct([devices.gpu_identity(self._runner.device)])

    def close(self) -> None:
        """Restore the process's number of torch threads."""
        torch.set_num_threads(self._threads)
