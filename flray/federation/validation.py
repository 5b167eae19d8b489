"""Validate a federation before round 0: the method's needs against its data and networks."""

from __future__ import annotations

from typing import Any

from torch import nn

from flray import models, registry
from flray.algorithms.common.batched_clients import check_batchable
from flray.config.experiment import Experiment
from flray.data import augment
from flray.errors import ConfigError
from flray.federation.evaluation import check_metric
from flray.federation.spec import FederationSpec
from flray.federation.unseen import check_unseen
from flray.metrics.summary import AUTO
from flray.models import groups
from flray.models.groups import supports_single_sample
from flray.tasks.few_shot import FewShot

AUGMENTS = ("augment", "public_augment")
"""Settings of ``local``, and options of methods, that are augmentations of private and of public images."""


def check_single_sample_batch_norm(spec: FederationSpec, key: str, model: nn.Module) -> None:
    """Reject batches of one sample if batch norm cannot train on them.

    A last batch of one sample is left out of an epoch (`flray.algorithms.common.batches`); here
    there is no other.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    key : str
        One of its architectures.
    model : nn.Module
        A network of it; its values are overwritten.

    Raises
    ------
    ConfigError
        Naming the clients or the batch size, and what to change.
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
        raise ConfigError(
            "experiment.partition",
            f"one training sample at {', '.join(single[:5])}",
            f"{why}; give every client two (min_size: 2, fewer clients, less skew), take another "
            f"norm "
            "(norm: group), or leave such clients out (faults.on_client_error: skip)",
        )
    raise ConfigError(
        "experiment.local.batch_size", "1", f"{why}; at least 2, or another norm (norm: group)"
    )


def validate(spec: FederationSpec) -> None:
    """Reject an experiment that cannot run.

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
    sampler = config.participation.sampler.name
    if not registry.takes(registry.samplers.get(sampler), 1):
        raise ConfigError(
            "experiment.participation.sampler",
            sampler,
            "a sampler is a function of the round, sampler(sampling, *, options)",
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
    if config.evaluation.pooled and isinstance(learnt, FewShot):
        raise ConfigError(
            "experiment.evaluation.pooled",
            "true",
            "episodes compare samples by one network, and here every client has its own; false",
        )
    if config.normalisation != "data" and not algorithm.normalise:
        raise ConfigError(
            "experiment.normalisation",
            str(config.normalisation),
            f"{name} scales images to [0, 1] only, as it is set; write data, or let the method "
            "normalise (algorithm.inputs: normalised)",
        )
    if "all_clients" in needs and spec.cohort_size < count:
        raise ConfigError(
            "experiment.participation",
            f"{spec.cohort_size} of {count}",
            f"{name} needs all clients",
        )
    if config.aggregation.block is not None and algorithm.adds_up() == "at the server":
        able = [
            n
            for n in registry.algorithms.names()
            if registry.algorithms.get(n).adds_up() != "at the server"
        ]
        raise ConfigError(
            "experiment.aggregation.block",
            str(config.aggregation.block),
            f"the server of {name} looks at single replies, which blocks add up before they reach "
            f"it; "
            f"set null, or choose one of {', '.join(able)}",
        )
    if algorithm.pools and config.aggregation.buffers == "local":
        raise ConfigError(
            "experiment.aggregation.buffers",
            "local",
            f"{name} trains one model on all samples, so no client has statistics of its own; average",
        )
    if config.stop is not None and config.stop.metric != AUTO:
        check_metric(spec, config.stop.metric, "experiment.stop.metric")
    counted = algorithm.needs_epochs()
    if config.local.steps is not None and counted:
        raise ConfigError(
            "experiment.local.steps",
            str(config.local.steps),
            f"{name} counts epochs ({counted}); set null and local.epochs",
        )
    if config.local.epochs != int(config.local.epochs) and counted:
        raise ConfigError(
            "experiment.local.epochs",
            f"{config.local.epochs:g}",
            f"{name} counts epochs ({counted}); set a whole number",
        )
    if config.local.warmup >= config.rounds:
        raise ConfigError(
            "experiment.local.warmup",
            str(config.local.warmup),
            f"there are {config.rounds} rounds; set fewer than that",
        )
    algorithm.check(config)
    check_unseen(spec)
    for where, how in augmentations(config).items():
        augment.check(how, where, data.shape, data.x.dtype)
    sizes: dict[str, int] = {}
    for key in spec.architectures:
        model = spec.build(key)
        learnt.check_network(key, model, data)
        if config.local.clients_per_step > 1:
            check_batchable(config, algorithm, learnt, model, data.shape)
        for need, group in (("split", "classifier"), ("batch_norm", "batch_norm")):
            if need in needs and not groups.select(model, group):
                raise ConfigError(
                    "experiment.model",
                    key,
                    f"{name} needs a network with {group.replace('_', ' ')}",
                )
        if "split" in needs or "features" in needs:
            groups.select(model, "features")
        if "same_features" in needs and len(spec.architectures) > 1:
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


def augmentations(config: Experiment) -> dict[str, Any]:
    """Return the augmentations that are set, of private and of public images, by setting."""
    method = registry.algorithms.params(config.algorithm.name)(**config.algorithm.options)
    found = {
        f"experiment.{place}.{name}": getattr(section, name, None)
        for place, section in (("local", config.local), ("algorithm", method))
        for name in AUGMENTS
    }
    return {where: how for where, how in found.items() if how is not None}
