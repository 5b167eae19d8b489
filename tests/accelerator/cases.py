"""What is run on the pretend accelerator and on the CPU."""

from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import yaml
from torch import nn

from flray import registry
from flray.data.types import DataSet, Domain
from flray.models import SplitModel
from tests.algorithms.test_every_algorithm import BUILT_IN as NAMES
from tests.algorithms.test_tasks import BINARY, FEW_SHOT
from tests.algorithms.test_tasks import SEGMENTATION as MASKS
from tests.helpers import small

SIZES = (10, 17, 14)
QUICK: dict[str, dict[str, Any]] = yaml.safe_load(
    """{feddf: {steps: 3}, fedmatch: {public_size: 16}, fedbabu: {fine_tune_epochs: 1},
    fccl: {public_batch_size: 8, public_size: 16, pretrain_epochs: 1},
    fcclplus: {public_batch_size: 8, public_size: 16},
    rhfl: {public_size: 16, pretrain_epochs: 1}, fedmd: {public_size: 16, pretrain_epochs: 1}}"""
)
"""Options with which a method that would take long is quick."""


class Case(TypedDict):
    """One federation to be run in two places.

    On the accelerator `samples` are all there ("whole"), a client's own during its task ("own"), or a
    batch at a time ("batch").
    """

    name: str
    experiment: dict[str, Any]
    server: str
    samples: str
    diagnostics: bool
    mutation: str


@registry.register_dataset("small-pictures")
def small_pictures(root: Path) -> DataSet:
    """Return three domains of a few pictures, of unlike sizes, and public ones."""
    draws = np.random.default_rng(5)

    def pictures(count: int, start: int) -> Any:
        labels = (np.arange(count, dtype=np.int64) + start) % 3
        x = draws.integers(0, 120, (count, 3, 16, 16)) + labels[:, None, None, None] * 40
        return x.astype(np.uint8), labels

    parts = ((pictures(size, i), pictures(6, i)) for i, size in enumerate(SIZES))
    domains = [Domain(f"client{i}", "random", *a, *b) for i, (a, b) in enumerate(parts)]
    public, _ = pictures(24, 0)
    moments = (0.4,) * 3, (0.3,) * 3
    return DataSet("small pictures", tuple(domains), tuple("abc"), *moments, public=public)


@registry.register_model("small-dropout")
def small_dropout(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two layers with dropout between them."""
    features = nn.Sequential(nn.Flatten(), nn.Linear(768, 6), nn.ReLU(), nn.Dropout(0.3))
    return SplitModel(features, nn.Linear(6, num_classes))


def experiment(algorithm: str, /, **settings: Any) -> dict[str, Any]:
    """Return an experiment on small pictures."""
    needs = registry.algorithms.get(algorithm).needs
    own, model = {"name": algorithm, **QUICK.get(algorithm, {})}, {"name": "lenet", "norm": "batch"}
    sections = {"data": "small-pictures", "partition": "domains", "model": model}
    content = small(**sections, algorithm=own, rounds=2)
    content["local"] = {"epochs": 1, "batch_size": 8, "lr": 0.05}
    content["resources"] = {"executor": "inline", "gpus_per_actor": 0}
    if "validation" in needs:
        content["evaluation"] = {"validation": 0.2}
    for section, values in settings.items():
        own = content.get(section)
        merged = isinstance(own, dict) and section != "model"
        content[section] = {**own, **values} if merged else values
    return content


def case(name: str, content: dict[str, Any], server: str = "accel", **more: Any) -> Case:

    rest = {"samples": "own", "diagnostics": False, "mutation": "", **more}
    return Case(name=name, experiment=content, server=server, **rest)  # type: ignore[typeddict-item]


def covering() -> list[Case]:
    """Return every method; over all of them every pair of settings comes up often."""
    found = []
    for i, name in enumerate(NAMES):
        augment, samples = ("none", "crop", "strong")[i % 3], ("own", "batch")[i // 5 % 2]
        optimizer, server = ("sgd", "adam")[(i // 3) % 2], ("accel", "cpu")[(i // 2) % 2]
        local = {"augment": augment, "optimizer": optimizer}
        local |= {"lr": 0.01} if optimizer == "adam" else {}
        own = {"option": "I"} if name == "scaffold" and optimizer == "adam" else {}
        content = experiment(name, local=local, algorithm=own)
        label = f"{name}-{augment}-{optimizer}-server on {server}"
        found.append(case(label, content, server, samples=samples))
    return found


NETWORKS = ["lenet", {"name": "lenet", "norm": "batch"}, {"name": "mlp", "hidden": [6]}]
SEGMENTATION = {**MASKS, "local": {"batch_size": 2, "augment": "crop"}}


def options(name: str, **values: Any) -> dict[str, Any]:
    """Return a method with other options than its quick ones."""
    return {"algorithm": {**QUICK.get(name, {}), **values}}


def released(name: str) -> dict[str, Any]:
    """Return a method as its released code has it, whose settings are not those of `experiment`."""
    own = {"batch_size": 8} if name == "fcclplus" else {}
    content = experiment(name, **options(name, variant="released", **own))
    content["local"] = {"epochs": 1} if name == "fedskc" else {"epochs": 1, "lr": 0.01}
    return content


def tasks() -> list[Case]:
    """Return tasks, networks, evaluations, variants and layouts that the sample of methods leaves out."""
    whole = {"others": True, "pooled": True, "validation": 0.2, "top_k": 2}
    block = {"local": {"clients_per_step": 3}, "aggregation": {"block": 3}}
    networks = {"models": NETWORKS}
    picked: list[tuple[str, str, dict[str, Any]]] = [
        ("segmentation", "fedavg lgmix", SEGMENTATION),
        ("few shots", "fedavg fedproto", FEW_SHOT),
        ("binary", "fedavg", BINARY),
        ("networks", "fcclplus", {**networks, "local": {"optimizer": "adam"}}),
        ("networks", "rhfl fedmd", networks),
        ("networks", "fedmatch", {**networks, **options("fedmatch", average=False)}),
        ("evaluation", "fedco2 copa fedrod fedfomo", {"evaluation": whole}),
        ("released", "fcclplus lgmix fedskc", {}),
        ("kept by peers", "feddf", options("feddf", average=False)),
        ("hessian", "perfedavg", options("perfedavg", form="hf")),
        ("block", "fedprox", block),
        ("buffers", "scaffold", {"aggregation": {"buffers": "local"}}),
        ("noise", "fedavg", {"shift": {"noise": 0.2}, "local": {"clip_norm": 1.0}}),
        ("contiguous", "moon", {"local": {"memory_format": "contiguous"}}),
        ("dropout", "fedavg", {"model": "small-dropout"}),
        ("double", "fedavg", {"local": {"precision": "float64", "augment": "weak"}}),
        ("later", "fedmatch", {"rounds": 3}),
        ("diagnostics", "fedavg fedper", {"tracking": {"features": True}}),
    ]
    found: list[Case] = []
    for kind, names, settings in picked:
        for name in names.split():
            content = released(name) if kind == "released" else experiment(name, **settings)
            shown = kind == "diagnostics"
            lying = "own" if shown else ("batch", "own", "whole")[len(found) % 3]
            found.append(case(f"{kind}-{name}", content, samples=lying, diagnostics=shown))
    return found
