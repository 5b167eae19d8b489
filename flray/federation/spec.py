"""Everything a process needs to play turns: configuration, data, method and networks, checked before round 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from flray import models, registry
from flray.algorithms.base import Algorithm
from flray.algorithms.common import batched_clients
from flray.algorithms.types import Weighting
from flray.config.experiment import Experiment, ModelChoice, PublicChoice
from flray.data import augment
from flray.data.dataset_checks import validate_dataset
from flray.data.federated import federate
from flray.data.public import with_public
from flray.data.sources.cache import data_root
from flray.data.subset import take_subset
from flray.data.types import DataSet, FederatedData, Pooled, label_placeholders
from flray.errors import ConfigError, FlrayError, nearest
from flray.federation.validation import check_single_sample_batch_norm
from flray.metrics.names import check_clients
from flray.models import groups
from flray.rng import numpy_generator
from flray.tasks.base import Task, make_task

_datasets: dict[str, DataSet] = {}


@dataclass(frozen=True)
class SharedDataset:
    """A loaded data set that several federations use; its large arrays lie in `samples` alone.

    Attributes
    ----------
    outline : DataSet
        Names, labels and statistics; its images are empty.
    samples : Pooled
        All samples, once.
    fingerprint : str
        The data set's.
    """

    outline: DataSet
    samples: Pooled
    fingerprint: str

    @classmethod
    def of(cls, dataset: DataSet) -> SharedDataset:
        """Return a data set in the form that is shared."""
        domains = tuple(
            replace(
                d,
                train_x=d.train_x[:0],
                test_x=d.test_x[:0],
                train_y=label_placeholders(d.train_y),
                test_y=label_placeholders(d.test_y),
            )
            for d in dataset.domains
        )
        return cls(
            replace(dataset, domains=domains, public=None), Pooled.of(dataset), dataset.fingerprint
        )


@dataclass(frozen=True)
class FederationSpec:
    """A federation's unchanging part; the same in every process.

    Attributes
    ----------
    config : Experiment
        The experiment.
    data : FederatedData
        All samples and who holds which.
    algorithm : Algorithm
        The method with its hyper-parameters.
    architectures : dict of str to ModelChoice
        Networks by key.
    architecture_of : tuple of str
        Each client's key.
    components : dict
        What the user registered and the turns need, by kind, for the other processes.
    """

    config: Experiment
    data: FederatedData
    algorithm: Algorithm
    architectures: dict[str, ModelChoice]
    architecture_of: tuple[str, ...]
    components: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        """What is to be learnt: loss and metrics."""
        few_shot = {**self.config.episodes.model_dump(), "seed": self.config.seed}
        return make_task(self.data.task, self.data.classes, few_shot)

    @property
    def weighting(self) -> Weighting:
        """Weights of the mean: as set, or as the method declares."""
        declared = self.config.aggregation.weights
        return self.algorithm.weighting if declared == "method" else declared

    def register_components(self) -> None:
        """Make what the user registered known in this process too: before anything is built in it."""
        for kind, entries in self.components.items():
            registry.ALL[kind].add(entries)

    def build(self, key: str) -> nn.Module:
        """Return a fresh network of an architecture as the method trains it: the same bits in every process."""
        choice = self.architectures[key]
        dtype = torch.float64 if self.config.local.precision == "float64" else torch.float32
        network = models.build(
            choice.name,
            self.data.shape,
            self.data.num_classes,
            choice.options,
            self.config.seed,
            dtype,
        )
        return self.algorithm.network(self.task.network(network))

    def without_samples(self) -> FederationSpec:
        """Return the world without its large arrays, to travel apart from them."""
        data = self.data
        empty = np.empty((0, *data.x.shape[1:]), data.x.dtype)
        return replace(self, data=replace(data, x=empty, y=label_placeholders(data.y), public=None))

    def with_samples(self, samples: Pooled) -> FederationSpec:
        """Return the world with its large arrays, not copied."""
        return replace(
            self, data=replace(self.data, x=samples.x, y=samples.y, public=samples.public)
        )

    @property
    def cohort_size(self) -> int:
        """Clients sampled in each round."""
        participation = self.config.participation
        if participation.clients is not None:
            return participation.clients
        return round(participation.fraction * len(self.data.clients))


def load_dataset(
    name: str,
    options: Mapping[str, Any],
    public: PublicChoice | None = None,
    most: int | None = None,
) -> DataSet:
    """Return a data set, loaded at most once per process.

    Parameters
    ----------
    name : str
        Registered name.
    options : mapping
        Its options.
    public : PublicChoice, optional
        Where its public samples come from, if not from the set itself.
    most : int, optional
        Only a `subset` of at most so many samples per domain.
    """
    key = f"{name} {sorted(options.items())} {public} {most}"
    if key not in _datasets:
        _datasets.clear()
        dataset = validate_dataset(name, registry.datasets.call(name, data_root(), **options))
        if most is not None:
            dataset = take_subset(dataset, most)
        if public is not None:
            dataset = with_public(dataset, public.name, public.options)
        _datasets[key] = dataset
    return _datasets[key]


def dataset_for(config: Experiment) -> DataSet:
    """Return an experiment's data set, as `load_dataset`."""
    return load_dataset(config.data.name, config.data.options, config.public, config.subset)


