"""Measure the models after a round, under the same names for every method.

``global/common`` is the global model on the common test set, ``global/local`` the global model on
each client's test part. ``personal/local`` is a client's personal model on its test part (intra),
``personal/others`` on the other clients' (inter, FCCL+ Eq. 21-22). ``personal/pooled`` covers all
clients' test parts together, each sample with the model of its client. ``online/local`` and
``offline/local`` are Fed-CO2's two models alone. If clients have validation samples,
``global/validation`` and ``personal/validation`` are measured on these. Clients that do not train are
measured under ``unseen``: the global model as it is, and ``adapted`` by plain local training with the
settings of ``local``. The adaptation is the same for every method, so that only the model differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flray.algorithms.types import Stage
from flray.errors import ConfigError, nearest
from flray.federation.failures import ClientError, NobodyAnsweredError
from flray.federation.messages import TaskInput
from flray.federation.round_metrics import MAX_CLIENT_METRICS
from flray.federation.spec import EVAL_CHUNK, FederationSpec, evaluation_chunks
from flray.federation.state import FederationState
from flray.metrics.names import lower_is_better
from flray.tasks.base import Task

NO_COMMON = (
    "; clients keep running statistics (BatchNorm) of their own here, so the global model is tested with "
    "theirs alone (aggregation.buffers: average gives it some)"
)
Predictions = Mapping[str, NDArray[Any]]


def evaluate(federation: FederationState) -> dict[str, float]:
    """Return all metrics of the current models.

    Parameters
    ----------
    federation : FederationState
        Unchanged.

    Raises
    ------
    ClientError
        If a model or a predictor raises, unless failing clients are skipped.
    NobodyAnsweredError
        If all clients fail.
    """
    metrics: dict[str, float] = {}
    views = federation.spec.algorithm.views
    if "global" in views:
        one = federation.spec.has_common
        metrics.update(_global(federation) if one else _with_own_statistics(federation))
    if "personal" in views:
        metrics.update(_personal(federation))
    return metrics


def available_metrics(spec: FederationSpec) -> list[str]:
    """Return the names of the metrics that an evaluation of this federation gives, as means over clients.

    If clients keep personal running statistics, ``global/common`` does not exist.
    Each metric also has ``/std``, ``/worst`` and ``/worst10``, and ``/client/NAME`` for up to 100
    clients (``global/common`` and ``personal/pooled`` are single values). The names include a method's
    further models, such as Fed-CO2's ``online/local``.
    """
    held = any(len(client.val) for client in spec.data.clients)
    wanted = spec.config.evaluation
    scopes = {
        "global": ["common", "local"] if spec.has_common else ["local"],
        "personal": [
            "local",
            *(["others"] if wanted.others else []),
            *(["pooled"] if wanted.pooled else []),
        ],
    }
    views = [
        f"{view}/{scope}"
        for view in spec.algorithm.views
        for scope in (*scopes[view], *(["validation"] if held else []))
    ]
    if spec.data.unseen:
        views += ["global/unseen"] if spec.has_common else []
        views += ["adapted/unseen"] if wanted.adapt_steps else []
    return [f"{view}/{measure}" for view in views for measure in spec.task.measures]


def check_metric(spec: FederationSpec, name: str, where: str) -> None:
    """Reject a metric that a federation never measures.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    name : str
        The metric. Names of training metrics and of a method's further models are not checked.
    where : str
        The setting that names it.

    Raises
    ------
    ConfigError
        Naming the nearest one, or all.
    """
    known = available_metrics(spec)
    parts = name.split("/")
    if parts[0] in ("train", "online", "offline") or "/".join(parts[:3]) in known:
        return
    near = nearest(name, known) or nearest(f"{spec.algorithm.views[0]}/{name}", known)
    held = (
        NO_COMMON
        if parts[0] == "global" and "global" in spec.algorithm.views and not spec.has_common
        else ""
        if any("/validation/" in one for one in known)
        else "; validation values need samples kept for it (evaluation.validation)"
        if "validation" in name
        else ""
    )
    raise ConfigError(
        where,
        repr(name),
        f"{spec.config.algorithm.name} measures no such thing{near}; there are "
        f"{', '.join(known)}, and auto takes {spec.primary_metric}{held}; flray list metrics says what each is",
    )


def global_tasks(federation: FederationState) -> list[TaskInput]:
    """Return the tasks that evaluate the global models: of each architecture, one per chunk of samples."""
    blocks, models = evaluation_chunks(federation.spec.data), federation.whole_models(Stage())
    return [
        federation.task(
            "global", -1, models._replace(stage=Stage(f"evaluate {key}")), key, block=block
        )
        for key in sorted(models.handles)
        for block in range(len(blocks))
    ]


def _global(federation: FederationState) -> dict[str, float]:
    spec, server, metrics = federation.spec, federation.server, {}
    data = spec.data
    count, tested = len(evaluation_chunks(data)), -(-len(data.test) // EVAL_CHUNK)
    parts = [
        predictions["common"]
        for predictions in predict(federation, global_tasks(federation))
        if predictions is not None
    ]
    measure = spec.task
    for position, key in enumerate(sorted(server.models)):
        mine = parts[position * count : (position + 1) * count]
        whole = _join(mine[:tested])
        suffix = f"/model/{key}" if len(server.models) > 1 else ""
        metrics.update(
            {
                f"global/common/{n}{suffix}": v
                for n, v in measure.summarise(whole).items()
                if n == measure.metric or not np.isnan(v)
            }
        )
        members = [i for i, info in enumerate(server.clients) if info.architecture == key]
        local = _by_client(measure, whole, [len(c.test) for c in data.clients])
        metrics.update(
            over_clients(federation, "global/local", {i: local[i] for i in members}, suffix)
        )
        if mine[tested:]:
            held = _by_client(measure, _join(mine[tested:]), [len(c.val) for c in data.clients])
            metrics.update(
                over_clients(federation, "global/validation", {i: held[i] for i in members}, suffix)
            )
    return metrics


def _with_own_statistics(federation: FederationState) -> dict[str, float]:
    """Measure the global model at each client, with the client's personal running statistics.

    A client that has not trained yet has none and is skipped.
    """
    spec, server = federation.spec, federation.server
    jobs = [job for job in personal_tasks(federation, "global") if job.state is not None]
    answers = zip(jobs, predict(federation, jobs), strict=True)
    found = {job.client_task.client: one for job, one in answers if one is not None}
    metrics: dict[str, float] = {}
    for key in sorted(server.models):
        mine = [i for i in found if server.clients[i].architecture == key]
        suffix = f"/model/{key}" if len(server.models) > 1 else ""
        for part, scope in (("test", "local"), ("validation", "validation")):
            values = {i: spec.task.summarise(found[i][part]) for i in mine if part in found[i]}
            metrics.update(over_clients(federation, f"global/{scope}", values, suffix))
    _warn_of_initial_statistics(federation, "left out of global/local")
    return metrics


def _warn_of_initial_statistics(federation: FederationState, how: str) -> None:
    """Warn once that clients which have not trained have no personal running statistics."""
    untrained = sum(state is None for state in federation.states)
    if untrained and federation.spec.keeps_statistics:
        federation.server.warn(
            "statistics",
            f"{untrained} of {len(federation.states)} clients have not trained yet and have no running "
            f"statistics (BatchNorm) but the initial ones: they are {how}",
        )


def personal_tasks(
    federation: FederationState, kind: Literal["personal", "global"] = "personal"
) -> list[TaskInput]:
    """Return the tasks that evaluate a model at each client, in client order: the personal or the global one."""
    data, message = federation.spec.data, federation.message(Stage("evaluate"))
    everything = len(data.test) if federation.spec.config.evaluation.others else None
    return [
        federation.task(kind, i, message, cost=float(everything or len(client.test)))
        for i, client in enumerate(data.clients)
    ]


def _personal(federation: FederationState) -> dict[str, float]:
    spec, server = federation.spec, federation.server
    others = spec.config.evaluation.others
    answers = enumerate(predict(federation, personal_tasks(federation)))
    predictions = {i: one for i, one in answers if one is not None}
    if not predictions:
        raise NobodyAnsweredError(
            f"evaluation after round {server.round}: no client answered; see what was said of each"
        )
    _warn_of_initial_statistics(federation, "tested with these")
    measure = spec.task
    parts = {i: one["test"] for i, one in predictions.items()}
    held = {
        i: measure.summarise(one["validation"])
        for i, one in predictions.items()
        if "validation" in one
    }
    besides = over_clients(federation, "personal/validation", held)
    for view in sorted(next(iter(predictions.values())).keys() - {"test", "validation"}):
        besides.update(
            over_clients(
                federation,
                view,
                {i: measure.summarise(one[view]) for i, one in predictions.items()},
            )
        )
    offsets = np.cumsum([0] + [len(c.test) for c in spec.data.clients])
    inside = [slice(offsets[i], offsets[i + 1]) for i in range(len(spec.data.clients))]
    own = (
        {i: {n: a[inside[i]] for n, a in part.items()} for i, part in parts.items()}
        if others
        else parts
    )
    intra = {i: measure.summarise(part) for i, part in own.items()}
    if spec.config.evaluation.pooled:
        together = measure.summarise(_join(list(own.values())))
        besides.update({f"personal/pooled/{n}": v for n, v in together.items() if not np.isnan(v)})
    if not others:
        return {**over_clients(federation, "personal/local", intra), **besides}
    inter: dict[int, dict[str, float]] = {}
    for i, part in parts.items():
        apart = [
            measure.summarise({n: a[place] for n, a in part.items()})
            for j, place in enumerate(inside)
            if j != i and place.start < place.stop
        ]
        if apart:
            inter[i] = {n: _mean([one[n] for one in apart]) for n in apart[0]}
    return {
        **over_clients(federation, "personal/local", intra),
        **over_clients(federation, "personal/others", inter),
        **besides,
    }


def _by_client(measure: Task, whole: Predictions, sizes: list[int]) -> list[dict[str, float]]:
    """Return each client's metrics from the joined predictions of all clients."""
    ends = np.cumsum([0, *sizes])
    return [
        measure.summarise({n: a[ends[i] : ends[i + 1]] for n, a in whole.items()})
        for i in range(len(sizes))
    ]


