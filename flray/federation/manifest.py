"""A run's manifest: each client's samples by digest, its classes, its weight, its steps in a round."""

import math
from typing import Any

from flray import models, registry
from flray.algorithms.common.samples import batches_per_epoch, number_of_steps
from flray.config.components import ModelChoice
from flray.config.experiment import Experiment
from flray.data.loading import load_once
from flray.data.types import ClientIndices, FederatedData, digest_of
from flray.federation import SharedDataset, building, work_share
from flray.models import select


def divide(experiment: Experiment) -> FederatedData:
    """Return an experiment's data set in the parts of its clients, without its public samples.

    Raises
    ------
    FlrayError
        If the data are missing, or cannot be divided so.
    """
    found = load_once(experiment.data.name, experiment.data.options, None, experiment.subset)
    return building.divide(experiment, SharedDataset.of(found))


def digests(data: FederatedData) -> list[dict[str, str]]:
    """Return the SHA-256 of the samples and labels of each client's parts, which reads all of them."""
    return [
        {
            f"{name}_sha256": digest_of(data.x[rows], data.y[rows])
            for name, rows in (("train", one.train), ("val", one.val), ("test", one.test))
        }
        for one in data.clients
    ]


def manifest(
    experiment: Experiment, data: FederatedData, known: list[dict[str, str]]
) -> dict[str, Any]:
    """Return a run's rounds and epochs, and the samples and duties of each client.

    Parameters
    ----------
    experiment : Experiment
        The run.
    data : FederatedData
        As `divide` returns it.
    known : list of dict
        Its `digests`, which all runs of one division share.

    Returns
    -------
    dict
        ``rounds``, ``epochs``, ``partition`` (its fingerprint) and ``clients``: for each ``client``,
        ``domain``, the numbers of ``train``, ``val`` and ``test`` samples with the SHA-256 of each
        part's samples and labels (``train_sha256`` and so on), ``classes`` (training samples of
        each), ``weight`` (its share of a mean over all clients, by `aggregation.weights`; a method
        may weigh otherwise, as FedSKC does) and ``steps`` (of plain local training in a round; None
        for tasks of episodes).
    """
    local, total = experiment.local, sum(len(client.train) for client in data.clients)
    algorithm = registry.algorithms.get(experiment.algorithm.name)(
        registry.algorithms.params(experiment.algorithm.name)(**experiment.algorithm.options)
    )
    declared = experiment.aggregation.weights
    weighting = algorithm.weighting if declared == "method" else declared
    names, counts = data.class_table()
    networks, keys = building.assign_networks(experiment, data)
    clients: list[dict[str, Any]] = []
    of_each = zip(data.clients, keys, counts.tolist(), known, strict=True)
    for client, key, of_classes, hashed in of_each:
        size = len(client.train)
        parts = {"train": client.train, "val": client.val, "test": client.test}
        # One sample more than whole batches: batch norm leaves it out.
        odd = size > 1 and size % local.batch_size == 1 and _has_batch_norm(networks[key], data)
        per_epoch = batches_per_epoch(size, local.batch_size, odd, local.drop_last)
        episodes = data.task == "few-shot"
        clients.append(
            {
                "client": client.name,
                "domain": client.domain,
                **{name: len(rows) for name, rows in parts.items()},
                **hashed,
                "classes": dict(zip(names, of_classes, strict=True)),
                "weight": 1 / len(data.clients) if weighting == "uniform" else size / total,
                "steps": None if episodes else _steps(experiment, client, per_epoch),
            }
        )
    return {
        "rounds": experiment.rounds,
        "epochs": local.epochs,
        "partition": data.partition_fingerprint,
        "clients": clients,
    }


def _steps(experiment: Experiment, client: ClientIndices, per_epoch: int) -> float:
    local = experiment.local
    steps = local.steps or number_of_steps(per_epoch, local.epochs, None)
    share = work_share(experiment, client)
    return steps if share == 1 else math.ceil(steps * share * (1 - 1e-12))


def _has_batch_norm(choice: ModelChoice, data: FederatedData) -> bool:
    model = models.build(choice.name, data.shape, data.num_classes, choice.options, seed=0)
    return bool(select(model, "batch_norm"))
