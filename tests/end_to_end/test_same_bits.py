"""The same experiment ends with the same bits wherever and however its client tasks were run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from flray import registry
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.executor import InlineExecutor
from flray.federation.federation import Federation
from flray.federation.messages import TaskInput, TaskResult
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.placement import PoolPlanner
from flray.federation.spec import FederationSpec
from tests.end_to_end.killing import step_while_an_actor_is_killed
from tests.end_to_end.pool import Pools

METHODS = ("fedavg", "fedbn", "scaffold")
TRAINS_AT_SERVER = {"name": "feddf", "steps": 10}
everywhere = pytest.mark.parametrize("method", [*METHODS, TRAINS_AT_SERVER], ids=str)


def world_of(
    digits: dict[str, Any], method: str | dict[str, Any], **changes: Any
) -> FederationSpec:
    digits = {**digits, "algorithm": method, "participation": {"fraction": 0.75}, **changes}
    return build_spec(load({"experiment": digits}).experiment)


def inline_digest(spec: FederationSpec) -> str:
    federation = Federation(spec, InlineExecutor(spec))
    for _ in range(spec.config.rounds):
        federation.step()
    return federation.sha256()


class Backwards(InlineExecutor):
    """Runs the last client first."""

    def run_tasks(
        self, jobs: Sequence[TaskInput], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskResult]:
        yield from reversed(list(super().run_tasks(list(reversed(jobs)), timeout, idle)))


@everywhere
def test_client_order_does_not_matter(digits: dict[str, Any], method: Any) -> None:
    spec = world_of(digits, method)
    federation = Federation(spec, Backwards(spec))
    for _ in range(spec.config.rounds):
        federation.step()
    assert federation.sha256() == inline_digest(spec)


@everywhere
@pytest.mark.parametrize("actors", [1, 4])
def test_number_of_actors_does_not_matter(
    digits: dict[str, Any], pools: Pools, method: Any, actors: int
) -> None:
    spec = world_of(digits, method)
    assert pools[actors].run_federation(spec).sha256() == inline_digest(spec)


@pytest.mark.slow
def test_the_server_may_be_an_actor_too(digits: dict[str, Any], ray_here: dict[str, float]) -> None:
    spec = world_of(digits, "scaffold", resources={"actors": 2})
    federation = RayFederation(spec, PoolPlanner(spec, ray_here).plan(), print)
    try:
        for _ in range(spec.config.rounds):
            federation.step()
        assert federation.sha256() == inline_digest(spec)
    finally:
        federation.close()


def test_a_methods_warning_comes_from_the_server_actor_once(
    digits: dict[str, Any], ray_here: dict[str, float]
) -> None:
    algorithm = {"name": "fedhkd", "threshold": 0.9}
    spec = world_of(digits, algorithm, resources={"actors": 1})
    lines: list[str] = []
    federation = RayFederation(spec, PoolPlanner(spec, ray_here).plan(), lines.append)
    try:
        for _ in range(spec.config.rounds):
            federation.step()
    finally:
        federation.close()
    assert len(lines) == 1 and "algorithm.threshold=0.9" in lines[0]


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_shifted_data_and_ones_own_augmentation_reach_the_actors(
    digits: dict[str, Any], pools: Pools, method: str
) -> None:
    def upside_down(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return images.flip(-2)

    registry.augmentations.register("upside-down")(upside_down)
    try:
        spec = world_of(
            digits,
            method,
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


@pytest.mark.parametrize(
    "method",
    [one if one == "scaffold" else pytest.param(one, marks=pytest.mark.slow) for one in METHODS],
)
def test_client_actor_killed_in_the_middle_of_a_round(
    digits: dict[str, Any], pools: Pools, method: str
) -> None:
    spec = world_of(digits, method, local={**digits["local"], "epochs": 10})
    executor = pools[2].executor_for(spec)
    federation = Federation(spec, executor)
    federation.step()
    victim = step_while_an_actor_is_killed(federation, executor.pids())
    federation.step()
    after = executor.pids()
    assert victim not in after and len(after) == 2
    assert federation.sha256() == inline_digest(spec)
