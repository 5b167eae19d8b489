"""A cluster's first GPU is waited for, and GPUs of several models are not mixed unasked. No GPU is needed."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray

from flray.config.loader import load
from flray.devices import check_kinds
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation
from flray.federation.ray_backend import nodes
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.nodes import await_first_node, only_model
from flray.federation.ray_backend.placement import PoolPlanner
from tests.clusters import joined_cluster
from tests.messages import refused

L4, A100 = ({"CPU": 4.0, "GPU": 2.0, f"accelerator_type:{name}": 1.0} for name in ("L4", "A100"))
ONE = {"model": "One", "driver": "580.1", "cuda": "13.0", "cudnn": "92000"}


def experiment(digits: dict[str, Any], **resources: Any) -> Any:
    return load({"experiment": {**digits, "resources": resources}}).experiment


def test_models_are_not_mixed_unless_that_is_asked_for(digits: dict[str, Any]) -> None:
    assert only_model(experiment(digits), [L4, L4, {"CPU": 8.0}]) == ""
    refused(only_model, experiment(digits), [L4, A100])
    assert only_model(experiment(digits, gpu_model="any"), [L4, A100]) == ""
    assert only_model(experiment(digits, gpus_per_actor=0), [L4, A100]) == ""
    assert only_model(experiment(digits, gpu_model="L4"), [L4, A100]) == "L4"
    refused(only_model, experiment(digits, gpu_model="H100"), [L4, A100])


def test_actors_that_found_themselves_on_several_kinds_end_the_run() -> None:
    check_kinds([ONE], "one", "float32")
    check_kinds([ONE, {**ONE, "driver": "570"}], "any", "float32")
    refused(check_kinds, [ONE, {**ONE, "driver": "570"}], "one", "float32")


def test_bfloat16_is_refused_on_a_gpu_that_has_none() -> None:
    old, new = {**ONE, "capability": "7.5"}, {**ONE, "capability": "10.0"}
    for found, precision in (([old], "float32"), ([new], "bfloat16"), ([], "bfloat16")):
        check_kinds(found, "any", precision)
    refused(check_kinds, [new, old], "any", "bfloat16")


@pytest.mark.slow
def test_the_first_gpu_is_waited_for_and_then_one_model_is_used(
    digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with joined_cluster({"num_cpus": 2, "num_gpus": 0}) as cluster:
        lines: list[str] = []
        there = ray.cluster_resources()
        assert await_first_node(experiment(digits), there, lines.append) is there and not lines
        assert not there.get("GPU")
        monkeypatch.setattr(nodes, "NODE_WAIT_S", 1.0)
        nothing = {name: value for name, value in there.items() if name != "CPU"}
        wants = experiment(digits, cpus_per_actor=3)  # more than the head has
        refused(await_first_node, wants, nothing, lines.append)
        (line,) = lines
        assert "has no CPU now; waiting up to 1 s" in line
        assert await_first_node(experiment(digits), nothing, lines.append)["CPU"] == 2.0

        asks = experiment(digits, gpus_per_actor=0.5)
        lines.clear()
        refused(await_first_node, asks, there, lines.append)
        (line,) = lines
        assert "waiting up to 1 s for its autoscaler" in line
        plan = PoolPlanner(build_spec(experiment(digits)), there).plan()
        assert plan.lacks_gpus(experiment(digits))

        monkeypatch.setattr(nodes, "NODE_WAIT_S", 300.0)
        node = {"num_cpus": 2, "num_gpus": 1}
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(await_first_node, asks, there, lines.append)
            cluster.add_node(**node, resources={"accelerator_type:L4": 1})
            assert waiting.result(300)["GPU"] == 1.0

        cluster.add_node(**node, resources={"accelerator_type:A100": 1})
        there = ray.cluster_resources()
        refused(PoolPlanner, build_spec(asks), there)
        too_many = experiment(digits, gpus_per_actor=0.25, actors=9, gpu_model="any")
        refused(PoolPlanner(build_spec(too_many), there).plan)
        # One task is run to see what it takes; the GPU of the model is shared.
        spec = build_spec(experiment(digits, gpu_model="A100"))
        plan = PoolPlanner(spec, there).plan()
        assert (plan.actors, plan.gpus_per_actor) == (2, 0.5) and plan.measured > 0

        def pids(server: Any) -> Any:
            actors = [worker.actor for worker in server.executor.workers]
            return ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in actors])

        federation, inline = RayFederation(spec, plan, print), inline_federation(spec, print)
        try:
            federation.step()
            inline.step()
            assert federation.sha256() == inline.sha256()
            assert len(set(ray.get(federation._server.__ray_call__.remote(pids)))) == 2
            left = ray.available_resources()
            assert left["accelerator_type:A100"] < 1.0 == left["accelerator_type:L4"]
            assert left["GPU"] == 1.0
        finally:
            federation.close()