def build_spec(config: Experiment, shared: SharedDataset | None = None) -> FederationSpec:
    """Load the data and build the world of an experiment.

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
            for kind, name in _components_of(config)
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
            config.partition.options,
            config.seed,
            val_fraction=config.evaluation.validation,
            split=config.split,
            shift=config.shift,
        )
    else:
        data = federate(
            shared.outline,
            config.partition.name,
            config.partition.options,
            config.seed,
            val_fraction=config.evaluation.validation,
            pooled=shared.samples,
            fingerprint=shared.fingerprint,
            split=config.split,
            shift=config.shift,
        )
    check_clients([client.name for client in data.clients])
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
    )
    validate(spec)
    return spec


def validate(spec: FederationSpec) -> None:
    """Refuse what cannot run.

    Raises
    ------
    ConfigError
        Naming the setting.
    """
    config, data, algorithm, count = spec.config, spec.data, spec.algorithm, len(spec.data.clients)
    name = config.algorithm.name
    if config.participation.clients is not None and config.participation.clients > count:
        raise ConfigError(
            "experiment.participation.clients",
            str(config.participation.clients),
            f"the partition has {count} clients",
        )
    if spec.cohort_size < 1:
        raise ConfigError(
            "experiment.participation.fraction",
            str(config.participation.fraction),
            f"this selects nobody of {count} clients; at least {1 / count:.3g} is needed",
        )
    if not len(data.test):
        raise ConfigError(
            "experiment.split",
            str(config.split),
            f"{data.dataset} leaves no test samples under this "
            "split; choose another, for example [0.6, 0.2, 0.2]",
        )
    needs, learnt = algorithm.needs, spec.task
    learnt.check(data)
    if "classification" in needs and not learnt.logits:
        raise ConfigError(
            "experiment.algorithm",
            name,
            f"it needs classification, and {data.dataset} is {data.task}; "
            "`flray list algorithms` shows what each method needs",
        )
    if "labels" in needs and not data.has_classes:
        raise ConfigError(
            "experiment.algorithm",
            name,
            f"it needs class labels, and {data.dataset} is {data.task}; "
            "`flray list algorithms` shows what each method needs",
        )
    if "homogeneous" in needs and len(spec.architectures) > 1:
        raise ConfigError(
            "experiment.models",
            ", ".join(spec.architectures),
            f"{name} averages weights, so all clients need the same network",
        )
    if "public" in needs and data.public is None:
        raise ConfigError(
            "experiment.data",
            data.dataset,
            f"{name} needs public data, and this set has none; "
            "name some, for example experiment.public: photos",
        )
    if "validation" in needs and not len(data.validation):
        raise ConfigError(
            "experiment.evaluation.validation",
            str(config.evaluation.validation),
            f"{name} needs a validation split, for example 0.2",
        )
    if config.evaluation.protocol == "best" and not len(data.validation):
        raise ConfigError(
            "experiment.evaluation.protocol",
            "best",
            "it chooses the round on validation samples: set "
            "evaluation.validation, for example to 0.2, or a split with a validation part",
        )
    if "all_clients" in needs and spec.cohort_size < count:
        raise ConfigError(
            "experiment.participation",
            f"{spec.cohort_size} of {count}",
            f"{name} needs all clients",
        )
    if config.aggregation.block is not None and not algorithm.takes_mean_only():
        able = [
            n for n in registry.algorithms.names() if registry.algorithms.get(n).takes_mean_only()
        ]
        raise ConfigError(
            "experiment.aggregation.block",
            str(config.aggregation.block),
            f"the server of {name} looks at single replies, which blocks add up before they reach "
            f"it; "
            f"set null, or choose one of {', '.join(able)}",
        )
    algorithm.check(config)
    for where, how in _augmentations(config).items():
        augment.check(how, where, data.shape, data.x.dtype)
    sizes: dict[str, int] = {}
    for key in spec.architectures:
        model = spec.build(key)
        learnt.check_network(key, model, data)
        if config.local.clients_per_step > 1:
            batched_clients.check_batchable(config, algorithm, learnt, model, data.shape)
        for need, group in (("split", "classifier"), ("batch_norm", "batch_norm")):
            if need in needs and not groups.select(model, group):
                raise ConfigError(
                    "experiment.model",
                    key,
                    f"{name} needs a network with {group.replace('_', ' ')}",
                )
        if "split" in needs or "features" in needs:
            groups.select(model, "features")
        if "same_features" in needs:
            sizes[key] = models.feature_dim(model)
        groups.select(model, algorithm.shared)
        check_single_sample_batch_norm(spec, key, model)
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{key}: {size}" for key, size in sizes.items())
        raise ConfigError(
            "experiment.models",
            found,
            f"{name} compares features, so all networks need equally many",
        )


def _components_of(config: Experiment) -> Iterator[tuple[str, str]]:
    """Yield kind and name of every component that an experiment uses; the method last."""
    yield "datasets", config.data.name
    if config.public is not None:
        yield "datasets", config.public.name
    yield "partitions", config.partition.name
    models = config.models if isinstance(config.models, tuple) else config.models.values()
    for choice in (config.model, *models):
        yield "models", choice.name
    for how in (config.local.augment, config.algorithm.options.get("augment")):
        for step in how if isinstance(how, tuple | list) else ():
            yield "augmentations", step["name"] if isinstance(step, dict) else step.name
    yield "algorithms", config.algorithm.name


def _own_components(
    config: Experiment, architectures: Mapping[str, ModelChoice]
) -> dict[str, dict[str, Any]]:
    """Return what the user registered and the clients' turns need; nothing else has to reach other processes."""
    steps = [
        step.name
        for how in _augmentations(config).values()
        if not isinstance(how, str)
        for step in how
    ]
    used = {
        "algorithms": {config.algorithm.name},
        "models": {choice.name for choice in architectures.values()},
        "augmentations": set(steps),
    }
    return {
        kind: {name: item for name, item in registry.ALL[kind].added().items() if name in names}
        for kind, names in used.items()
    }


def _augmentations(config: Experiment) -> dict[str, Any]:
    """Return what augments images, by setting."""
    own = getattr(
        registry.algorithms.params(config.algorithm.name)(**config.algorithm.options),
        "augment",
        None,
    )
    return {
        "experiment.local.augment": config.local.augment,
        **({"experiment.algorithm.augment": own} if own is not None else {}),
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
    """Deal networks to clients in an order drawn from the seed."""
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


__all__ = [
    "FederationSpec",
    "FlrayError",
    "SharedDataset",
    "build_spec",
    "load_dataset",
    "validate",
]