def predict(
    federation: FederationState,
    jobs: list[TaskInput],
    when: str = "evaluation after round",
    ahead: int = 0,
) -> list[Mapping[str, Predictions] | None]:
    """Return each task's predictions; None for a client left out by the fault policy of rounds.

    Parameters
    ----------
    federation : FederationState
        Unchanged.
    jobs : list of TaskInput
        Evaluations.
    when : str
        The word before the number of the round in messages.
    ahead : int
        The difference of that number from the rounds done.

    Raises
    ------
    ClientError
        If a task fails and failing clients are not left out.
    """
    predictions: list[Mapping[str, Predictions] | None] = []
    faults = federation.spec.config.faults
    for result in federation.executor.run_tasks(jobs, idle=faults.round_timeout):
        federation.usage.add(result)
        failure = result.outcome.failure
        if failure is None:
            predictions.append(result.outcome.predictions)
            continue
        client = result.client_task.client
        who = (
            "the global model"
            if client < 0
            else f"client {client} ({federation.spec.data.everyone[client].name})"
        )
        line = (
            f"{who}, {when} {result.client_task.round + ahead}: {failure.what}"
            f"{' at ' + failure.where if failure.where else ''}"
        )
        if client < 0 or not (faults.on_client_error == "skip" or failure.kind == "timeout"):
            raise ClientError(f"{line}\n{failure.trace}".rstrip())
        federation.warn(f"left out: {line}")
        predictions.append(None)
    return predictions


