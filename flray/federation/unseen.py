"""Measure the global model on clients that take no part in training: as it is, and after some local steps from it.

Every method's global model is adapted in the same way, by plain local training with the settings of
``local``, so that what differs is the model and not the adaptation.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from flray import trees
from flray.algorithms.types import Stage
from flray.errors import ConfigError
from flray.federation.evaluation import over_clients, predict
from flray.federation.messages import ClientTask, TaskInput
from flray.federation.spec import FederationSpec
from flray.federation.state import FederationState


def check_unseen(spec: FederationSpec) -> None:
    """Refuse settings under which there is nothing to measure on unseen clients.

    Raises
    ------
    ConfigError
        Naming the setting and what to write instead.
    """
    config, algorithm = spec.config, spec.algorithm
    name, steps = config.algorithm.name, config.evaluation.adapt_steps
    if not spec.data.unseen:
        if steps:
            raise ConfigError(
                "experiment.evaluation.adapt_steps",
                str(steps),
                "no client is kept out of training; set participation.unseen too, or 0",
            )
        return
    found = f"{len(spec.data.unseen)} of {len(spec.data.everyone)} clients"
    if algorithm.shared == "none":
        raise ConfigError(
            "experiment.participation.unseen",
            found,
            f"{name} shares no weights, so a client that takes no part has none; set 0",
        )
    if not spec.has_common and not steps:
        why = (
            f"each client of {name} has running statistics of its own (aggregation.buffers: local)"
            if "global" in algorithm.views
            else f"{name} has personal models alone"
        )
        raise ConfigError(
            "experiment.participation.unseen",
            found,
            f"{why}, and an unseen client has none before it was trained; "
            "set evaluation.adapt_steps, for example to 10",
        )
    if len(spec.architectures) > 1:
        raise ConfigError(
            "experiment.participation.unseen",
            found,
            f"there are {len(spec.architectures)} networks, and none is an unseen client's; one network, or 0",
        )


def unseen_tasks(federation: FederationState) -> list[TaskInput]:
    """Return the tasks that test the global model on the unseen clients, who are numbered after the others."""
    spec, server = federation.spec, federation.server
    if not spec.data.unseen:
        return []
    ((architecture, weights),) = server.models.items()
    handle, token = federation.executor.put(trees.pack({"weights": weights})), uuid.uuid4().hex
    steps = spec.config.evaluation.adapt_steps
    return [
        TaskInput(
            ClientTask(
                "unseen",
                len(spec.data.clients) + position,
                server.round,
                architecture,
                Stage("adapt"),
                token=token,
                cost=float(len(client.test) + steps * spec.config.local.batch_size),
            ),
            handle,
        )
        for position, client in enumerate(spec.data.unseen)
    ]


def evaluate_unseen(federation: FederationState) -> Mapping[str, float]:
    """Return the metrics ``global/unseen`` and ``adapted/unseen``; nothing where no client is unseen.

    Raises
    ------
    ClientError
        If a model raises, unless failing clients are left out.
    """
    tasks = unseen_tasks(federation)
    if not tasks:
        return {}
    answers = zip(tasks, predict(federation, tasks), strict=True)
    found = {task.client_task.client: one for task, one in answers if one is not None}
    views = sorted({view for one in found.values() for view in one}, reverse=True)
    metrics: dict[str, float] = {}
    for view in views:
        values = {n: federation.spec.task.summarise(one[view]) for n, one in found.items()}
        metrics.update(over_clients(federation, f"{view}/unseen", values))
    return metrics
