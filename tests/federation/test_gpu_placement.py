"""Every GPU gets work, no CPU is overbooked, and nothing computes on a GPU that nobody counts. No GPU is needed."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import ray

from flray import api
from flray.config.loader import load
from flray.errors import DataError
from flray.federation.building import build_spec
from flray.federation.ray_backend import placement
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.placement import make_plan
from flray.federation.ray_backend.pool import ClientActor
from flray.records.journal import read_events, rounds_of
from flray.tuning.resources import TrialResources
from tests.clusters import joined_cluster

MACHINES = [(gpus, cpus) for gpus in (1, 2, 4, 8) for cpus in (4, 8, 64)]


def experiment(digits: dict[str, Any], **settings: Any) -> Any:
    content = {**digits, "partition": {"name": "iid", "clients": 20}, **settings}
    return load({"experiment": content}).experiment


def busy(shares: list[float]) -> int:
    """Return how many GPUs are used where Ray fills one before it takes the next."""
    free: list[float] = []
    for share in shares:
        place = next((i for i, left in enumerate(free) if left >= share - 1e-9), None)
        if place is None:
            free.append(1.0)
            place = len(free) - 1
        free[place] -= share
    return len(free)


@pytest.mark.parametrize(("gpus", "cpus"), MACHINES)
def test_every_gpu_gets_an_actor(digits: dict[str, Any], gpus: int, cpus: int) -> None:
    cohorts = (1, 3, 5, 20, 1000)
    for each, server, cohort in itertools.product((1, 4), (False, True), cohorts):
        config = experiment(digits, resources={"cpus_per_actor": each})
        plan = make_plan(config, 1000, cohort, {"GPU": gpus, "CPU": cpus}, trains_at_server=server)
        shares = [plan.gpus_per_actor] * plan.actors + [plan.server_gpu] * bool(plan.server_gpu)
        assert plan.actors * each <= cpus
        assert busy(shares) <= gpus
        most = min(gpus, cohort + bool(plan.server_gpu), cpus // each + server)
        assert busy(shares) >= most, plan


def test_several_nodes_are_filled_each(digits: dict[str, Any]) -> None:
    nodes = [{"CPU": 4.0, "GPU": 4.0}, {"CPU": 16.0, "GPU": 4.0}, {"CPU": 64.0}]
    plan = make_plan(experiment(digits), 100, 100, {"CPU": 84, "GPU": 8}, nodes)
    assert plan.gpus_per_actor == 1.0  # four actors on the first node's four GPUs
    assert plan.actors == 8


@pytest.mark.parametrize(("gpus", "cpus"), MACHINES)
def test_every_gpu_gets_an_actor_of_a_sweep(digits: dict[str, Any], gpus: int, cpus: int) -> None:
    config = experiment(digits)
    for trials in (1, 3, 9, 40):
        resources = TrialResources({"CPU": cpus, "GPU": gpus}, trials, "auto")
        bundles = resources.bundles(config)
        each = sum(bundle.get("CPU", 0.0) for bundle in bundles)
        at_once = min(resources.slots, trials)
        shares = [bundle["GPU"] for bundle in bundles if "GPU" in bundle] * at_once
        assert each * at_once <= cpus
        assert busy(shares) <= gpus
        # What trials of equal size leave over is less than one more actor for each of them.
        most = min(gpus, cpus)
        assert busy(shares) >= min(most, at_once * max(1, most // at_once)), (bundles, at_once)


def test_a_server_that_trains_has_a_share_of_its_own(digits: dict[str, Any]) -> None:
    config = experiment(digits)
    plan = make_plan(config, 20, 20, {"CPU": 8, "GPU": 1}, trains_at_server=True)
    assert (plan.actors, plan.gpus_per_actor, plan.server_gpu) == (3, 0.25, 0.25)
    assert str(plan).endswith("; the server trains on 0.25 GPU")
    assert not make_plan(config, 20, 20, {"CPU": 8}, trains_at_server=True).server_gpu


def trained_at_the_server(digits: dict[str, Any]) -> Any:
    return experiment(
        digits,
        algorithm={"name": "feddf", "steps": 2, "public_size": 40},
        public={"name": "digits-sklearn", "samples": 40},
    )


@pytest.mark.parametrize(
    ("driver", "share", "actors", "words"),
    [
        ("head", 0.0, 4, "trains on a CPU: the node of the driver, where it is, has no GPU"),
        ("other", 0.25, 3, "trains on 0.25 GPU"),
        ("", 0.25, 3, "trains on 0.25 GPU"),  # as in a sweep, where it may be anywhere
    ],
)
def test_a_server_on_a_node_without_gpus_is_planned_there(
    digits: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    driver: str,
    share: float,
    actors: int,
    words: str,
) -> None:
    nodes = [{"id": "head", "CPU": 4.0}, {"id": "other", "CPU": 4.0, "GPU": 1.0}]
    monkeypatch.setattr(placement, "node_resources", lambda: nodes)
    monkeypatch.setattr(placement, "should_probe", lambda spec, nodes: False)
    spec = build_spec(trained_at_the_server(digits))
    plan = placement.PoolPlanner(spec, {"CPU": 8, "GPU": 1}, driver).plan()
    assert (plan.server_gpu, plan.actors, plan.gpus_per_actor) == (share, actors, 0.25)
    assert str(plan).endswith(f"; the server {words}")


@pytest.mark.slow
def test_actors_and_server_are_where_the_plan_has_them(digits: dict[str, Any]) -> None:
    """On two GPUs that are not there; an actor that finds none although Ray gave it one says so."""
    config = trained_at_the_server(digits)
    spec = build_spec(config)
    plan = make_plan(config, 20, 20, {"CPU": 2, "GPU": 2}, trains_at_server=True)
    assert plan.server_gpu
    with joined_cluster({"num_cpus": 4, "num_gpus": 2}):
        federation = RayFederation(spec, plan, print)
        try:
            federation.step()
            used = ray.available_resources().get("GPU", 0.0)
            assert math.isclose(2 - used, plan.actors * plan.gpus_per_actor + plan.server_gpu)
        finally:
            federation.close()
        blind = {"env_vars": {"FLRAY_FAKE_GPUS": "0"}}
        actor = ray.remote(ClientActor).options(num_gpus=1, runtime_env=blind).remote(spec, 1)
        with pytest.raises(DataError, match=r"torch .* sees none: install a build of torch"):
            ray.get(actor.describe.remote())


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_the_actors_of_a_trial_leave_the_bundle_of_its_server_alone(
    tmp_cwd: Path, digits: dict[str, Any]
) -> None:
    """One that was put there would never start, and the others would do its work."""
    trained = trained_at_the_server(digits).model_dump(mode="json")
    resources = {"executor": "ray", "actors": 2, "gpus_per_actor": 0.25}
    content = {
        **digits,
        **{name: trained[name] for name in ("algorithm", "public")},
        "rounds": 2,
        "resources": resources,
        "faults": {"round_timeout": 3600},  # with a limit all actors are waited for
        "tracking": {"uri": None},
    }
    with joined_cluster({"num_cpus": 3, "num_gpus": 1}):
        result = api.tune({"experiment": content, "sweep": {"seeds": [0]}})
    events = rounds_of(read_events(next((result.folder / "trials").iterdir())))
    assert {"memory/peak/actor/0", "memory/peak/actor/1"} <= events[2].keys()
