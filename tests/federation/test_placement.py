"""Resources -> plan: by numbers, by memory, by node. On several nodes: test_gpus.py.

A plan ends nearly as soon as the best one on pretend clusters. Their simulator knows nothing of the planner: it places
trials on nodes as Ray does, actor by actor, and lets each turn of trials take its tasks one after another, slowed by
the other processes on the GPU.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from torch import Tensor

from flray import registry
from flray.algorithms.base import Algorithm
from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch
from flray.config.loader import load
from flray.federation.ray_backend import nodes as surveys
from flray.federation.ray_backend import placement
from flray.federation.ray_backend.nodes import Gpu, ResourceSurvey
from flray.federation.ray_backend.placement import Plan, make_plan
from flray.federation.ray_backend.sharing import measure_sharing
from flray.tuning.resources import TrialResources
from tests.clusters import joined_cluster
from tests.helpers import Settings, built, cases, python
from tests.messages import refused

GIB = 2**30


def plan(digits: Settings, available: dict[str, float], cohort: int = 20, **more: Any) -> Plan:
    nodes, survey = more.pop("nodes", ()), more.pop("survey", surveys.UNMEASURED)
    return make_plan(experiment(digits, **more), 20, cohort, available, nodes, survey)


def experiment(digits: Settings, **resources: Any) -> Any:
    return load({"experiment": {**digits, "resources": resources}}).experiment


def test_the_plan_in_words(digits: Settings) -> None:
    shared = "; 4 on a GPU take 4 times as long as one (assumed, not measured)"
    each = "4 actors, 1 CPU, 0.25 GPU each, about"
    words = f"20 clients (20 per round) -> {each} 5 tasks per actor and round{shared}"
    assert str(plan(digits, {"CPU": 8, "GPU": 1})) == words
    measured = ResourceSurvey(GIB, 3 * GIB, (Gpu("a", 0, 16 * GIB),))
    words = f"20 clients (8 per round) -> {each} 2 tasks per actor and round{shared} (an actor takes 3.0 GiB)"
    assert str(plan(digits, {"CPU": 8, "GPU": 1}, cohort=8, survey=measured)) == words


def test_a_block_is_one_actor_s(digits: Settings) -> None:
    def in_blocks(block: int, cohort: int, cpus: int = 8) -> Plan:
        config = load({"experiment": {**digits, "aggregation": {"block": block}}}).experiment
        return make_plan(config, 20, cohort, {"CPU": cpus})

    words = "20 clients (20 per round) -> 3 actors, 1 CPU each, about 1 block per actor and round"
    assert str(in_blocks(8, 20)) == words
    words = "4 actors, 1 CPU each, about 2.5 blocks per actor and round"
    assert str(in_blocks(2, 20, cpus=4)).endswith(words)
    assert in_blocks(2, 5).actors == 5  # the sampled may all be of different blocks


@cases(
    "need, free, share, actors",
    """[1, [16], 0.25, 4], [5, [16], 0.5, 2], [10, [16], 1.0, 1], [5, [16, 12], 0.5, 4],
    [4, [16, 12], 0.5, 4], [3, [80, 80, 80, 80], 1.0, 4], [3, [80, 80], 0.5, 4]""",
)
def test_gpus_are_packed_by_free_memory(
    digits: Settings, need: int, free: list[int], share: float, actors: int
) -> None:
    """Nine tenths of the fuller GPU's; four to a GPU are enough, and four GPUs need not share for 20 tasks."""
    gpus = tuple(Gpu("a", i, f * GIB) for i, f in enumerate(free))
    survey = ResourceSurvey(GIB, need * GIB, gpus)
    found = plan(digits, {"CPU": 64, "GPU": len(free)}, survey=survey)
    assert (found.gpus_per_actor, found.actors) == (share, actors)


def test_a_full_gpu_is_named_and_more_gpus_than_there_are(digits: Settings) -> None:
    survey = ResourceSurvey(GIB, 3 * GIB, (Gpu("node-a", 0, 40 * GIB), Gpu("node-b", 1, 2 * GIB)))
    refused(plan, digits, {"CPU": 8, "GPU": 2}, survey=survey)
    refused(plan, digits, {"CPU": 8}, gpus_per_actor=0.5)


