"""Build a federation's specification from its configuration: data, method, networks, all checked before round 0."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, get_type_hints

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from flray import models, registry
from flray.algorithms.base import Algorithm
from flray.algorithms.client import make_optimizer
from flray.algorithms.common.batched_clients import check_batchable
from flray.callbacks import check_callbacks
from flray.config.components import ModelChoice, OptimizerChoice
from flray.config.experiment import Experiment
from flray.data import augment
from flray.data.federated import federate, with_normalisation
from flray.data.loading import load_once
from flray.data.types import DataSet, FederatedData
from flray.errors import ConfigError, FlrayError, nearest
from flray.federation import FederationSpec, SharedDataset, read_start
from flray.federation.evaluation import check_metric
from flray.metrics import AUTO, check_clients, is_at_most_one
from flray.models import check_forward, dry_run, select, supports_single_sample
from flray.rng import numpy_generator
from flray.tasks.base import bound_loss
from flray.tasks.classification import FewShot

AUGMENTS = ("augment", "public_augment")
"""Settings of ``local``, and options of methods, that are augmentations of private and of public images."""


_AT_CLIENTS = [kind for kind in registry.ALL if kind not in ("datasets", "partitions", "callbacks")]
"""Kinds of components that client tasks and the server need."""


_DECLARED = {
    name: TypeAdapter[object](get_type_hints(Algorithm)[name])
    for name in ("needs", "weighting", "views", "sent", "further")
}
"""What a method declares, in which a misspelt word would have no effect."""


def _refuse(config: Experiment, setting: str, why: str, found: object = None) -> NoReturn:
    """Refuse the value of a setting; if another thing is at fault, that was `found`."""
    value = functools.reduce(getattr, setting.split("."), config) if found is None else found
    raise ConfigError(f"experiment.{setting}", str(value), why)


def check_single_sample_batch_norm(spec: FederationSpec, key: str, model: nn.Module) -> None:
    """Reject batches of one sample if batch norm cannot train on them.

    Epochs skip a last batch of one sample (`flray.algorithms.common.samples`); here it is the only
    batch.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    key : str
        One of its architectures.
    model : nn.Module
        A network of this architecture; its values are overwritten.

    Raises
    ------
    ConfigError
        Naming the clients or the batch size, and the setting to change.
    """
    config, data = spec.config, spec.data
    if config.faults.on_client_error == "skip" or isinstance(spec.task, FewShot):
        return  # such clients are left out and reported; an episode never has one sample
    single = [
        client.name
        for client, architecture in zip(data.clients, spec.architecture_of, strict=True)
        if architecture == key and len(client.train) == 1
    ]
    if (not single and config.local.batch_size > 1) or supports_single_sample(model, data.shape):
        return
    why = f"{key} has batch norm of single values (fully connected layers or 1x1 maps), which one sample cannot train"
    if single:
        why += (
            "; give every client two (min_size: 2, fewer clients, less skew), take another norm "
            "(norm: group), or leave such clients out (faults.on_client_error: skip)"
        )
        _refuse(config, "partition", why, f"one training sample at {', '.join(single[:5])}")
    _refuse(config, "local.batch_size", f"{why}; at least 2, or another norm (norm: group)")


def check_unseen(spec: FederationSpec) -> None:
    """Refuse settings under which there is nothing to measure on unseen clients.

    Raises
    ------
    ConfigError
        Naming the setting and a value that works.
    """
    config, algorithm = spec.config, spec.algorithm
    name, steps, count = config.algorithm.name, config.evaluation.adapt_steps, len(spec.data.unseen)
    why = ""
    if not count:
        if steps:
            why = "no client is kept out of training; set participation.unseen too, or 0"
            _refuse(config, "evaluation.adapt_steps", why)
    elif algorithm.shared == "none":
        why = f"{name} shares no weights, so a client that takes no part has none; set 0"
    elif not spec.has_common and not steps:
        why = (
            f"each client of {name} has running statistics of its own (aggregation.buffers: local)"
            if "global" in algorithm.views
            else f"{name} has personal models alone"
        )
        why += ", and an unseen client has none before it was trained; set evaluation.adapt_steps, for example to 10"
    elif len(spec.architectures) > 1:
        why = f"there are {len(spec.architectures)} networks, and none is an unseen client's; one network, or 0"
    if why:
        _refuse(
            config, "participation.unseen", why, f"{count} of {len(spec.data.everyone)} clients"
        )


def check_stop(spec: FederationSpec) -> None:
    """Refuse a metric to stop by that is never measured, and a value that it never has, such as 90 for 90 %.

    Raises
    ------
    ConfigError
        Naming the setting and the value in its place.
    """
    stop = spec.config.stop
    if stop is None:
        return
    metric = spec.primary_metric if stop.metric == AUTO else stop.metric
    check_metric(spec, metric, "experiment.stop.metric")
    for name, value in (("target", stop.target), ("min_delta", stop.min_delta)):
        if value is not None and value > 1 and is_at_most_one(metric):
            meant = f"; {value / 100:g} is {value:g} %" if value <= 100 else ""
            _refuse(spec.config, f"stop.{name}", f"{metric} is a share between 0 and 1{meant}")


def check_loss(spec: FederationSpec, key: str, model: nn.Module) -> None:
    """Refuse a ``local.loss`` that the method does not minimise, or that cannot be computed of the network's outputs.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    key : str
        One of its architectures.
    model : nn.Module
        A network of this architecture; it is not changed.

    Raises
    ------
    ConfigError
        Naming the reason.
    """
    config, data, chosen = spec.config, spec.data, spec.config.local.loss
    if chosen is None:
        return
    function, why = registry.losses.get(chosen.name), ""
    counted = registry.takes(function, 3)
    if own := spec.algorithm.own_loss():
        why = f"{config.algorithm.name} minimises {own}, not the task's loss; leave local.loss out"
    elif not counted and not registry.takes(function, 2):
        why = "a loss is a function loss(outputs, targets, *, options), or loss(outputs, targets, counts, *, options)"
    elif counted and not spec.task.logits:
        why = f"it needs the logits of fixed classes, and {data.dataset} is {data.task}; leave local.loss out"
    elif not isinstance(spec.task, FewShot):
        rows = data.clients[0].train[:2]
        outputs = torch.cat([dry_run(key, model, data.shape)] * len(rows)).requires_grad_()
        counts = torch.from_numpy(data.class_counts()[0]) if counted else torch.empty(0)
        loss = bound_loss(chosen, lambda: counts)
        with registry.losses.guarded(chosen.name):
            found = loss(outputs, torch.from_numpy(data.y[rows]))
        if not (isinstance(found, Tensor) and found.shape == () and found.requires_grad):
            why = "it has to return a tensor of one number that follows from the outputs, such as a mean over the batch"
    if why:
        _refuse(config, "local.loss", why, chosen.name)


def validate(spec: FederationSpec) -> None:
    """Reject an experiment that cannot run.

    Raises
    ------
    ConfigError
        Naming the setting.
    """
    config, data, algorithm, count = spec.config, spec.data, spec.algorithm, len(spec.data.clients)
    name, local, needs, learnt = config.algorithm.name, config.local, algorithm.needs, spec.task
    refuse = functools.partial(_refuse, config)
    for declared, kind in _DECLARED.items():
        try:
            kind.validate_python(found := getattr(algorithm, declared))
        except ValidationError as error:
            refuse("algorithm", f"its {declared} is {found!r}: {error.errors()[0]['msg']}", name)
    if config.participation.clients is not None and config.participation.clients > count:
        refuse("participation.clients", f"the partition has {count} clients")
    if spec.cohort_size < 1:
        least = f"at least {1 / count:.3g} is needed"
        refuse("participation.fraction", f"this selects nobody of {count} clients; {least}")
    sampler = config.participation.sampler.name
    if not registry.takes(registry.samplers.get(sampler), 1):
        why = "a sampler is a function of the round, sampler(sampling, *, options)"
        refuse("participation.sampler", why, sampler)
    if sampler == "power-of-choice" and "loss" not in learnt.measures:
        why = f"it chooses by the loss, which {learnt.name} does not measure; add it to the measures, or write uniform"
        refuse("participation.sampler", why, sampler)
    if not len(data.test):
        why = f"{data.dataset} leaves no test samples under this split; choose another, for example"
        refuse("split", f"{why} [0.6, 0.2, 0.2]")
    learnt.check(data)
    for need, there, what in (
        ("classification", learnt.logits, "classification"),
        ("labels", data.has_classes, "class labels"),
    ):
        if need in needs and not there:
            listed = "`flray list algorithms` shows what each method needs"
            refuse(
                "algorithm", f"it needs {what}, and {data.dataset} is {data.task}; {listed}", name
            )
    if "homogeneous" in needs and len(spec.architectures) > 1:
        why = f"{name} averages weights, so all clients need the same network"
        refuse("models", why, ", ".join(spec.architectures))
    if "public" in needs and data.public is None:
        why = f"{name} needs public data, and this set has none; "
        if data.x.dtype == np.uint8:
            why += "name some, for example experiment.public: photos"
        else:
            why += "another set's (experiment.public) are images, as these samples are not; choose another method"
        refuse("data", why, data.dataset)
    if "validation" in needs and not len(data.validation):
        if isinstance(config.split, tuple):  # which says itself how many there are
            why = f"{name} needs validation samples; give the second share some, for example [0.6, 0.2, 0.2]"
            refuse("split", why, list(config.split))
        refuse("evaluation.validation", f"{name} needs a validation split, for example 0.2")
    if config.evaluation.protocol == "best" and not len(data.validation):
        how = "set evaluation.validation, for example to 0.2, or a split with a validation part"
        if isinstance(config.split, tuple):
            how = "give the second share of split some, for example [0.6, 0.2, 0.2]"
        refuse("evaluation.protocol", f"it chooses the round on validation samples: {how}")
    if config.evaluation.pooled and isinstance(learnt, FewShot):
        why = "episodes compare samples by one network, and here every client has its own; false"
        refuse("evaluation.pooled", why, "true")
    work, most = config.participation.work, local.steps or local.epochs
    if config.participation.straggler_work == "drawn" and (most < 2 or most != int(most)):
        why = "drawn chooses among whole epochs (or local.steps) from 1 to all; set local.epochs to 2 or more"
        refuse("participation.straggler_work", why)
    known = {name for client in data.everyone for name in (client.name, client.domain)}
    for unknown in sorted(work.keys() - known):
        refuse(
            "participation.work",
            f"no client or domain has this name{nearest(unknown, known)}",
            unknown,
        )
    if algorithm.pools and work:
        refuse("participation.work", f"{name} trains one model on all samples; leave it out")
    if config.normalisation != "data" and not algorithm.normalise:
        refuse(
            "normalisation",
            f"{name} scales images to [0, 1] only, as it is set; write data, or let the method "
            "normalise (algorithm.inputs: normalised)",
        )
    if "all_clients" in needs and spec.cohort_size < count:
        refuse("participation", f"{name} needs all clients", f"{spec.cohort_size} of {count}")
    if config.aggregation.block is not None and algorithm.adds_up() == "at the server":
        methods = {one: registry.algorithms.get(one) for one in registry.algorithms.names()}
        able = [one for one, method in methods.items() if method.adds_up() != "at the server"]
        refuse(
            "aggregation.block",
            f"the server of {name} looks at single replies, which blocks add up before they reach "
            f"it; set null, or choose one of {', '.join(able)}",
        )
    if algorithm.pools and config.aggregation.buffers == "local":
        why = f"{name} trains one model on all samples, so no client has statistics of its own"
        refuse("aggregation.buffers", f"{why}; average")
    check_stop(spec)
    if local.warmup >= config.rounds:
        refuse("local.warmup", f"there are {config.rounds} rounds; set fewer than that")
    algorithm.check(config)
    check_unseen(spec)
    for where, how in augmentations(config).items():
        augment.check(how, where, data.shape, data.x.dtype)
    sizes: dict[str, int] = {}
    for key in spec.architectures:
        model = spec.build(key)
        learnt.check_network(key, model, data)
        check_loss(spec, key, model)
        make_optimizer([*model.parameters()], local, 0, config.rounds)
        if local.clients_per_step > 1:
            check_batchable(config, algorithm, learnt, model, data.shape)
        if "split" in needs and not select(model, "classifier"):
            refuse("model", f"{name} needs a network with classifier", key)
        if "exact_logits" in needs:
            found = dry_run(key, model, data.shape).shape[1]
            if found > data.num_classes:
                why = f"{name} needs a network with as many logits as {data.dataset} has classes"
                refuse("model", f"{why}, {data.num_classes}, and it returns {found}", key)
        split = not needs.isdisjoint({"split", "features"})
        if split:
            select(model, "features")
        if registry.models.is_own(spec.architectures[key].name):
            check_forward(key, model, data.shape, split=split)
        if "same_features" in needs and len(spec.architectures) > 1:
            sizes[key] = models.feature_dim(model)
        try:
            select(model, algorithm.shared)
        except FlrayError as error:  # an option of the method names no group of parameters
            refuse("algorithm", str(error), name)
        check_single_sample_batch_norm(spec, key, model)
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{key}: {size}" for key, size in sizes.items())
        refuse("models", f"{name} compares features, so all networks need equally many", found)


def augmentations(config: Experiment) -> dict[str, Any]:
    """Return the augmentations that are set, of private and of public images, by setting."""
    method = registry.algorithms.params(config.algorithm.name)(**config.algorithm.options)
    return {
        f"experiment.{place}.{name}": how
        for place, section in (("local", config.local), ("algorithm", method))
        for name in AUGMENTS
        if (how := getattr(section, name, None)) is not None
    }


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
        Its data set, if it is loaded already; nothing is read or copied then.

    Raises
    ------
    FlrayError
        If data are missing, the parts do not fit together, or a user's component raises; the message
        names the remedy.
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


def divide(config: Experiment, shared: SharedDataset) -> FederatedData:
    """Return a data set in the parts of an experiment's clients."""
    return federate(
        shared.outline,
        config.partition.name,
        config.partition.arguments,
        config.partition.seed(config.seed),
        val_fraction=config.evaluation.validation,
        split=config.split,
        shift=config.shift,
        unseen=config.participation.unseen,
        pooled=shared.samples,
        fingerprint=shared.fingerprint,
    )


