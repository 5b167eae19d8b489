"""Every method on two Ray actors, and actors killed in a round, bit for bit as in one process.

One pool of two actors runs all federations one after another; the server's side runs in this
process, where a test can look at what the federation has learnt and step in between two stages.
"""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import cloudpickle

from flray.data.datasets.embedded import SKLEARN_DOMAINS
from flray.devices import resident_bytes
from flray.federation import FederationSpec
from flray.federation.federation import Federation
from flray.federation.messages import TaskInput
from flray.federation.ray_backend.executor import RayExecutor
from flray.federation.ray_backend.nodes import ship_user_modules
from flray.federation.worker.client_runner import InlineExecutor
from flray.models import SplitModel
from flray.registry import augmentations
from tests.algorithms import helpers as hand_made
from tests.algorithms.test_every_algorithm import BUILT_IN
from tests.algorithms.test_identities import NORMED, opt
from tests.end_to_end import pool as of_pools
from tests.end_to_end.pool import Pool, Pools, ask, inline_digest, pids, world_of
from tests.helpers import Settings

ACTORS = 2


@pytest.fixture
def pool(pools: Pools) -> Iterator[Pool]:
    cloudpickle.register_pickle_by_value(hand_made)  # its networks travel as a user's own do
    yield pools[ACTORS]
    cloudpickle.unregister_pickle_by_value(hand_made)


SMALL_PUBLIC = {"public_size": 40, "public_batch_size": 16}


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_has_the_same_bits_on_actors_and_inline(pool: Pool, name: str) -> None:
    def spec() -> FederationSpec:
        local = {"precision": "float32", "batch_size": 8, "lr": 0.05}
        more = {**hand_made.settings_for(name), **hand_made.partial_participation(name)}
        return hand_made.spec_of(name, model=NORMED, rounds=3, local=local, **more)

    assert pool.run_federation(spec()).sha256() == inline_digest(spec())


def test_shifted_data_unseen_clients_and_ones_own_augmentation_reach_the_actors(
    digits: Settings, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upside_down(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return images.flip(-2)

    monkeypatch.setattr(augmentations, "_entries", {**augmentations._entries})
    augmentations.register("upside-down")(upside_down)
    data = {"split": [0.6, 0.2, 0.2], "shift": {"long_tail": 3, "ratio": 0.8, "noise": 0.5}}
    unseen = {"participation": {"fraction": 0.75, "unseen": ["photo"]}}
    local = {**digits["local"], "augment": ["crop", "jitter", "upside-down"]}
    spec = world_of(digits, "fedbn", **data, **unseen, local=local, evaluation={"adapt_steps": 2})
    wanted = {"personal/validation/accuracy", "adapted/unseen/accuracy"}
    assert wanted <= pools[ACTORS].same_as_inline(spec)[1]


def after_a_death(spec: FederationSpec, executor: RayExecutor, alone: FederationSpec) -> list[int]:
    """Return the actors after all rounds, whose bits are those of one process."""
    federation = Federation(spec, executor, warn=lambda line: None)
    for _ in range(spec.config.rounds):
        federation.step()
    assert federation.sha256() == inline_digest(alone)
    alive = pids(executor)
    assert len(alive) == ACTORS
    return alive


@pytest.mark.slow
def test_actor_killed_within_a_task(pool: Pool, digits: Settings, tmp_path: Path) -> None:
    alone = world_of(digits, "fedco2", participation={"fraction": 1.0})
    dying = of_pools.dies_once("fedco2", tmp_path, client=2)
    spec = world_of(digits, dying.pop("algorithm"), participation={"fraction": 1.0}, **dying)
    ship_user_modules()
    alive = after_a_death(spec, pool.executor_for(spec), alone)
    assert int((tmp_path / "victim").read_text()) not in alive


@pytest.mark.slow
def test_actor_killed_between_two_stages_of_a_round(
    pool: Pool, digits: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = world_of(digits, opt("fcclplus", **SMALL_PUBLIC), rounds=3)
    executor = pool.executor_for(spec)

    def in_stage(job: TaskInput) -> bool:
        task = job.client_task
        found = (task.kind, task.round, task.stage.name, task.stage.index)
        return found == ("stage", 1, "collaborate", 2)

    victims = of_pools.kill_an_actor(executor, in_stage, monkeypatch)
    alive = after_a_death(spec, executor, spec)
    assert len(victims) == 1 and victims[0] not in alive


NETWORKS = ("lenet", "simple-cnn", "cnn", "resnet8")


def four_networks(digits: Settings) -> FederationSpec:
    models = dict(zip(SKLEARN_DOMAINS, NETWORKS, strict=True))
    small = {"rounds": 2, "data": {"name": "digits-sklearn", "samples": 32}, "models": models}
    method = opt("fcclplus", **SMALL_PUBLIC)
    return world_of(digits, method, participation={"fraction": 1.0}, **small)


@pytest.mark.slow
def test_an_actor_holds_a_network_once_and_as_teacher(pool: Pool, digits: Settings) -> None:
    spec = four_networks(digits)
    executor = pool.executor_for(spec)
    executor.wait_until_ready()  # one that starts after a test before would leave all to the other
    federation = Federation(spec, executor, warn=lambda line: None)
    federation.step()
    metrics = federation.step().metrics

    def copies(actor: Any) -> dict[str, int]:
        residents = actor._runner._resources._residents.items()
        return {name: 1 + len(resident.frozen_copies) for name, resident in residents}

    held = ask(executor, copies)
    assert {name for networks in held for name in networks} == set(NETWORKS)
    assert len(held) == ACTORS
    assert all(1 <= count <= 2 for networks in held for count in networks.values())
    resident = ask(executor, lambda actor: resident_bytes())
    peaks = [metrics[f"memory/peak/actor/{number}"] for number in range(ACTORS)]
    assert metrics["memory/peak/actor"] == max(peaks) and min(peaks) > 100e6
    assert metrics["memory/peak/actor"] >= 0.9 * max(resident)
    assert metrics["memory/peak/server"] > 100e6
    for who in ("server", *(f"actor/{number}" for number in range(ACTORS))):
        assert 0 < metrics[f"system/{who}/cpu_utilization_percentage"] < 200, who
    assert federation.sha256() == inline_digest(spec)


@pytest.mark.slow
def test_no_other_instance_is_left_anywhere(digits: Settings) -> None:
    def instances() -> int:
        gc.collect()
        return sum(type(thing) is SplitModel for thing in gc.get_objects())

    spec, before = four_networks(digits), instances()
    executor = InlineExecutor(spec)
    federation = Federation(spec, executor)
    for _ in range(2):
        federation.step()
        assert instances() - before == 2 * len(NETWORKS)
    executor.close()
