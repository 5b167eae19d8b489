"""The client actor: a Ray process that runs client tasks on its share of the CPUs or of a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

import ray
import torch

from flray import bits
from flray.algorithms.common.aggregation import add_up
from flray.data.types import Pooled
from flray.devices.identity import GpuIdentity, gpu_identity
from flray.errors import DataError
from flray.federation.messages import TaskInput
from flray.federation.ray_backend.granted import granted_device
from flray.federation.ray_backend.handles import Place
from flray.federation.ray_backend.node_cache import node_samples
from flray.federation.spec import FederationSpec
from flray.federation.worker.client_runner import ClientRunner
from flray.trees import Packed


class Description(TypedDict):
    """What a client actor tells of itself once it has started."""

    pid: int
    node: str
    kind: str
    gpu: GpuIdentity | None
    resident: int


class ClientActor:
    """A process that runs client tasks one at a time, on its share of the CPUs or of a GPU."""

    _title = ""  # Ray asks for it also where the constructor fails

    def __init__(
        self, spec: FederationSpec, threads: int, samples: Pooled | None = None, share: float = 1.0
    ) -> None:
        self.reset(spec, threads, samples, share)

    def __repr__(self) -> str:
        """Return the name that Ray's dashboard and log lines show."""
        return f"flray {self._title}: clients"

    def reset(
        self, spec: FederationSpec, threads: int, samples: Pooled | None = None, share: float = 1.0
    ) -> None:
        """Switch to another federation; the process and its imports stay."""
        self._title = f"{spec.config.name} {spec.config.algorithm.name}"
        self._lacking = bits.problem(spec.config)
        device = torch.device("cpu")
        try:
            device = granted_device()
        except DataError as error:
            self._lacking = str(error)
        if spec.config.resources.data == "node":
            try:
                samples = node_samples(spec.config, spec.data.fingerprint)
            except DataError as error:
                self._lacking = str(error)
        if samples is not None:
            spec = spec.with_samples(samples)
        self._runner = ClientRunner(spec, device, threads, share, "exit")

    def run(self, jobs: Sequence[TaskInput], *objects: Packed) -> list[object]:
        """Run tasks in sequence; see `flray.federation.worker.client_runner.ClientRunner.run`.

        Parameters
        ----------
        jobs : sequence of TaskInput
            With indices into `objects` for references.
        *objects : Packed
            The messages and states that the jobs refer to by index.

        Returns
        -------
        list
            The outcomes, the large parts of the replies (both one per job), and each job's state:
            separate objects.
        """
        done = [
            self._runner.run(job.client_task, job.common, job.private, job.state)
            for job in _resolve(jobs, objects)
        ]
        outcomes, replies, states = zip(*done, strict=True)
        return [list(outcomes), list(replies), *states]

    def run_block(self, jobs: Sequence[TaskInput], *objects: Packed) -> list[object]:
        """Run a block; see `flray.federation.worker.client_runner.ClientRunner.run_block`.

        Parameters
        ----------
        jobs : sequence of TaskInput
            With indices into `objects` for references.
        *objects : Packed
            The messages and states that the jobs refer to by index.

        Returns
        -------
        list
            The outcomes with the bytes of the sums (None without sums), the sums, and each job's
            state: separate objects.
        """
        outcomes, sums, states = self._runner.run_block(_resolve(jobs, objects))
        return [(outcomes, sums.nbytes if sums is not None else None), sums, *states]

    def add_up(
        self, entry: str, parts: Sequence[tuple[str, float, Packed | Place]], *calls: object
    ) -> tuple[int, Packed]:
        """Add up an entry of replies; see `flray.algorithms.common.aggregation.add_up`.

        Parameters
        ----------
        entry : str
            Its name.
        parts : sequence of (str, float, Packed or Place)
            Architecture, weight, and a packed tree or where it is among `calls`.
        *calls : list of Packed
            The replies of the calls that the places refer to.

        Returns
        -------
        up : int
            Bytes of the sums.
        sums : Packed
            A separate object.
        """
        sums = add_up(
            entry,
            (
                (
                    architecture,
                    weight,
                    part if isinstance(part, Packed) else calls[part.call][part.place],  # type: ignore[index]
                )
                for architecture, weight, part in parts
            ),
        )
        return sums.nbytes, sums

    def describe(self) -> Description:
        """Return the process id, the node, the kinds of CPU and GPU and the resident bytes.

        Raises
        ------
        DataError
            If this node lacks the data, or its CPU cannot reproduce the requested bits.
        """
        import psutil

        if self._lacking:
            raise DataError(self._lacking)
        return {
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "kind": bits.kind(),
            "gpu": gpu_identity(self._runner.device),
            "resident": psutil.Process().memory_info().rss,
        }

    def networks(self) -> dict[str, int]:
        """Return how many instances of each architecture this process holds."""
        return self._runner.networks()


def _resolve(jobs: Sequence[TaskInput], objects: Sequence[Packed]) -> list[TaskInput]:
    return [
        replace(
            job, common=objects[job.common], state=None if job.state is None else objects[job.state]
        )
        for job in jobs
    ]
