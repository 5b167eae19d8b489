"""A node's copy of the data, shared by its actors: for clusters whose nodes read the data themselves."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flray import registry
from flray.config.experiment import Experiment
from flray.data.sources.cache import data_root, read_arrays, write_arrays
from flray.data.types import Pooled
from flray.errors import DataError
from flray.files.locks import hold_lock


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
            f"FLRAY_DATA "
            "there to a folder that can be written"
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
            f"there "
            f"{fingerprint[:12]}); bring the same there"
        )
    pooled = Pooled.of(dataset)
    x = np.moveaxis(pooled.x, 1, -1) if pooled.x.ndim == 4 else pooled.x
    public = {} if pooled.public is None else {"public": pooled.public}
    write_arrays(folder, {"x": np.ascontiguousarray(x), "y": pooled.y, **public})
    read_arrays(folder, name)
