"""What a run of a suite is, field by field, in the form of the written tables."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from flray import registry
from flray.config.components import AugmentChoice, Component
from flray.config.experiment import Experiment
from flray.data import DataSet, Domain, FederatedData, federate

_SIZES = """
digits4 10 mnist:60000:10000 usps:7291:2007 svhn:73257:26032 syn:7826:2000
digits5 10 mnist:7438:14000 svhn:7438:19858 usps:7438:1860 synthdigits:7438:97791 mnistm:7438:14000
digits5-whole 10 mnist:56000:14000 svhn:79431:19858 usps:7438:1860 synthdigits:391162:97791 mnistm:56000:14000
digits5-local 10 mnist:0:200 usps:0:200 optdigits:0:200 synth:0:200 mnistm:0:200
mnist 10 mnist:60000:10000
cifar-10 10 cifar-10:50000:10000
cifar10-jpeg 10 cifar10-jpeg:50000:10000
cifar-100 100 cifar-100:50000:10000
office-caltech10 10 amazon:766:192 caltech:898:225 dslr:125:32 webcam:236:59
office31 31 amazon:2253:564 dslr:398:100 webcam:636:159
office-home 65 art:1941:486 clipart:3492:873 product:3551:888 real-world:3485:872
domainnet 10 clipart:3000:500 infograph:2103:500 painting:2500:500 quickdraw:4000:500 real:4800:500 sketch:2200:500
camelyon17 2 centre0:800:200 centre1:800:200 centre2:800:200 centre3:800:200 centre4:800:200
fundus 2 domain1:80:20 domain2:80:20 domain3:80:20 domain4:80:20 domain5:80:20 domain6:80:20
eeg 2 AlexMI:100:25 BNCI2014_001:100:25 BNCI2015_004:100:25 Zhou2016:100:25
"""
"""Data set, classes, each domain with its training and test samples: as published where a table depends on them."""


def _sizes(text: str) -> tuple[str, tuple[int, dict[str, tuple[int, int]]]]:
    name, classes, *domains = text.split()
    parts = [domain.split(":") for domain in domains]
    return name, (int(classes), {domain: (int(train), int(test)) for domain, train, test in parts})


SIZES = dict(map(_sizes, _SIZES.strip().splitlines()))


def facts(experiment: Experiment, seeds: int, wanted: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of an experiment; options of components that are wanted, or not the defaults."""
    local, evaluation = experiment.local, experiment.evaluation

    def component(value: Component, name: str) -> dict[str, object]:
        return described(value, wanted.get(name))

    models = wanted.get("models")
    clients = experiment.partition.options.get("clients")
    if not clients:  # each domain is one
        clients = len(experiment.data.options.get("domains") or SIZES[experiment.data.name][1])
    participation = experiment.participation.clients or experiment.participation.fraction
    found: dict[str, object] = {"rounds": experiment.rounds, "seeds": seeds, "clients": clients}
    found |= {"participation": participation, "epochs": local.epochs, "batch": local.batch_size}
    found |= {"lr": local.lr, "optimiser": _optimiser(experiment), "clip": local.clip_norm}
    found |= {"augment": _augmentation(local.augment), "split": experiment.split}
    found |= {name: component(getattr(experiment, name), name) for name in ("data", "partition")}
    found |= {"model": component(experiment.model, "model")}
    found |= {"method": component(experiment.algorithm, "method")}
    found |= {"shift": experiment.shift.model_dump(exclude_defaults=True)}
    found |= {"normalisation": _normalisation(experiment.normalisation)}
    found |= {"weights": experiment.aggregation.weights}
    tested = {"others": evaluation.others, "pooled": evaluation.pooled}
    tested |= {f"top{evaluation.top_k}": bool(evaluation.top_k)}
    found["tested"] = ("own", *(name for name, on in tested.items() if on))
    last = f" {evaluation.last}" * (evaluation.protocol == "mean-last")
    found["protocol"] = evaluation.protocol + last
    if evaluation.every > 1:
        found["protocol"] = f"{found['protocol']} every {evaluation.every}"
    if isinstance(models, Mapping) or experiment.models:
        networks = models if isinstance(models, Mapping) else {}
        assert isinstance(experiment.models, Mapping)
        found["models"] = {
            name: described(one, networks.get(name)) for name, one in experiment.models.items()
        }
    if experiment.public is not None:
        found["public"] = component(experiment.public, "public")
    if experiment.public is not None or local.public_augment is not None:
        found["public_augment"] = _augmentation(local.of_public_images)
    if "images" in wanted:
        found["images"] = training_images(experiment)
    return found


