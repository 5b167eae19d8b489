"""The client actor: a Ray process that runs client tasks on its share of the CPUs or of a GPU."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from flray import bits, registry
from flray.config.experiment import Experiment
from flray.data.sources.cache import data_root, read_arrays, write_arrays
from flray.data.types import Pooled
from flray.devices.identity import GpuIdentity, gpu_identity
from flray.errors import DataError
from flray.federation.messages import TaskBlock
from flray.federation.ray_backend.handles import Place
from flray.federation.spec import FederationSpec
from flray.federation.worker.client_runner import ClientRunner
from flray.files.atomic import hold_lock


def node_samples(config: Experiment, fingerprint: str) -> Pooled:
    """Return a data set's samples from this node's disk, mapped into memory: one copy per node.

    The first one on a node loads the data set (from ``$FLRAY_DATA``: the node's folder, one that
    all nodes see, or object storage) and writes the samples next to it as one file.

    Parameters
    ----------
    config : Experiment
        Names the data set.
    fingerprint : str
        The expected fingerprint: the driver's.

    Raises
    ------
    DataError
        Naming the node, if they are missing there or differ.
    """
    name = config.data.name
    folder = data_root() / "pooled" / socket.gethostname() / fingerprint[:32]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder.parent / ".lock"):
            if not folder.exists():
                _write_copy(folder, name, config, fingerprint)
    except DataError as error:
        raise DataError(
            f"node {socket.gethostname()}: {error}; or let the head hand the data out "
            "(resources.data=head)"
        ) from None
    except OSError as error:
        raise DataError(
            f"node {socket.gethostname()}: {data_root()} cannot be used ({error.strerror}); set "
            "FLRAY_DATA there to a folder that can be written"
        ) from None
    arrays: dict[str, NDArray[Any]] = {
        path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in folder.glob("*.npy")
    }
    x = arrays["x"]
    return Pooled(np.moveaxis(x, -1, 1) if x.ndim == 4 else x, arrays["y"], arrays.get("public"))


def _write_copy(folder: Path, name: str, config: Experiment, fingerprint: str) -> None:
    dataset = registry.datasets.call(name, data_root(), **config.data.options)
    if dataset.fingerprint != fingerprint:
        raise DataError(
            f"data set {name} differs from the head's (fingerprint {dataset.fingerprint[:12]}, "
            f"there {fingerprint[:12]}); bring the same there"
        )
    pooled = Pooled.of(dataset)
    x = np.moveaxis(pooled.x, 1, -1) if pooled.x.ndim == 4 else pooled.x
    public = {} if pooled.public is None else {"public": pooled.public}
    write_arrays(folder, {"x": np.ascontiguousarray(x), "y": pooled.y, **public})
    read_arrays(folder, name)


FAKE_GPUS = "FLRAY_FAKE_GPUS"
"""Environment variable; 1: GPUs that Ray grants may be missing, as in tests, and the CPU stands for them."""


def granted_device() -> torch.device:
    """Return the GPU that Ray has granted to this process, or the CPU if it granted none.

    Raises
    ------
    DataError
        If torch sees no GPU where Ray granted one: it would be computed on the CPU without a word.
    """
    # Asked outside of a session, Ray would start one, or join any that it finds.
    if not ray.is_initialized() or not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda:0")
    if os.environ.get(FAKE_GPUS) == "1":
        return torch.device("cpu")
    raise DataError(
        f"Ray has given this process a GPU, and torch {torch.__version__} sees none: install a build "
        "of torch for its CUDA driver on every node, or set resources.gpus_per_actor=0"
    )


class Description(TypedDict):
    """A client actor's description of itself after its start."""

    pid: int
    node: str
    kind: str
    gpu: GpuIdentity | None
    resident: int


class ClientActor:
    """A process that runs client tasks one at a time, on its share of the CPUs or of a GPU."""

    _title = ""  # Ray asks for it also where the constructor fails

    def __init__(self, *arguments: Any) -> None:
        self.reset(*arguments)

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
            if spec.config.resources.data == "node":
                samples = node_samples(spec.config, spec.data.fingerprint)
        except DataError as error:
            self._lacking = str(error)
        if samples is not None:
            spec = spec.with_samples(samples)
        self._runner = ClientRunner(spec, device, threads, share, "exit")

    def run(self, blocks: Sequence[TaskBlock], *objects: Any) -> list[object]:
        """Run blocks in sequence; see `flray.federation.worker.client_runner.ClientRunner.run_block`.

        Parameters
        ----------
        blocks : sequence of TaskBlock
            With places among `objects` for references.
        *objects : Packed, or list of Packed
            The messages and states, and the large parts of whole calls.

        Returns
        -------
        list
            For each block its outcomes and the bytes of its large part (None without); these large
            parts; and each task's state: separate objects.
        """

        def held(place: Place | None) -> Any:
            if place is None:
                return None
            found = objects[place.argument]
            return found if place.reply is None else found[place.reply]

        done = [self._runner.run_block(block.with_references(held)) for block in blocks]
        small = [
            (outcomes, bulk.nbytes if bulk is not None else None) for outcomes, bulk, _ in done
        ]
        states = [state for *_, of_block in done for state in of_block]
        return [small, [bulk for _, bulk, _ in done], *states]

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
