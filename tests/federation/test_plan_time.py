"""The plan of a sweep ends nearly as soon as the best one, on pretend clusters. No GPU is needed.

The simulator knows nothing of the planner: it places trials on nodes as Ray does, actor by actor, and lets
each turn of trials take its tasks one after another, slowed by the other processes on the GPU.
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
from flray.federation.ray_backend import placement
from flray.federation.ray_backend.nodes import Gpu, ResourceSurvey, node_resources
from flray.federation.ray_backend.placement import Plan, make_plan
from flray.federation.ray_backend.sharing import measure_sharing
from flray.tuning.resources import TrialResources
from tests.clusters import joined_cluster
from tests.helpers import built

GIB = 2**30
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
        """Raise."""
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
    return min(
        simulated(nodes, cohort, trials, actors, per_gpu, slowdown)
        for actors, per_gpu in itertools.product(counts, shares)
    )


def experiment(digits: dict[str, Any], **resources: Any) -> Any:
    return load({"experiment": {**digits, "resources": resources}}).experiment


def planned(
    config: Any, nodes: Nodes, cohort: int, trials: int, fitting: int, sharing: tuple[float, ...]
) -> Plan:
    have = [{"CPU": float(cpus), "GPU": float(gpus)} for cpus, gpus in nodes]
    total = {kind: sum(node[kind] for node in have) for kind in ("CPU", "GPU")}
    free = [
        Gpu(str(number), index, 20 * GIB)
        for number, (_, gpus) in enumerate(nodes)
        for index in range(gpus)
    ]
    survey = ResourceSurvey(GIB // 4, 16 * GIB // fitting, tuple(free), "", sharing)
    return make_plan(config, 1000, cohort, total, have, survey, trials=trials)


def end_of(plan: Plan, nodes: Nodes, slowdown: Slowdown) -> float:
    per_gpu = round(1 / plan.gpus_per_actor) if plan.gpus_per_actor else 0
    return simulated(nodes, plan.cohort, plan.trials, plan.actors, per_gpu, slowdown)


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_no_plan_ends_much_later_than_the_best(
    digits: dict[str, Any], cluster: str, sharing: str
) -> None:
    """The rest of the table of 420 cases: cohorts, processes that fit on a GPU, numbers of trials."""
    nodes, slowdown, config = CLUSTERS[cluster], SHARING[sharing], experiment(digits)
    measured = tuple(slowdown(count) for count in range(1, 5))
    for cohort, fitting, trials in itertools.product(COHORTS, FITTING, TRIALS):
        plan = planned(config, nodes, cohort, trials, fitting, measured)
        least = best(nodes, cohort, trials, fitting, slowdown)
        found = end_of(plan, nodes, slowdown)
        assert found <= LIMIT * least, (cohort, fitting, trials, plan)
        assert plan.end == pytest.approx(found), (cohort, fitting, trials, plan)


def test_thirty_trials_on_64_gpus_take_few_turns(digits: dict[str, Any]) -> None:
    nodes, config = CLUSTERS["64 GPUs"], experiment(digits)
    for slowdown in SHARING.values():
        measured = tuple(slowdown(count) for count in range(1, 5))
        for sharing in (measured, ()):  # the last: not measured
            plan = planned(config, nodes, 10, 30, 4, sharing)
            assert end_of(plan, nodes, slowdown) <= 6, plan


def test_a_gpu_idles_only_where_that_ends_sooner(digits: dict[str, Any]) -> None:
    """Ten tasks on eight GPUs: two to a GPU are done in one turn, on five of them."""
    nodes, config = CLUSTERS["8 GPUs"], experiment(digits)
    shared = planned(config, nodes, 10, 1, 4, (1.0, 1.2, 1.4, 1.6))
    assert (shared.actors, shared.gpus_per_actor, shared.busy) == (10, 0.5, 5)
    for sharing in ((1.0, 1.95, 2.9, 3.9), ()):
        plan = planned(config, nodes, 10, 1, 4, sharing)
        assert (plan.actors, plan.gpus_per_actor, plan.busy) == (8, 1.0, 8)


def test_the_settings_of_the_user_are_obeyed(digits: dict[str, Any]) -> None:
    nodes, none = CLUSTERS["64 GPUs"], (1.0, 2.0, 3.0, 4.0)
    fixed = planned(experiment(digits, actors=3), nodes, 10, 30, 4, none)
    assert (fixed.actors, fixed.at_once) == (3, 30)
    quarters = planned(experiment(digits, gpus_per_actor=0.25), nodes, 10, 30, 4, none)
    assert quarters.gpus_per_actor == 0.25
    config = experiment(digits)
    available = {"CPU": 64.0, "GPU": 8.0}
    limited = make_plan(config, 20, 10, available, trials=30, concurrency=3)
    assert limited.at_once == 3


def test_the_estimate_in_words(digits: dict[str, Any]) -> None:
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


def test_trials_that_are_left_are_planned_anew_on_the_nodes_of_now(
    digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_sharing_is_measured_once_where_it_matters(
    digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert asked == [2]
    fixed = built(digits, resources={"gpus_per_actor": 0.5})
    placement.PoolPlanner(fixed, available).plan()
    assert asked == [2]


@pytest.mark.slow
def test_the_cost_of_sharing_is_measured_side_by_side(digits: dict[str, Any]) -> None:
    """On GPUs that are not there; the processes give back what they had, and nothing is measured twice."""
    with joined_cluster({"num_cpus": 2, "num_gpus": 2}):
        (node,) = node_resources()
        found = measure_sharing(built(digits), node, 2)
        assert len(found) == 2 and found[0] == 1.0 <= found[1] < 50
        group = placement_group([{"GPU": 2.0}])
        ray.get(group.ready(), timeout=300)
        remove_placement_group(group)
        assert measure_sharing(built(digits, seed=1), node, 2) is found
        fewer = {"name": "digits-sklearn", "samples": 90}
        assert measure_sharing(built(digits, data=fewer, algorithm="never-trains"), node, 2) == ()
