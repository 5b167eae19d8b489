"""One client's part of the diagnostics, computed in the process of its model, and their file."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flray.algorithms.client import Client
from flray.algorithms.common.samples import Samples
from flray.algorithms.types import Predictor
from flray.errors import FlrayError
from flray.files import write_atomically
from flray.models import as_split

Diagnostics = dict[str, NDArray[Any]]
MAX_FEATURE_SAMPLES, MAX_PROBE_SAMPLES, MAX_CLIENTS = 500, 256, 12
"""Limits: test samples with features, samples that all clients see, and clients."""


@torch.no_grad()
def client_diagnostics(
    client: Client, predictor: Predictor, probes: Samples, test: Samples
) -> Diagnostics:
    """Return a client's part of the diagnostics.

    Parameters
    ----------
    client : Client
        Its model is the evaluated one.
    predictor : callable
        Scores a batch.
    probes, test : Samples
        Samples that all clients see, and the client's own test samples.
    """
    size = client.config.evaluation.batch_size
    scores = torch.cat([predictor(x).float() for x, _ in probes.in_order(size)])
    predicted = [predictor(x).argmax(1) for x, _ in test.in_order(size)]
    model = client.model.eval()
    try:
        features = [as_split(model).features(x).flatten(1).half() for x, _ in test.in_order(size)]
    except FlrayError:
        features = [torch.zeros(len(test), 0)]
    received = client.message.get("weights", {})
    layers: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for name, value in client.parameters.items():
        reference = received.get(name, client.resident.initial[name].to(value.device))
        layers.setdefault(name.rpartition(".")[0], []).append((value, reference))
    distance = [
        sum(float((a - b).pow(2).sum()) for a, b in pairs) ** 0.5
        / max(sum(float(b.pow(2).sum()) for _, b in pairs) ** 0.5, 1e-12)
        for pairs in layers.values()
    ]
    travels = {name.rpartition(".")[0] for name in received}
    return {
        "probes": scores.cpu().numpy(),
        "predicted": _join(predicted),
        "features": _join(features),
        "labels": test.labels.cpu().numpy(),
        "layers": np.array(list(layers)),
        "personal": np.array([layer not in travels for layer in layers]),
        "distance": np.array(distance, dtype=np.float32),
    }


def encode(diagnostics: Mapping[str, NDArray[Any]]) -> str:
    """Encode diagnostics as base64 text that a worker reports."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **diagnostics)
    return base64.b64encode(buffer.getvalue()).decode()


def save_encoded(text: str, path: Path) -> None:
    """Write diagnostics encoded by `encode` as an ``.npz`` file."""
    write_atomically(path, base64.b64decode(text))


def evenly_spaced(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return at most `most` of some rows, evenly spread."""
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(np.int64)]


def _join(parts: list[torch.Tensor]) -> NDArray[Any]:
    return torch.cat(parts).cpu().numpy()