def _mean(values: list[float]) -> float:
    """Return the mean, ignoring NaN."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _join(parts: list[Predictions]) -> Predictions:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def over_clients(
    federation: FederationState,
    view: str,
    values: Mapping[int, Mapping[str, float]],
    suffix: str = "",
) -> dict[str, float]:
    """Return mean, std, worst and worst tenth over clients, and the clients' own values, ignoring NaN."""
    metrics: dict[str, float] = {}
    clients = federation.spec.data.everyone
    names = next(iter(values.values()), {})
    for name in names:
        known = {i: v[name] for i, v in values.items() if not np.isnan(v[name])}
        if not known:
            continue
        numbers = np.array(list(known.values()))
        metrics[f"{view}/{name}{suffix}"] = float(numbers.mean())
        metrics[f"{view}/{name}{suffix}/std"] = float(numbers.std())
        if name != "loss":
            worst_first = np.sort(numbers)[:: -1 if lower_is_better(name) else 1]
            metrics[f"{view}/{name}{suffix}/worst"] = float(worst_first[0])
            metrics[f"{view}/{name}{suffix}/worst10"] = float(
                worst_first[: max(1, round(len(numbers) / 10))].mean()
            )
        if len(clients) <= MAX_CLIENT_METRICS:
            metrics.update({f"{view}/{name}/client/{clients[i].name}": v for i, v in known.items()})
    return metrics


def unseen_tasks(federation: FederationState) -> list[TaskInput]:
    """Return the tasks that test the global model on the unseen clients, who are numbered after the others."""
    spec = federation.spec
    if not spec.data.unseen:
        return []
    (architecture,) = federation.server.models
    message = federation.whole_models(Stage("adapt"))
    extra = spec.config.evaluation.adapt_steps * spec.config.local.batch_size
    first = len(spec.data.clients)
    return [
        federation.task(
            "unseen", number, message, architecture, cost=float(len(client.test) + extra)
        )
        for number, client in enumerate(spec.data.unseen, first)
    ]


def evaluate_unseen(federation: FederationState) -> Mapping[str, float]:
    """Return the metrics ``global/unseen`` and ``adapted/unseen``; empty if no client is unseen.

    Raises
    ------
    ClientError
        If a model raises, unless failing clients are skipped.
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
