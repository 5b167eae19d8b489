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

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flray.algorithms.base import Algorithm, Stage
from flray.errors import ConfigError, nearest
from flray.federation import FederationSpec, messages
from flray.federation.state import MAX_CLIENT_METRICS, FederationState
from flray.federation.worker.diagnostics import MAX_CLIENTS, Diagnostics
from flray.functional import cross_correlation
from flray.metrics import lower_is_better
from flray.tasks.base import finite_or_infinite, mean_of_known
from flray.tasks.classification import summarise_parts

NO_COMMON = (
    "; clients keep running statistics (BatchNorm) of their own here, so the global model is tested with "
    "theirs alone (aggregation.buffers: average gives it some)"
)
Predictions = Mapping[str, NDArray[Any]]
_OF_THE_STATE = ("setup", "send", "send_private", "receive", "predictor", "parts")
"""Hooks that a method leaves as they are if its evaluation depends on nothing but what the clients keep."""


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
    # One that no test samples define, such as R2 of one, was not lost.
    metrics.setdefault(federation.spec.primary_metric, np.nan)
    return metrics


def available_metrics(spec: FederationSpec) -> list[str]:
    """Return the names of the metrics that an evaluation of this federation gives, as means over clients.

    If clients keep personal running statistics, or have several networks, ``global/common`` does not exist; of
    several networks there is ``global/common/MEASURE/model/NETWORK``, and so on, besides.
    Each metric also has ``/std``, ``/worst`` and ``/worst10``, and ``/client/NAME`` for up to 100
    clients (``global/common`` and ``personal/pooled`` are single values). The names include a method's
    further models, such as Fed-CO2's ``online/local``.
    """
    held = any(len(client.val) for client in spec.data.clients)
    wanted = spec.config.evaluation
    scopes = {
        "global": ["common", "local"] if spec.has_one_common else ["local"],
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
    views += [f"{name}/local" for name in spec.algorithm.further]
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
        The metric. Names of training metrics and of a method's further models, if it has any, are not checked.
    where : str
        The setting that names it.

    Raises
    ------
    ConfigError
        Naming the nearest one, or all.
    """
    known = available_metrics(spec)
    parts = name.split("/")
    further = parts[1:2] == ["local"] and type(spec.algorithm).parts is not Algorithm.parts
    of_networks = [
        f"global/common/{measure}/model/{key}"
        for measure in (spec.task.measures if spec.has_common else ())
        for key in (spec.architectures if not spec.has_one_common else ())
    ]
    if (
        parts[0] == "train"
        or further
        or "/".join(parts[:3]) in known
        or "/".join(parts[:5]) in of_networks
    ):
        return
    near = nearest(name, known) or nearest(f"{spec.algorithm.views[0]}/{name}", known)
    keeps = (
        "the second share of split"
        if isinstance(spec.config.split, tuple)
        else "evaluation.validation"
    )
    held = (
        NO_COMMON
        if parts[0] == "global" and "global" in spec.algorithm.views and not spec.has_common
        else ""
        if any("/validation/" in one for one in known)
        else f"; validation values need samples kept for it ({keeps})"
        if "validation" in name
        else ""
    )
    raise ConfigError(
        where,
        repr(name),
        f"{spec.config.algorithm.name} measures no such thing{near}; there are "
        f"{', '.join(known)}, or auto{held}; flray list metrics says what each is",
    )


def _global(federation: FederationState) -> dict[str, float]:
    data, measure = federation.spec.data, federation.spec.task
    metrics: dict[str, float] = {}
    scopes: dict[str, dict[int, dict[str, float]]] = {"local": {}, "validation": {}}
    tested = len(federation.spec.evaluation_chunks(data.test))
    found = predict(federation, federation.model_tasks())
    for key, members, suffix in _by_architecture(federation):
        mine = [one["common"] for task, one in found if task.architecture == key]
        metrics |= {
            f"global/common/{name}{suffix}": value
            for name, value in measure.summarise(_join(mine[:tested])).items()
            if name == measure.measures[0] or not np.isnan(value)
        }
        for scope, parts, sizes in (
            ("local", mine[:tested], [len(client.test) for client in data.clients]),
            ("validation", mine[tested:], [len(client.val) for client in data.clients]),
        ):
            if parts:
                each = summarise_parts(measure, _join(parts), sizes)
                scopes[scope] |= {i: {n: float(v[i]) for n, v in each.items()} for i in members}
    return metrics | _of_each_network(federation, scopes)


def _of_each_network(
    federation: FederationState, scopes: Mapping[str, Mapping[int, Mapping[str, float]]]
) -> dict[str, float]:
    """Return the global models' metrics over each network's clients, and over all clients where networks differ."""
    metrics: dict[str, float] = {}
    for scope, values in scopes.items():
        for _, members, suffix in _by_architecture(federation):
            mine = {i: values[i] for i in members if i in values}
            metrics |= over_clients(federation, {f"global/{scope}": mine}, suffix)
        if len(federation.server.models) > 1:
            metrics |= over_clients(federation, {f"global/{scope}": dict(sorted(values.items()))})
    return metrics


def _by_architecture(federation: FederationState) -> Iterator[tuple[str, list[int], str]]:
    """Yield each architecture with its clients, and the suffix of its metrics."""
    models, clients = federation.server.models, enumerate(federation.server.clients)
    of = {i: info.architecture for i, info in clients}
    for key in sorted(models):
        suffix = f"/model/{key}" if len(models) > 1 else ""
        yield key, [i for i in of if of[i] == key], suffix


def _with_own_statistics(federation: FederationState) -> dict[str, float]:
    """Measure the global model at each client, with the client's personal running statistics.

    A client that has not trained yet has none and is skipped.
    """
    untrained = _without_statistics(federation)
    trained = [i for i in range(len(federation.states)) if i not in untrained]
    found = predict_clients(federation, "global", trained, federation.message(Stage("evaluate")))
    measure = federation.spec.task
    metrics = _of_each_network(
        federation,
        {
            scope: {i: measure.summarise(one[part]) for i, one in found.items() if part in one}
            for part, scope in (("test", "local"), ("validation", "validation"))
        },
    )
    _warn_of_initial_statistics(federation, "left out of global/local")
    return metrics


def _without_statistics(federation: FederationState) -> set[int]:
    """Return the clients that should have personal running statistics, and have not trained yet."""
    kept, clients = federation.spec.with_statistics, enumerate(federation.server.clients)
    return {i for i, c in clients if c.architecture in kept and federation.states[i] is None}


def _warn_of_initial_statistics(federation: FederationState, how: str) -> None:
    """Warn once that clients which have not trained have no personal running statistics."""
    if untrained := len(_without_statistics(federation)):
        federation.server.warn(
            "statistics",
            f"{untrained} of {len(federation.states)} clients have not trained yet and have no running "
            f"statistics (BatchNorm) but the initial ones: they are {how}",
        )


def personal_tasks(
    federation: FederationState, known: Container[int] = ()
) -> list[messages.TaskInput]:
    """Return the tasks that evaluate the personal models of all clients that are not known, in client order."""
    message = federation.message(Stage("evaluate"))
    clients = (i for i in range(len(federation.spec.data.clients)) if i not in known)
    return federation.tasks_for("personal", clients, message)


def _of_personal_models(federation: FederationState) -> dict[int, Mapping[str, Predictions]]:
    """Return each client's predictions, in client order; a model that has not changed is not tested again."""
    algorithm, versions, tested = federation.spec.algorithm, federation.versions, federation.tested
    # Of such a method a personal model is the client's state and nothing else. A user's network may draw when it is
    # tested, and a user's task may change what it is given.
    keeps = (
        not any(federation.spec.components.values())
        and all(
            getattr(type(algorithm), hook) is getattr(Algorithm, hook) for hook in _OF_THE_STATE
        )
        and not any(federation.server.shared_names.values())
        and not federation.spec.config.evaluation.others  # predictions for all clients' samples
    )
    known = {i: tested[i][1] for i in tested if tested[i][0] == versions[i]} if keeps else {}
    found = {t.client: one for t, one in predict(federation, personal_tasks(federation, known))}
    if keeps:
        tested.update({i: (versions[i], one) for i, one in found.items()})
    return dict(sorted({**known, **found}.items()))


def _personal(federation: FederationState) -> dict[str, float]:
    data, wanted = federation.spec.data, federation.spec.config.evaluation
    found = _of_personal_models(federation)
    if not found:
        raise messages.NobodyAnsweredError(
            f"evaluation after round {federation.server.round}: no client answered; see what was said of each"
        )
    _warn_of_initial_statistics(federation, "tested with these")
    measure = federation.spec.task
    sizes = [len(client.test) for client in data.clients]
    own = {i: one["test"] for i, one in found.items()}
    views: dict[str, dict[int, dict[str, float]]] = {}
    if wanted.others:
        ends = np.cumsum([0, *sizes])
        own = {
            i: {name: values[ends[i] : ends[i + 1]] for name, values in part.items()}
            for i, part in own.items()
        }
        each = {i: summarise_parts(measure, one["test"], sizes) for i, one in found.items()}
        views["personal/local"] = {i: {n: float(v[i]) for n, v in each[i].items()} for i in each}
        filled = np.flatnonzero(sizes)
        views["personal/others"] = {
            i: {name: mean_of_known(values[filled[filled != i]]) for name, values in parts.items()}
            for i, parts in each.items()
            if len(filled) > (i in filled)
        }
    else:
        views["personal/local"] = {i: measure.summarise(part) for i, part in own.items()}
    views["personal/validation"] = {
        i: measure.summarise(one["validation"]) for i, one in found.items() if "validation" in one
    }
    views |= {
        view: {i: measure.summarise(one[view]) for i, one in found.items()}
        for view in sorted(next(iter(found.values())).keys() - {"test", "validation"})
    }
    metrics = over_clients(federation, views)
    if wanted.pooled:
        together = measure.summarise(_join(list(own.values())))
        metrics |= {f"personal/pooled/{n}": v for n, v in together.items() if not np.isnan(v)}
    return metrics


def predict_clients(
    federation: FederationState,
    kind: messages.Kind,
    clients: Iterable[int],
    message: messages.Message,
) -> dict[int, Mapping[str, Predictions]]:
    """Return the predictions of each of some clients that answered; see `predict`."""
    tasks = federation.tasks_for(kind, clients, message)
    return {task.client: one for task, one in predict(federation, tasks)}


def predict(
    federation: FederationState, jobs: list[messages.TaskInput]
) -> list[tuple[messages.ClientTask, Mapping[str, Predictions]]]:
    """Return the tasks with their predictions, without clients left out by the fault policy of rounds.

    Parameters
    ----------
    federation : FederationState
        Unchanged.
    jobs : list of TaskInput
        Evaluations.

    Raises
    ------
    ClientError
        If a task fails and failing clients are not left out.
    """
    found: list[tuple[messages.ClientTask, Mapping[str, Predictions]]] = []
    idle = federation.spec.config.faults.round_timeout
    for result in federation.executor.run_tasks(jobs, idle=idle):
        federation.usage.add(result)
        failure, task = result.outcome.failure, result.client_task
        if failure is None:
            found.append((task, result.outcome.predictions))
            continue
        name = federation.spec.data.everyone[task.client].name
        who = "the global model" if task.client < 0 else f"client {task.client} ({name})"
        asked = task.kind == "ask"
        when = "asked before round" if asked else "evaluation after round"
        line = f"{who}, {when} {task.round + asked}"
        federation.leave_out(line, failure, needed=task.client < 0)
    return found


def _join(parts: list[Predictions]) -> Predictions:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def over_clients(
    federation: FederationState,
    views: Mapping[str, Mapping[int, Mapping[str, float]]],
    suffix: str = "",
) -> dict[str, float]:
    """Return each view's mean, std, worst and worst tenth over clients, and the clients' own values, ignoring NaN."""
    metrics: dict[str, float] = {}
    clients = federation.spec.data.everyone
    columns = {
        (view, name): {i: v[name] for i, v in values.items() if not np.isnan(v[name])}
        for view, values in views.items()
        for name in next(iter(values.values()), {})
    }
    for (view, name), known in columns.items():
        if not known:
            continue
        numbers = np.array(list(known.values()))
        metrics[f"{view}/{name}{suffix}"] = float(numbers.mean())
        with np.errstate(invalid="ignore"):  # a loss may be infinite
            metrics[f"{view}/{name}{suffix}/std"] = finite_or_infinite(float(numbers.std()))
        if name != "loss":
            worst_first = np.sort(numbers)[:: -1 if lower_is_better(name) else 1]
            metrics[f"{view}/{name}{suffix}/worst"] = float(worst_first[0])
            metrics[f"{view}/{name}{suffix}/worst10"] = float(
                worst_first[: max(1, round(len(numbers) / 10))].mean()
            )
        if len(clients) <= MAX_CLIENT_METRICS:
            metrics.update({f"{view}/{name}/client/{clients[i].name}": v for i, v in known.items()})
    return metrics


def evaluate_unseen(federation: FederationState) -> dict[str, float]:
    """Return the metrics ``global/unseen`` and ``adapted/unseen``; empty if no client is unseen.

    Unseen clients are numbered after the others.

    Raises
    ------
    ClientError
        If a model raises, unless failing clients are skipped.
    """
    data = federation.spec.data
    if not data.unseen:
        return {}
    unseen = range(len(data.clients), len(data.everyone))
    found = predict_clients(federation, "unseen", unseen, federation.whole_models(Stage("adapt")))
    views = {
        f"{view}/unseen": {n: federation.spec.task.summarise(one[view]) for n, one in found.items()}
        for view in sorted({view for one in found.values() for view in one}, reverse=True)
    }
    return over_clients(federation, views)


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
        kept = server.state.get("prototypes")
        vectors = kept.get("vectors") if isinstance(kept, dict) else kept
        width = diagnostics["features"].shape[1]
        if isinstance(vectors, torch.Tensor) and vectors.shape[-1] == width:
            diagnostics["prototypes"] = vectors.float().cpu().numpy()
    if len(spec.architectures) == 1:
        diagnostics |= {
            "layers": parts[0]["layers"],
            "personal": parts[0]["personal"],
            "distance": np.stack([part["distance"] for part in parts]),
        }
    return diagnostics