def as_facts(wanted: Mapping[str, object]) -> dict[str, object]:
    """Return written values in the same form: a component is a mapping."""
    components = {"data", "partition", "model", "method", "public"}
    spelled: dict[str, object] = {}
    for name, value in wanted.items():
        if name in components and isinstance(value, str):
            spelled[name] = {"name": value}
        elif name == "models" and isinstance(value, Mapping):
            spelled[name] = {k: {"name": v} if isinstance(v, str) else v for k, v in value.items()}
        elif not (name in ("public", "public_augment") and value is None):
            spelled[name] = value
    return spelled


def described(value: Component, wanted: object) -> dict[str, object]:
    """Return name and options of a component: those that are wanted, and those that are not the defaults."""
    params = _params(type(value), value.name)
    fields = params.model_fields
    named = wanted.keys() if isinstance(wanted, Mapping) else frozenset()
    derived = params.model_validate(value.options)
    resolved = derived.resolved() if isinstance(derived, registry.Params) else derived
    given = {
        name: getattr(resolved, name) if option is None else option
        for name, option in value.options.items()
        if name in named or option != fields[name].default
    }
    listed = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
    return {"name": value.name, **listed}


@functools.cache
def _params(kind: type[Component], name: str) -> type[BaseModel]:
    return kind.params(name)


def _optimiser(experiment: Experiment) -> str:
    local = experiment.local
    assert (local.momentum, local.weight_decay, local.lr_decay) == (0.0, 0.0, 1.0)
    betas = f" {local.betas[0]} {local.betas[1]}" if local.optimizer == "adam" else ""
    return f"{local.optimizer}{betas}"


def _augmentation(value: str | Sequence[AugmentChoice]) -> object:
    if isinstance(value, str):
        return value
    return tuple(
        " ".join([step.name, *(f"{k}={v}" for k, v in step.options.items() if k == "degrees")])
        for step in value
    )


def _normalisation(value: Any) -> object:
    if isinstance(value, str):
        return value
    one = len(value.mean) == 1
    return (value.mean[0], value.std[0]) if one else (tuple(value.mean), tuple(value.std))


def matches(found: object, wanted: object) -> bool:
    """Return whether training images by client are as written: numbers, a range, their sum or a share."""
    if not isinstance(wanted, tuple):
        return bool(found == wanted)
    assert isinstance(found, list)
    if wanted[0] == "sum":
        return bool(sum(found) == wanted[1])
    if wanted[0] == "share":  # of each client's images
        return all(abs(count - total * float(wanted[1])) <= 1 for count, total in found)
    return all(wanted[0] <= count <= wanted[1] for count in found)


def training_images(experiment: Experiment) -> list[Any]:
    """Return the number of training images of each client; with shares, also that of all its images."""
    sections = {"data", "partition", "split", "shift", "seed", "evaluation"}
    key = experiment.model_dump_json(include=sections)
    if key not in _images:
        clients, shares = divided(experiment).clients, isinstance(experiment.split, tuple)
        sizes = [(len(c.train), len(c.train) + len(c.val) + len(c.test)) for c in clients]
        _images[key] = sizes if shares else [train for train, _ in sizes]
    return _images[key]


_images: dict[str, list[Any]] = {}


def divided(experiment: Experiment) -> FederatedData:
    """Return an experiment's clients on labels alone, in the sizes that its data have."""
    partition, options = experiment.partition, experiment.data.options
    name = experiment.data.name + "-whole" * (options.get("training") == "whole")
    labels = _labels(name, options.get("samples"), tuple(options.get("domains") or ()))
    cut = partition.arguments, experiment.seed, experiment.evaluation.validation
    how: Any = {"split": experiment.split, "shift": experiment.shift, "fingerprint": "labels"}
    return federate(labels, partition.name, *cut, **how)


@functools.cache
def _labels(name: str, samples: int | None, chosen: Iterable[str]) -> DataSet:
    """Return a data set of labels alone, in which every class has about as many samples."""
    classes, domains = SIZES[name]
    made = []
    for domain, (train, test) in domains.items():
        if chosen and domain not in chosen:
            continue
        parts: list[Any] = []
        for size in (samples or train, test):
            parts += [np.zeros((size, 1), np.float32), np.arange(size, dtype=np.int64) % classes]
        made.append(Domain(domain, "random", *parts))
    coarse = tuple(label // 5 for label in range(classes)) if name == "cifar-100" else None
    names = tuple(map(str, range(classes)))
    ordered = name.startswith("digits5") and "local" not in name
    return DataSet(name, tuple(made), names, (0.0,), (1.0,), coarse=coarse, ordered=ordered)