def test_main_memory_limits_the_actors_too(digits: Settings) -> None:
    nodes = [{"CPU": 8.0, "memory": 8.0 * GIB}]
    assert plan(digits, {"CPU": 8}, nodes=nodes).actors == 8
    assert plan(digits, {"CPU": 8}, nodes=nodes, survey=ResourceSurvey(2 * GIB)).actors == 3
    assert plan(digits, {"CPU": 8}, nodes=nodes, survey=ResourceSurvey(20 * GIB)).actors == 1


def test_an_actor_does_not_span_two_nodes(digits: Settings) -> None:
    nodes = [{"CPU": 3.0}, {"CPU": 3.0}]
    assert plan(digits, {"CPU": 6}, nodes=nodes, cpus_per_actor=2).actors == 2
    refused(plan, digits, {"CPU": 6}, nodes=nodes, cpus_per_actor=2, actors=3)
    refused(plan, digits, {"CPU": 6}, nodes=nodes, cpus_per_actor=4)
    mixed = [{"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}]  # the head has no GPU
    assert plan(digits, {"CPU": 12, "GPU": 2}, nodes=mixed, gpus_per_actor=0.25).actors == 8
    assert plan(digits, {"CPU": 12, "GPU": 2}, nodes=mixed, gpus_per_actor=2).actors == 1


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
    assert 100 * 2**20 < small < large < 4 * GIB and large - small > 50 * 2**20
    # Four clients' activations at once were 4.9 to 7.6 times as much, those of two 2.2 to 3.1 times.
    assert together - large > 4 * (large - small)


def test_memory_is_measured_where_it_may_matter(digits: Settings) -> None:
    spec, large = built(digits), {"CPU": 1.0, "memory": 64.0 * GIB}
    assert not surveys.should_probe(spec, [{"CPU": 4.0, "memory": 8.0 * GIB}])
    assert surveys.should_probe(spec, [{"CPU": 16.0, "memory": 8.0 * GIB}])
    assert surveys.should_probe(spec, [large, {**large, "CPU": 4.0, "GPU": 1.0}])
    fixed = built(digits, resources={"actors": 2, "gpus_per_actor": 0})
    assert not surveys.should_probe(fixed, [{"CPU": 4.0, "GPU": 1.0}])


CLUSTERS = {  # CPUs and GPUs of each node
    "one GPU": [(8, 1)],
    "8 GPUs": [(64, 8)],
    "4 workers of one GPU, the head has none": [(4, 0)] + [(8, 1)] * 4,
    "5 GPUs uneven": [(16, 4), (8, 1)],
    "64 GPUs": [(96, 8)] * 8,
    "more GPUs than CPUs": [(4, 8)],
    "no GPU": [(16, 0), (8, 0), (8, 0)],
}
COHORTS, FITTING, TRIALS = (4, 10, 100), (4, 2), (1, 4, 8, 30, 200)
SHARING: dict[str, Callable[[int], float]] = {"free": lambda count: 1.0, "none": float}
LIMIT = 1.15


@registry.register_algorithm("never-trains")
class NeverTrains(Algorithm):
    """FedAvg whose training raises."""

    def loss(self, client: Client, batch: Batch) -> Tensor:
        raise ValueError("injected")


Slowdown = Callable[[int], float]
Nodes = list[tuple[int, int]]


def simulated(
    nodes: Nodes, cohort: int, trials: int, actors: int, per_gpu: int, slowdown: Slowdown
) -> float:
    """Return when the last of equal trials ends, in tasks alone; `per_gpu` is 0 for actors without a GPU."""
    rooms = [min(cpus, per_gpu * gpus) if per_gpu else cpus for cpus, gpus in nodes]
    if sum(rooms) < actors:
        return math.inf
    end = 0.0
    while trials:
        free = list(rooms)
        while trials and sum(free) >= actors:  # one more trial, packed
            trials, left = trials - 1, actors
            while left:
                node = max(range(len(free)), key=lambda i: min(free[i], left))
                took = min(free[node], left)
                free[node], left = free[node] - took, left - took
        beside = max(room - rest for room, rest in zip(rooms, free, strict=True))
        slow = slowdown(min(per_gpu, beside)) if per_gpu else 1.0
        end += math.ceil(cohort / actors) * slow
    return end


def best(nodes: Nodes, cohort: int, trials: int, fitting: int, slowdown: Slowdown) -> float:
    """Return the end of the best of all plans; with more actors in as many turns a plan ends no sooner."""
    shares = range(1, fitting + 1) if any(gpus for _, gpus in nodes) else [0]
    counts = {math.ceil(cohort / turns) for turns in range(1, cohort + 1)}
    plans = itertools.product(counts, shares)
    return min(simulated(nodes, cohort, trials, *one, slowdown) for one in plans)


def planned(
    config: Any, nodes: Nodes, cohort: int, trials: int, fitting: int, sharing: tuple[float, ...]
) -> Plan:
    have = [{"CPU": float(cpus), "GPU": float(gpus)} for cpus, gpus in nodes]
    total = {kind: sum(node[kind] for node in have) for kind in ("CPU", "GPU")}
    there = [(str(node), index) for node, (_, gpus) in enumerate(nodes) for index in range(gpus)]
    free = tuple(Gpu(node, index, 20 * GIB) for node, index in there)
    survey = ResourceSurvey(GIB // 4, 16 * GIB // fitting, free, "", sharing)
    return make_plan(config, 1000, cohort, total, have, survey, trials=trials)


def end_of(plan: Plan, nodes: Nodes, slowdown: Slowdown) -> float:
    per_gpu = round(1 / plan.gpus_per_actor) if plan.gpus_per_actor else 0
    return simulated(nodes, plan.cohort, plan.trials, plan.actors, per_gpu, slowdown)


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_no_plan_is_far_from_the_best(digits: Settings, cluster: str, sharing: str) -> None:
    """The rest of the table of 420 cases: cohorts, processes that fit on a GPU, numbers of trials."""
    nodes, slowdown, config = CLUSTERS[cluster], SHARING[sharing], experiment(digits)
    measured = tuple(slowdown(count) for count in range(1, 5))
    for cohort, fitting, trials in itertools.product(COHORTS, FITTING, TRIALS):
        plan = planned(config, nodes, cohort, trials, fitting, measured)
        least = best(nodes, cohort, trials, fitting, slowdown)
        found = end_of(plan, nodes, slowdown)
        assert found <= LIMIT * least, (cohort, fitting, trials, plan)
        assert plan.end == pytest.approx(found), (cohort, fitting, trials, plan)


def test_thirty_trials_on_64_gpus_take_few_turns(digits: Settings) -> None:
    nodes, config = CLUSTERS["64 GPUs"], experiment(digits)
    for slowdown in SHARING.values():
        measured = tuple(slowdown(count) for count in range(1, 5))
        for sharing in (measured, ()):  # the last: not measured
            plan = planned(config, nodes, 10, 30, 4, sharing)
            assert end_of(plan, nodes, slowdown) <= 6, plan


def test_a_gpu_idles_only_where_that_ends_sooner(digits: Settings) -> None:
    """Ten tasks on eight GPUs: two to a GPU are done in one turn, on five of them."""
    nodes, config = CLUSTERS["8 GPUs"], experiment(digits)
    shared = planned(config, nodes, 10, 1, 4, (1.0, 1.2, 1.4, 1.6))
    assert (shared.actors, shared.gpus_per_actor, shared.busy) == (10, 0.5, 5)
    for sharing in ((1.0, 1.95, 2.9, 3.9), ()):
        plan = planned(config, nodes, 10, 1, 4, sharing)
        assert (plan.actors, plan.gpus_per_actor, plan.busy) == (8, 1.0, 8)


def test_the_settings_of_the_user_are_obeyed(digits: Settings) -> None:
    nodes, none = CLUSTERS["64 GPUs"], (1.0, 2.0, 3.0, 4.0)
    fixed = planned(experiment(digits, actors=3), nodes, 10, 30, 4, none)
    assert (fixed.actors, fixed.at_once) == (3, 30)
    quarters = planned(experiment(digits, gpus_per_actor=0.25), nodes, 10, 30, 4, none)
    assert quarters.gpus_per_actor == 0.25
    available = {"CPU": 64.0, "GPU": 8.0}
    assert make_plan(experiment(digits), 20, 10, available, trials=30, concurrency=3).at_once == 3


def test_the_estimate_in_words(digits: Settings) -> None:
    nodes, config = CLUSTERS["64 GPUs"], experiment(digits)
    assert str(planned(config, nodes, 10, 30, 4, (1.0, 1.25, 1.5, 1.75))) == (
        "30 trials, 30 at once, estimated to end after 3 tasks' time per round; each 1000 clients (10 per round) "
        "-> 6 actors, 1 CPU, 0.333 GPU each, about 1.7 tasks per actor and round; 3 on a GPU take 1.5 times as "
        "long as one (as measured) (an actor takes 4.0 GiB)"
    )
    assert str(planned(config, CLUSTERS["no GPU"], 10, 8, 4, ())) == (
        "8 trials, 8 at once, estimated to end after 3 tasks' time per round; each 1000 clients (10 per round) "
        "-> 4 actors, 1 CPU each, about 2.5 tasks per actor and round (an actor takes 0.2 GiB)"
    )


def test_trials_left_are_replanned(digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    config, nodes = experiment(digits), [{"id": "a", "name": "a", "CPU": 8.0}]
    monkeypatch.setattr(placement, "node_resources", lambda: nodes)
    resources = TrialResources({"CPU": 8.0}, 8, "auto")
    assert resources.bundles(config) == [{"CPU": 1.0}]
    (line,) = resources.replan(2, {"CPU": 8.0, "memory": 1.0})
    assert line.startswith("2 trials, 2 at once, ") and " -> 4 actors, 1 CPU each, " in line
    assert resources.bundles(config) == [{}, *[{"CPU": 1.0}] * 4]
    nodes.append({"id": "b", "name": "b", "CPU": 12.0})
    (line,) = resources.replan(2, {"CPU": 20.0})
    assert " -> 4 actors" in line  # as many as there are clients
    assert resources.slots == 2


def test_sharing_is_measured_once(digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measured(spec: Any, node: Any, most: int) -> tuple[float, ...]:
        asked.append(most)
        return (1.0, 1.1)

    survey = ResourceSurvey(GIB, GIB, (Gpu("a", 0, 16 * GIB), Gpu("a", 1, 16 * GIB)))
    node = {"id": "a", "name": "a", "CPU": 2.0, "GPU": 2.0}
    monkeypatch.setattr(placement, "node_resources", lambda: [node])
    monkeypatch.setattr(placement, "survey_nodes", lambda spec, nodes: survey)
    monkeypatch.setattr(placement, "measure_sharing", measured)
    available = {"CPU": 2.0, "GPU": 2.0}
    placement.PoolPlanner(built(digits), available).plan()
    placement.PoolPlanner(built(digits), available).plan(cohort=2, trials=1)
    placement.PoolPlanner(built(digits, resources={"gpus_per_actor": 0.5}), available).plan()
    assert asked == [2]


@pytest.mark.slow
def test_the_cost_of_sharing_is_measured_side_by_side(digits: Settings) -> None:
    """On GPUs that are not there; the processes give back what they had, and nothing is measured twice."""
    with joined_cluster({"num_cpus": 2, "num_gpus": 2}):
        (node,) = surveys.node_resources()
        found = measure_sharing(built(digits), node, 2)
        assert len(found) == 2 and found[0] == 1.0 <= found[1] < 50
        group = placement_group([{"GPU": 2.0}])
        ray.get(group.ready(), timeout=300)
        remove_placement_group(group)
        assert measure_sharing(built(digits, seed=1), node, 2) is found
        fewer = {"name": "digits-sklearn", "samples": 90}
        assert measure_sharing(built(digits, data=fewer, algorithm="never-trains"), node, 2) == ()
