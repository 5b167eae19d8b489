"""Every method on every task: it runs, or it says before round 0 that it needs classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flray import registry
from flray.data.types import DataSet, Domain
from flray.errors import ConfigError
from flray.federation.spec import FederationSpec
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN
from tests.helpers import built

SEGMENTATION = {
    "data": {"name": "fundus-synthetic", "samples": 5, "size": 16, "domains": ["A", "E"]},
    "model": {"name": "unet", "width": 2, "depth": 2},
    "local": {"batch_size": 2},
}
FEW_SHOT = {
    "data": {"name": "glyphs", "classes": 8, "unseen": 3, "samples": 12, "size": 16},
    "partition": {"name": "iid", "clients": 2},
    "model": {"name": "protonet", "width": 2},
    "episodes": {"way": 3, "shot": 2, "queries": 2, "test": 5},
}
BINARY = {
    "data": {"name": "eeg-synthetic", "samples": 20},
    "model": {"name": "mlp", "hidden": [6], "norm": "batch"},
}


NUMBERS = {"data": "two-numbers", "model": "two-layer", "local": {"lr": 0.05, "batch_size": 4}}


@registry.register_dataset("two-numbers")
def two_numbers(root: Path, *, kind: str = "right", task: str = "regression") -> DataSet:
    generator = np.random.default_rng(0)
    domains = []
    for client in range(3):
        x = generator.normal(size=(12, 4)) + client
        y: Any = x @ np.array([[1.0, 0.0], [-1.0, 2.0], [0.5, 0.0], [0.0, 1.0]]) + 0.1
        if kind == "nan":
            y[0, 0] = np.nan
        y = {
            "line": y[:, 0],
            "flags": (y > 0).astype(np.uint8),
            "twos": np.full((12, 2), 2, np.uint8),
        }.get(kind, y)
        domains.append(Domain(f"c{client}", "random", x, y, x, y))
    names = ("first", "second", "third")[: 3 if kind == "names" else 2]
    return DataSet("two-numbers", tuple(domains), names, (0.0,), (1.0,), task=task)


PUBLIC = "needs public data, and this set has none"
TASKS: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "segmentation": (
        SEGMENTATION,
        "dice",
        {
            "classification": "it needs classification, and fundus-synthetic is segm",
            "labels": "it needs class labels, and fundus-synthetic is segm",
            "public": PUBLIC,
        },
    ),
    "few-shot": (
        FEW_SHOT,
        "accuracy",
        {
            "classification": "it needs classification, and glyphs is few-shot",
            "public": PUBLIC,
            "split": "needs a network with classifier",
        },
    ),
    "binary": (BINARY, "auc", {"public": PUBLIC}),
    "numbers": (
        NUMBERS,
        "r2",
        {
            "classification": "it needs classification, and two-numbers is regr",
            "labels": "it needs class labels, and two-numbers is regr",
            "public": PUBLIC,
        },
    ),
}
"""Settings, metric, and what is said of a method's need that the task does not meet."""


def world_of(algorithm: Any, task: dict[str, Any], **settings: Any) -> FederationSpec:
    name = algorithm if isinstance(algorithm, str) else algorithm["name"]
    content = {"algorithm": algorithm, **task, **tiny.settings_for(name), **settings}
    content["resources"] = {"gpus_per_actor": 0}
    return built(content)


def needs(name: str) -> frozenset[str]:
    algorithm = registry.algorithms.get(name)
    return frozenset(algorithm(registry.algorithms.params(name)()).needs)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_runs_or_says_what_it_needs(name: str, task: str) -> None:
    """Two rounds: what is learnt is finite and was changed, and the task's metrics are there."""
    settings, metric, said = TASKS[task]
    missing = [text for need, text in said.items() if need in needs(name)]
    if missing:
        with pytest.raises(ConfigError, match="|".join(missing)):
            world_of(name, settings)
        return
    federation = tiny.federation_of(world_of(name, settings))
    before = federation.sha256()
    metrics = [federation.step().metrics for _ in range(2)][-1]
    assert federation.sha256() != before
    weights = [v for w in federation.server.models.values() for v in w.values()]
    assert all(bool(torch.isfinite(v).all()) for v in weights)
    found = [metrics[f"{view}/local/{metric}"] for view in federation.spec.algorithm.views]
    assert all(np.isfinite(one) and one <= 1 and (one >= 0 or metric == "r2") for one in found)


def test_the_papers_methods_run_where_their_tables_say() -> None:
    """LG-Mix Table 3 has segmentation without FedBABU, FedRep and FedHKD; FedSKC Table I has few-shot learning."""
    on_masks = {"fedavg", "fedbn", "lgmix", "local", "fedper"}
    assert not any(needs(name) & {"classification", "labels"} for name in on_masks)
    assert all("classification" in needs(name) for name in ("fedbabu", "fedrep", "fedhkd"))
    few_shot = {"fedavg", "fedprox", "scaffold", "moon", "fedrcl", "fedopt", "fedskc", "fedproto"}
    assert not any(needs(name) & {"classification", "split"} for name in few_shot)


def test_a_distance_is_worst_where_it_is_largest() -> None:
    metrics = tiny.federation_of(world_of("fedavg", SEGMENTATION)).step().metrics
    for measure, worst in (("dice", min), ("hausdorff95", max), ("hausdorff", max)):
        values = [metrics[f"global/local/{measure}/client/{client}"] for client in "AE"]
        found = {metrics[f"global/local/{measure}/{name}"] for name in ("worst", "worst10")}
        assert found == {worst(values)}


def test_the_optimiser_sees_masks_and_images_moved_alike() -> None:
    """With augmentation the same federation ends elsewhere, and repeats to the bit."""
    digests = []
    for how in ("none", "crop", "resized"):
        local = {"batch_size": 2, "augment": how}
        one, again = (
            tiny.federation_of(world_of("fedavg", SEGMENTATION, local=local)) for _ in range(2)
        )
        one.step()
        again.step()
        assert one.sha256() == again.sha256()
        digests.append(one.sha256())
    assert len(set(digests)) == 3
