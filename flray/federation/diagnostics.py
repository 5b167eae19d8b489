"""Data for figures of a finished run, beyond its metrics: features, correlations, distances, partition.

Collected from the models that are evaluated; the federation is unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flray.algorithms.types import Stage
from flray.federation.spec import FederationSpec
from flray.federation.state import FederationState
from flray.federation.worker.diagnostics import MAX_CLIENTS, Diagnostics
from flray.functional import cross_correlation


def collect_diagnostics(federation: FederationState, final: bool = True) -> Diagnostics:
    """Return features, outputs and distances of the clients' models on some samples.

    Parameters
    ----------
    federation : FederationState
        Its first `MAX_CLIENTS` clients are used, each with its personal model, or with the global
        one if the method has no personal ones.
    final : bool
        Whether to return more than the correlations.

    Returns
    -------
    dict of str to ndarray
        ``correlation`` float16 [K, C, C]: FCCL+ Eq. 1 of each client's logits with the mean over
        clients, on the same up to `MAX_PROBE_SAMPLES` samples (public ones if the set has any). If `final`:
        ``features`` float16 [n, d], ``labels``, ``predicted``, ``client`` int64 [n] of up to
        `MAX_FEATURE_SAMPLES` test samples; ``layers`` str [L] and ``distance`` float32 [K, L], each client's
        relative distance from the global model. For entries that never travel (``personal`` bool
        [L]) it is the distance from the initial model. ``prototypes`` float32 [C, d] if the method has
        them. Heterogeneous models have no distances, and no features if their sizes differ.
        Empty if the task's outputs are not logits.
    """
    spec, server = federation.spec, federation.server
    if not spec.task.logits:
        return {}
    clients = range(len(server.clients[:MAX_CLIENTS]))
    tasks = federation.tasks_for("diagnostics", clients, federation.message(Stage("evaluate")))
    parts = []
    for result in federation.executor.run_tasks(tasks, idle=spec.config.faults.round_timeout):
        federation.usage.add(result)
        if result.outcome.failure is not None:
            federation.warn(f"no diagnostics of the models: {result.outcome.failure.what}")
            return {}
        parts.append(result.outcome.predictions["diagnostics"])
    logits = torch.from_numpy(np.stack([part["probes"] for part in parts])).double()
    if logits.dim() != 3 or not bool(torch.isfinite(logits).all()):
        return {}
    mean = logits.mean(0)
    diagnostics: Diagnostics = {
        "correlation": np.stack([cross_correlation(one, mean).numpy() for one in logits]).astype(
            np.float16
        )
    }
    if not final:
        return diagnostics
    diagnostics["names"] = np.array([info.name for info in server.clients[:MAX_CLIENTS]])
    diagnostics["client"] = np.repeat(
        np.arange(len(parts)), [len(part["labels"]) for part in parts]
    )
    if len({part["features"].shape[1] for part in parts}) == 1:
        diagnostics |= {
            name: np.concatenate([part[name] for part in parts])
            for name in ("features", "labels", "predicted")
        }
        prototypes = server.state.get("prototypes")
        if (
            isinstance(prototypes, torch.Tensor)
            and prototypes.shape[-1] == diagnostics["features"].shape[1]
        ):
            diagnostics["prototypes"] = prototypes.float().cpu().numpy()
    if len(spec.architectures) == 1:
        diagnostics |= {
            "layers": parts[0]["layers"],
            "personal": parts[0]["personal"],
            "distance": np.stack([part["distance"] for part in parts]),
        }
    return diagnostics


def partition_summary(spec: FederationSpec) -> dict[str, Any]:
    """Return the number of training samples by client and class, and the data's fingerprints, as JSON values."""
    classes, counts = spec.data.class_table()
    return {
        "dataset": spec.data.dataset,
        "classes": list(classes),
        "has_classes": spec.data.has_classes,
        **({"positive": spec.data.positive} if spec.data.positive is not None else {}),
        "origins": dict(spec.data.origins),
        "fingerprints": {
            "data": spec.data.fingerprint,
            "partition": spec.data.partition_fingerprint,
        },
        "clients": [
            {
                "name": client.name,
                "domain": client.domain,
                "test": len(client.test),
                "train": counts[k].tolist(),
            }
            for k, client in enumerate(spec.data.clients)
        ],
    }
