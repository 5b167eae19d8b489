"""Every method on every task: it runs, or it says before round 0 that it needs classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flray import registry
from flray.config.experiment import Config
from flray.errors import ConfigError
from flray.federation.building import build_spec
from flray.federation.spec import FederationSpec
from tests.algorithms import helpers as tiny

BUILT_IN = sorted(set(registry.algorithms.names()) - set(registry.algorithms.added()))
every = pytest.mark.parametrize("name", BUILT_IN)

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


def world_of(algorithm: Any, task: dict[str, Any], **settings: Any) -> FederationSpec:
    name = algorithm if isinstance(algorithm, str) else algorithm["name"]
    return build_spec(
        Config.model_validate(
            {
                "experiment": {
                    "algorithm": algorithm,
                    **task,
                    **tiny.settings_for(name),
                    "resources": {"gpus_per_actor": 0},
                    **settings,
                }
            }
        ).experiment
    )


def needs(name: str) -> frozenset[str]:
    algorithm = registry.algorithms.get(name)
    return frozenset(algorithm(registry.algorithms.params(name)()).needs)


def runs(name: str, task: dict[str, Any], metric: str) -> None:
    """Run two rounds; what is learnt is finite and was changed, and the task's metrics are there."""
    spec = world_of(name, task)
    federation = tiny.federation_of(spec)
    before = federation.sha256()
    metrics = [federation.step().metrics for _ in range(2)][-1]
    assert federation.sha256() != before
    assert all(
        bool(torch.isfinite(v).all()) for w in federation.server.models.values() for v in w.values()
    )
    for view in spec.algorithm.views:
        assert (
            0
            <= metrics[
                {"global": f"global/local/{metric}", "personal": f"personal/local/{metric}"}[view]
            ]
            <= 1
        )


@every
def test_segmentation(name: str) -> None:
    if needs(name) & {"classification", "labels"}:
        with pytest.raises(
            ConfigError,
            match=r"it needs (classification|class labels), and fundus-synthetic is segm",
        ):
            world_of(name, SEGMENTATION)
    elif "public" in needs(name):
        with pytest.raises(ConfigError, match="needs public data, and this set has none"):
            world_of(name, SEGMENTATION)
    else:
        runs(name, SEGMENTATION, "dice")


@every
def test_few_shot(name: str) -> None:
    if "classification" in needs(name):
        with pytest.raises(ConfigError, match="it needs classification, and glyphs is few-shot"):
            world_of(name, FEW_SHOT)
    elif "public" in needs(name):
        with pytest.raises(ConfigError, match="needs public data, and this set has none"):
            world_of(name, FEW_SHOT)
    elif "split" in needs(name):
        with pytest.raises(ConfigError, match="needs a network with classifier"):
            world_of(name, FEW_SHOT)
    else:
        runs(name, FEW_SHOT, "accuracy")


@every
def test_binary(name: str) -> None:
    if "public" in needs(name):
        with pytest.raises(ConfigError, match="needs public data, and this set has none"):
            world_of(name, BINARY)
    else:
        runs(name, BINARY, "auc")


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
        assert (
            metrics[f"global/local/{measure}/worst"]
            == metrics[f"global/local/{measure}/worst10"]
            == worst(values)
        )


def test_the_optimiser_sees_masks_and_images_moved_alike() -> None:
    """With augmentation the same federation ends elsewhere, and repeats to the bit."""
    digests = {
        how: [
            federation.sha256()
            for federation in (
                tiny.federation_of(
                    world_of("fedavg", SEGMENTATION, local={"batch_size": 2, "augment": how})
                )
                for _ in range(2)
            )
            if federation.step()
        ]
        for how in ("none", "crop", "resized")
    }
    assert len({sha for pair in digests.values() for sha in pair}) == 3
    assert all(first == again for first, again in digests.values())
