"""A round's cohort: who is chosen, who drops out, who is slow; and what clients are asked before."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flray import rng, trees
from flray.algorithms.types import Stage
from flray.federation.evaluation import predict
from flray.federation.hooks import method_hook
from flray.federation.messages import ClientTask, TaskInput
from flray.federation.state import FederationState
from flray.samplers.sampling import Sampling, check_clients, choose

FLOAT_BYTES = 8
"""Bytes of each number that an asked client answers."""


@dataclass
class Cohort:
    """The clients of a round.

    Attributes
    ----------
    clients : list of int
        Those who take part, sorted.
    works : dict of int to float
        Each one's share of the local work.
    asked : list of int
        Those who were only asked, for the choice of the others.
    down, up : int
        Bytes that asking them took; of clients who take part too, the answer alone, for they have
        the model then.
    """

    clients: list[int]
    works: Mapping[int, float]
    asked: list[int] = field(default_factory=list)
    down: int = 0
    up: int = 0


def draw_cohort(federation: FederationState) -> Cohort:
    """Return the next round's cohort.

    Draws are keyed by seed and round, so they do not depend on the workers or on kills.

    Raises
    ------
    MethodError
        If a sampler of the user's own raises, or returns no clients.
    """
    spec, server = federation.spec, federation.server
    participation, seed, count = spec.config.participation, spec.config.seed, len(server.clients)
    if spec.algorithm.pools:
        return Cohort([0], {0: 1.0})
    sampler = participation.sampler
    drops = rng.numpy_generator(seed, "dropouts", round=server.round).random(count)
    slow = rng.numpy_generator(seed, "stragglers", round=server.round).random(count)
    sizes: dict[int, int] = {}
    answers: dict[int, dict[str, float]] = {}

    def ask(numbers: Iterable[int]) -> dict[int, dict[str, float]]:
        wanted = check_clients(sampler.name, numbers, server.round, count)
        new = [c for c in wanted if c not in sizes and drops[c] >= participation.dropout]
        found, sent = _ask(federation, new)
        sizes.update(sent)
        answers.update(found)
        return {client: dict(answers[client]) for client in wanted if client in answers}

    sampling = Sampling(
        server.round,
        spec.cohort_size,
        server.clients,
        rng.numpy_generator(seed, "sampling", round=server.round),
        federation.sampler_state,
        ask,
    )
    with method_hook(f"sampler {sampler.name}", "choice", server.round + 1):
        chosen = choose(sampler.name, sampler.options, sampling)
    cohort = [c for c in chosen if drops[c] >= participation.dropout]
    asked = sorted(sizes.keys() - set(cohort))
    return Cohort(
        cohort,
        {
            c: participation.straggler_work if slow[c] < participation.stragglers else 1.0
            for c in cohort
        },
        asked,
        sum(sizes[client] for client in asked),
        sum(FLOAT_BYTES * len(values) for values in answers.values()),
    )


def _ask(
    federation: FederationState, clients: list[int]
) -> tuple[dict[int, dict[str, float]], dict[int, int]]:
    """Return the metrics of clients' models on their training samples, and the bytes that were sent to each."""
    spec, server = federation.spec, federation.server
    stage, token = Stage("evaluate"), uuid.uuid4().hex
    if spec.algorithm.views[0] == "global" and spec.has_common:
        packed = {key: trees.pack({"weights": weights}) for key, weights in server.models.items()}
        commons = {key: federation.executor.put(one) for key, one in packed.items()}
        sizes = {key: one.nbytes for key, one in packed.items()}
    else:
        commons, sizes = federation.message(stage)
    jobs, sent = [], {}
    for client in clients:
        info = server.clients[client]
        tree = spec.algorithm.send_private(server, client, stage)
        private = trees.pack(tree) if tree else None
        sent[client] = sizes[info.architecture] + (private.nbytes if private is not None else 0)
        task = ClientTask(
            "ask",
            client,
            server.round,
            info.architecture,
            stage,
            token=token,
            cost=float(info.num_samples),
        )
        jobs.append(TaskInput(task, commons[info.architecture], private, federation.states[client]))
    found = predict(federation, jobs, "asked before round", 1)
    return {
        client: spec.task.summarise(parts["train"])
        for client, parts in zip(clients, found, strict=True)
        if parts is not None
    }, sent
