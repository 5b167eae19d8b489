"""Resources -> plan: by numbers, by memory, by node. On several nodes: test_gpu_nodes.py."""

from typing import Any

import pytest

from flray.config.loader import load
from flray.federation.ray_backend.nodes import UNMEASURED, Gpu, ResourceSurvey, should_probe
from flray.federation.ray_backend.placement import Plan, make_plan
from tests.helpers import built, python
from tests.messages import refused

GIB = 2**30


def plan(
    digits: dict[str, Any],
    available: dict[str, float],
    clients: int = 20,
    cohort: int = 20,
    nodes: Any = (),
    survey: ResourceSurvey = UNMEASURED,
    **resources: Any,
) -> Plan:
    return make_plan(
        load({"experiment": {**digits, "resources": resources}}).experiment,
        clients,
        cohort,
        available,
        nodes,
        survey,
    )


def test_the_plan_in_words(digits: dict[str, Any]) -> None:
    shared = "; 4 on a GPU take 4 times as long as one (assumed, not measured)"
    assert str(plan(digits, {"CPU": 8, "GPU": 1})) == (
        "20 clients (20 per round) -> 4 actors, 1 CPU, 0.25 GPU each, about 5 tasks per actor and round"
        + shared
    )
    measured = ResourceSurvey(GIB, 3 * GIB, (Gpu("a", 0, 16 * GIB),))
    assert str(plan(digits, {"CPU": 8, "GPU": 1}, cohort=8, survey=measured)) == (
        "20 clients (8 per round) -> 4 actors, 1 CPU, 0.25 GPU each, about 2 tasks per actor and "
        f"round{shared} (an actor takes 3.0 GiB)"
    )


def test_a_block_is_one_actor_s(digits: dict[str, Any]) -> None:
    def in_blocks(block: int, cohort: int, cpus: int = 8) -> Plan:
        config = load({"experiment": {**digits, "aggregation": {"block": block}}}).experiment
        return make_plan(config, 20, cohort, {"CPU": cpus})

    assert (
        str(in_blocks(8, 20))
        == "20 clients (20 per round) -> 3 actors, 1 CPU each, about 1 block per actor and round"
    )
    assert str(in_blocks(2, 20, cpus=4)).endswith(
        "4 actors, 1 CPU each, about 2.5 blocks per actor and round"
    )
    assert in_blocks(2, 5).actors == 5  # the sampled may all be of different blocks


@pytest.mark.parametrize(
    ("need", "free", "share", "actors"),
    [
        (1, (16,), 0.25, 4),  # memory for more, but four are enough for one GPU
        (5, (16,), 0.5, 2),  # 0.9 * 16 / 5 = 2.9
        (10, (16,), 1.0, 1),
        (5, (16, 12), 0.5, 4),  # the fuller GPU decides
        (4, (16, 12), 0.5, 4),  # 0.9 * 12 / 4 = 2.7
        (
            3,
            (80, 80, 80, 80),
            1.0,
            4,
        ),  # sharing gains nothing that is known, and 20 is no multiple of 16
        (3, (80, 80), 0.5, 4),
    ],
)
def test_gpus_are_packed_by_free_memory(
    digits: dict[str, Any], need: int, free: tuple[int, ...], share: float, actors: int
) -> None:
    survey = ResourceSurvey(
        GIB, need * GIB, tuple(Gpu("a", i, f * GIB) for i, f in enumerate(free))
    )
    found = plan(digits, {"CPU": 64, "GPU": len(free)}, survey=survey)
    assert (found.gpus_per_actor, found.actors) == (share, actors)


def test_a_full_gpu_is_named(digits: dict[str, Any]) -> None:
    survey = ResourceSurvey(GIB, 3 * GIB, (Gpu("node-a", 0, 40 * GIB), Gpu("node-b", 1, 2 * GIB)))
    refused(plan, digits, {"CPU": 8, "GPU": 2}, survey=survey)


def test_main_memory_limits_the_actors_too(digits: dict[str, Any]) -> None:
    nodes = [{"CPU": 8.0, "memory": 8.0 * GIB}]
    assert plan(digits, {"CPU": 8}, nodes=nodes).actors == 8
    assert plan(digits, {"CPU": 8}, nodes=nodes, survey=ResourceSurvey(2 * GIB)).actors == 3
    assert plan(digits, {"CPU": 8}, nodes=nodes, survey=ResourceSurvey(20 * GIB)).actors == 1


def test_an_actor_does_not_span_two_nodes(digits: dict[str, Any]) -> None:
    nodes = [{"CPU": 3.0}, {"CPU": 3.0}]
    assert plan(digits, {"CPU": 6}, nodes=nodes, cpus_per_actor=2).actors == 2
    refused(plan, digits, {"CPU": 6}, nodes=nodes, cpus_per_actor=2, actors=3)
    refused(plan, digits, {"CPU": 6}, nodes=nodes, cpus_per_actor=4)
    mixed = [{"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}]  # the head has no GPU
    assert plan(digits, {"CPU": 12, "GPU": 2}, nodes=mixed, gpus_per_actor=0.25).actors == 8
    assert plan(digits, {"CPU": 12, "GPU": 2}, nodes=mixed, gpus_per_actor=2).actors == 1


@pytest.mark.parametrize("share", [1.5, 2.25, -1])
def test_shares_ray_refuses_are_refused_at_once(digits: dict[str, Any], share: float) -> None:
    refused(load, {"experiment": {**digits, "resources": {"gpus_per_actor": share}}})


def test_more_gpus_than_there_are(digits: dict[str, Any]) -> None:
    refused(plan, digits, {"CPU": 8}, gpus_per_actor=0.5)


PROBE = """
import torch
from flray.federation.ray_backend.nodes import measure_footprint
from flray.federation.building import build_spec
from flray.config.loader import load
torch.set_num_threads(1)
for batch, together in ((8, 1), (50, 1), (50, 4)):
    spec = build_spec(load({"experiment": {
        "data": {"name": "random", "samples": 200, "shape": [3, 20, 20], "classes": 10},
        "partition": {"name": "iid", "clients": 4}, "model": "resnet8", "algorithm": "fedavg", "rounds": 2,
        "local": {"batch_size": batch, "clients_per_step": together, "steps": 1}, "aggregation": {"block": 4},
        "evaluation": {"every": 2}, "tracking": {"uri": None}}}).experiment)
    print(measure_footprint(spec, torch.device("cpu")).memory)
"""
"""What is measured is the peak of the process, and each needs more than those before."""


@pytest.mark.slow
def test_a_probe_sees_what_a_task_takes() -> None:
    small, large, together = map(int, python(PROBE).stdout.split())
    assert 100 * 2**20 < small < large < 4 * GIB
    assert large - small > 50 * 2**20
    # Four clients' activations at once are seven times as much, those of two four times.
    assert together - large > 5 * (large - small)


def test_memory_is_measured_where_it_may_matter(digits: dict[str, Any]) -> None:
    spec = built(digits)
    assert not should_probe(spec, [{"CPU": 4.0, "memory": 8.0 * GIB}])
    assert should_probe(spec, [{"CPU": 16.0, "memory": 8.0 * GIB}])
    assert should_probe(
        spec, [{"CPU": 1.0, "memory": 64.0 * GIB}, {"CPU": 4.0, "GPU": 1.0, "memory": 64.0 * GIB}]
    )
    fixed = built(digits, resources={"actors": 2, "gpus_per_actor": 0})
    assert not should_probe(fixed, [{"CPU": 4.0, "GPU": 1.0}])
