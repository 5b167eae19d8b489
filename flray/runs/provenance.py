"""Files needed to verify a run elsewhere: normalisation, each client's samples, the source of plug-ins."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from flray.federation.spec import FederationSpec
from flray.files.atomic import write_atomically

DATA, SAMPLES, PLUGINS = "data.json", "samples.npz", "plugins"


def save_provenance(spec: FederationSpec, folder: Path) -> None:
    """Write ``data.json``, ``samples.npz`` and copies of the plug-ins into a run's folder.

    ``samples.npz`` has for client number K the rows ``K-train``, ``K-val`` and ``K-test`` (int64)
    of the data set's samples: all domains' training samples, then all their test samples, domain by
    domain in the order of ``data.json``. No copy is ever executed: a resume takes the user's own
    files.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    folder : Path
        The run's folder.
    """
    data = spec.data
    described = {
        "dataset": data.dataset,
        "fingerprint": data.fingerprint,
        "partition": data.partition_fingerprint,
        "shape": list(data.shape),
        "samples": len(data.y),
        "classes": list(map(str, data.classes)),
        **({"positive": data.positive} if data.positive is not None else {}),
        "clients": [client.name for client in data.everyone],
        **({"unseen": [client.name for client in data.unseen]} if data.unseen else {}),
        "domains": list(data.origins),
        "normalisation": {"mean": list(map(float, data.mean)), "std": list(map(float, data.std))}
        if spec.algorithm.normalise
        else None,
        "plugins": [Path(name).name for name in spec.config.plugins],
    }
    write_atomically(folder / DATA, json.dumps(described, indent=1).encode())
    rows = {
        f"{number}-{part}": getattr(client, part)
        for number, client in enumerate(data.everyone)
        for part in ("train", "val", "test")
    }
    np.savez_compressed(folder / SAMPLES, allow_pickle=False, **rows)
    for name in spec.config.plugins:
        (folder / PLUGINS).mkdir(exist_ok=True)
        shutil.copyfile(name, folder / PLUGINS / Path(name).name)
