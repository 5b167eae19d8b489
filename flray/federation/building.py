"""Build a federation's specification from its configuration: data, method, networks, all checked before round 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flray import registry
from flray.callbacks.base import check_callbacks
from flray.config.components import ModelChoice
from flray.config.experiment import Experiment
from flray.data.federated import federate, with_normalisation
from flray.data.loading import load_once
from flray.data.types import DataSet, FederatedData
from flray.errors import ConfigError, FlrayError, nearest
from flray.federation.spec import FederationSpec, SharedDataset
from flray.federation.start_weights import read_start
from flray.federation.validation import AUGMENTS, augmentations, validate
from flray.metrics.names import check_clients
from flray.rng import numpy_generator


def dataset_for(config: Experiment) -> DataSet:
    """Return an experiment's data set, loaded at most once per process."""
    return load_once(config.data.name, config.data.options, config.public, config.subset)


def build_spec(config: Experiment, shared: SharedDataset | None = None) -> FederationSpec:
    """Load the data and build an experiment's specification.

    Parameters
    ----------
    config : Experiment
        The experiment.
    shared : SharedDataset, optional
        Its data set where it is loaded already; nothing is read or copied then.

    Raises
    ------
    FlrayError
        If data are missing or the parts do not fit together, or a component of the user's own
        raises; the message says what to change.
    """
    try:
        return _build(config, shared)
    except (Exception, SystemExit) as error:
        own = [
            (registry.ALL[kind], name)
            for kind, name in components_of(config)
            if registry.ALL[kind].is_own(name)
        ]
        if isinstance(error, FlrayError) or not own:
            raise
        raise registry.blame_component(error, own) from error


def _build(config: Experiment, shared: SharedDataset | None) -> FederationSpec:
    if shared is None:
        data = federate(
            dataset_for(config),
            config.partition.name,
            config.partition.arguments,
            config.partition.seed(config.seed),
            val_fraction=config.evaluation.validation,
            split=config.split,
            shift=config.shift,
            unseen=config.participation.unseen,
        )
    else:
        data = federate(
            shared.outline,
            config.partition.name,
            config.partition.arguments,
            config.partition.seed(config.seed),
            val_fraction=config.evaluation.validation,
            pooled=shared.samples,
            fingerprint=shared.fingerprint,
            split=config.split,
            shift=config.shift,
            unseen=config.participation.unseen,
        )
    check_callbacks(config.callbacks)
    data = with_normalisation(data, config.normalisation)
    check_clients([client.name for client in data.everyone])
    architectures, architecture_of = _architectures(config, data)
    algorithm = registry.algorithms.get(config.algorithm.name)
    spec = FederationSpec(
        config=config,
        data=data,
        architectures=architectures,
        architecture_of=architecture_of,
        algorithm=algorithm(
            registry.algorithms.params(config.algorithm.name)(**config.algorithm.options)
        ),
        components=_own_components(config, architectures),
        start=read_start(config.start),
    )
    validate(spec)
    return spec


def components_of(config: Experiment) -> Iterator[tuple[str, str]]:
    """Yield kind and name of every component that an experiment uses; the method last."""
    yield "datasets", config.data.name
    if config.public is not None:
        yield "datasets", config.public.name
    yield "partitions", config.partition.name
    models = config.models if isinstance(config.models, tuple) else config.models.values()
    for choice in (config.model, *models):
        yield "models", choice.name
    for section in (dict(config.local), config.algorithm.options):
        for augment in map(section.get, AUGMENTS):
            for step in augment if isinstance(augment, tuple | list) else ():
                yield "augmentations", step["name"] if isinstance(step, dict) else step.name
    for metric in config.evaluation.metrics:
        yield "metrics", metric.name
    yield "samplers", config.participation.sampler.name
    for callback in config.callbacks:
        yield "callbacks", callback.name
    yield "algorithms", config.algorithm.name


def _own_components(
    config: Experiment, architectures: Mapping[str, ModelChoice]
) -> dict[str, dict[str, Any]]:
    """Return the user's components that client tasks and the server need; other processes need no others."""
    steps = [
        step.name
        for augment in augmentations(config).values()
        if not isinstance(augment, str)
        for step in augment
    ]
    used = {
        "algorithms": {config.algorithm.name},
        "models": {choice.name for choice in architectures.values()},
        "augmentations": set(steps),
        "metrics": {metric.name for metric in config.evaluation.metrics},
        "samplers": {config.participation.sampler.name},
    }
    return {
        kind: {name: item for name, item in registry.ALL[kind].added().items() if name in names}
        for kind, names in used.items()
    }


def _architectures(
    config: Experiment, data: FederatedData
) -> tuple[dict[str, ModelChoice], tuple[str, ...]]:
    models = config.models
    choices = (
        _assign_round_robin(models or (config.model,), config.seed, len(data.clients))
        if isinstance(models, tuple)
        else _assign_by_name(models, config.model, data)
    )
    keys: dict[str, ModelChoice] = {}
    assigned: list[str] = []
    for choice in choices:
        same = next((key for key, other in keys.items() if other == choice), None)
        if same is None:
            taken = sum(other.name == choice.name for other in keys.values())
            same = choice.name if not taken else f"{choice.name}-{taken + 1}"
            keys[same] = choice
        assigned.append(same)
    return keys, tuple(assigned)


def _assign_round_robin(choices: Sequence[ModelChoice], seed: int, count: int) -> list[ModelChoice]:
    """Assign networks to clients in an order drawn from the seed."""
    places = numpy_generator(seed, "init", client=-1, extra="networks").permutation(count)
    return [choices[place % len(choices)] for place in places]


def _assign_by_name(
    choices: Mapping[str, ModelChoice], default: ModelChoice, data: FederatedData
) -> list[ModelChoice]:
    known = {c.name for c in data.clients} | {c.domain for c in data.clients}
    for name in choices:
        if name not in known:
            raise ConfigError(
                f"experiment.models.{name}",
                name,
                f"no client or domain has this name{nearest(name, known)}",
            )
    return [
        choices.get(client.name) or choices.get(client.domain) or default for client in data.clients
    ]
