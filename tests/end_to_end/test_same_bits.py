"""The same experiment ends with the same bits wherever and however its client tasks were run."""

from typing import Any

import torch

from flray import registry
from flray.federation.federation import Federation
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.placement import PoolPlanner
from flray.federation.spec import FederationSpec
from flray.federation.worker.client_runner import InlineExecutor
from tests.end_to_end.pool import Pools
from tests.helpers import built


def world_of(
    digits: dict[str, Any], method: str | dict[str, Any], **changes: Any
) -> FederationSpec:
    digits = {**digits, "algorithm": method, "participation": {"fraction": 0.75}, **changes}
    return built(digits)


def inline_digest(spec: FederationSpec) -> str:
    federation = Federation(spec, InlineExecutor(spec))
    for _ in range(spec.config.rounds):
        federation.step()
    return federation.sha256()


def test_the_server_may_be_an_actor_too(digits: dict[str, Any], ray_here: dict[str, float]) -> None:
    """One client actor; two of them, with every method: tests/end_to_end/test_papers_on_ray.py."""
    algorithm = {"name": "fedhkd", "threshold": 0.9}
    spec = world_of(digits, algorithm, resources={"actors": 1})
    lines: list[str] = []
    federation = RayFederation(spec, PoolPlanner(spec, ray_here).plan(), lines.append)
    try:
        for _ in range(spec.config.rounds):
            federation.step()
        assert federation.sha256() == inline_digest(spec)
    finally:
        federation.close()
    assert len(lines) == 1 and "algorithm.threshold=0.9" in lines[0]


def test_shifted_data_and_ones_own_augmentation_reach_the_actors(
    digits: dict[str, Any], pools: Pools
) -> None:
    def upside_down(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return images.flip(-2)

    registry.augmentations.register("upside-down")(upside_down)
    try:
        spec = world_of(
            digits,
            "fedbn",
            split=[0.6, 0.2, 0.2],
            shift={"long_tail": 3, "ratio": 0.8, "noise": 0.5},
            local={**digits["local"], "augment": ["crop", "jitter", "upside-down"]},
        )
        federation, inline = pools[2].federation(spec), Federation(spec, InlineExecutor(spec))
        for _ in range(spec.config.rounds):
            ours, theirs = (f.step().metrics for f in (federation, inline))
            measured = {n: v for n, v in theirs.items() if n.startswith(("global/", "personal/"))}
            assert any("/validation/" in name for name in measured)
            assert measured == {n: ours[n] for n in measured}
        assert federation.sha256() == inline.sha256()
    finally:
        del registry.augmentations._entries["upside-down"]