def _build(config: Experiment, shared: SharedDataset | None) -> FederationSpec:
    data = divide(config, shared or SharedDataset.of(dataset_for(config)))
    check_callbacks(config.callbacks)
    data = with_normalisation(data, config.normalisation)
    check_clients([client.name for client in data.everyone])
    architectures, architecture_of = assign_networks(config, data)
    spec = FederationSpec(
        config=config,
        data=data,
        architectures=architectures,
        architecture_of=architecture_of,
        algorithm=registry.algorithms.get(config.algorithm.name)(
            registry.algorithms.params(config.algorithm.name)(**config.algorithm.options)
        ),
        components=_own_components(config, data.task),
        start=read_start(config.start),
    )
    validate(spec)
    spec.algorithm.begin_federation()
    return spec


def components_of(config: Experiment) -> list[tuple[str, str]]:
    """Return kind and name of every component that an experiment uses; the method last."""
    local, task = config.local, config.data.options.get("task")
    models = config.models if isinstance(config.models, tuple) else config.models.values()
    used = {
        "datasets": [one.name for one in (config.data, config.public) if one is not None],
        "partitions": [config.partition.name],
        "models": [one.name for one in (config.model, *models)],
        "augmentations": [
            step["name"] if isinstance(step, dict) else step.name
            for section in (dict(local), config.algorithm.options)
            for steps in map(section.get, AUGMENTS)
            if isinstance(steps, tuple | list)
            for step in steps
        ],
        "losses": [local.loss.name] if local.loss is not None else [],
        "optimizers": [local.optimizer.name]
        if isinstance(local.optimizer, OptimizerChoice)
        else [],
        "metrics": [one.name for one in config.evaluation.metrics],
        "samplers": [config.participation.sampler.name],
        "tasks": [task] if isinstance(task, str) and registry.tasks.is_own(task) else [],
        "callbacks": [one.name for one in config.callbacks],
        "algorithms": [config.algorithm.name],
    }
    return [(kind, name) for kind, names in used.items() for name in names]


def _own_components(config: Experiment, task: str) -> dict[str, dict[str, Any]]:
    """Return the user's components that client tasks and the server need; other processes need no others."""
    used = {*components_of(config), ("tasks", task)}
    for how in augmentations(config).values():  # also those that a method sets by itself
        if not isinstance(how, str):
            used |= {("augmentations", step.name) for step in how}
    return {
        kind: {
            name: item for name, item in registry.ALL[kind].added().items() if (kind, name) in used
        }
        for kind in _AT_CLIENTS
    }


def assign_networks(
    config: Experiment, data: FederatedData
) -> tuple[dict[str, ModelChoice], tuple[str, ...]]:
    """Return the networks by key, and each client's key."""
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
            why = f"no client or domain has this name{nearest(name, known)}"
            raise ConfigError(f"experiment.models.{name}", name, why)
    return [
        choices.get(client.name) or choices.get(client.domain) or default for client in data.clients
    ]
