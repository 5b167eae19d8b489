"""A cluster's first GPU is waited for, and GPUs of several models are not mixed unasked. No GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray

from flray.config.loader import load
from flray.devices.identity import check_alike
from flray.errors import ConfigError, FlrayError
from flray.federation.building import build_spec
from flray.federation.ray_backend import nodes
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.nodes import await_first_node, only_model
from flray.federation.ray_backend.placement import PoolPlanner

L4, A100 = ({"CPU": 4.0, "GPU": 2.0, f"accelerator_type:{name}": 1.0} for name in ("L4", "A100"))
ONE = {"model": "One", "driver": "580.1", "cuda": "13.0", "cudnn": "92000"}


def experiment(digits: dict[str, Any], **resources: Any) -> Any:
    return load({"experiment": {**digits, "resources": resources}}).experiment


def test_models_are_not_mixed_unless_that_is_asked_for(digits: dict[str, Any]) -> None:
    assert only_model(experiment(digits), [L4, L4, {"CPU": 8.0}]) == ""
    with pytest.raises(
        ConfigError,
        match=r"gpu_model: found one; the cluster's GPUs are of several models \(A100, L4",
    ):
        only_model(experiment(digits), [L4, A100])
    assert only_model(experiment(digits, gpu_model="any"), [L4, A100]) == ""
    assert only_model(experiment(digits, gpus_per_actor=0), [L4, A100]) == ""
    assert only_model(experiment(digits, gpu_model="L4"), [L4, A100]) == "L4"
    with pytest.raises(ConfigError, match=r"gpu_model: found H100; the GPUs are A100, L4"):
        only_model(experiment(digits, gpu_model="H100"), [L4, A100])


def test_actors_that_found_themselves_on_several_kinds_end_the_run() -> None:
    check_alike([ONE], "one")
    check_alike([ONE, {**ONE, "driver": "570"}], "any")
    with pytest.raises(FlrayError, match=r"several kinds of GPU.*driver 580\.1.*resources\.gpu_m"):
        check_alike([ONE, {**ONE, "driver": "570"}], "one")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without a GPU, to which nodes are added."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "num_gpus": 0, "include_dashboard": False},
    )
    ray.init(address=made.address, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_a_cluster_without_workers_is_waited_for(
    digits: dict[str, Any], cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    there = ray.cluster_resources()
    assert await_first_node(experiment(digits), there, lines.append) is there and not lines
    monkeypatch.setattr(nodes, "NODE_WAIT_S", 1.0)
    nothing = {name: value for name, value in there.items() if name != "CPU"}
    wants = experiment(digits, cpus_per_actor=3)  # more than the head has
    with pytest.raises(FlrayError, match="no CPU came to the cluster within 1 s"):
        await_first_node(wants, nothing, lines.append)
    assert len(lines) == 1 and "has no CPU now; waiting up to 1 s" in lines[0]
    assert await_first_node(experiment(digits), nothing, lines.append)["CPU"] == 2.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_gpu_is_waited_for_and_then_one_model_is_used(
    digits: dict[str, Any], cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = experiment(digits, gpus_per_actor=0.5)
    lines: list[str] = []
    monkeypatch.setattr(nodes, "NODE_WAIT_S", 1.0)
    with pytest.raises(FlrayError, match="no GPU came to the cluster within 1 s"):
        await_first_node(asks, ray.cluster_resources(), lines.append)
    assert len(lines) == 1 and "waiting up to 1 s for its autoscaler" in lines[0]
    assert not await_first_node(experiment(digits), ray.cluster_resources(), lines.append).get(
        "GPU"
    )
    assert (
        PoolPlanner(build_spec(experiment(digits)), ray.cluster_resources())
        .plan()
        .lacks_gpus(experiment(digits))
    )

    monkeypatch.setattr(nodes, "NODE_WAIT_S", 120.0)
    node = {"num_cpus": 2, "num_gpus": 1}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(await_first_node, asks, ray.cluster_resources(), lines.append)
        cluster.add_node(**node, resources={"accelerator_type:L4": 1})
        assert waiting.result(120)["GPU"] == 1.0

    cluster.add_node(**node, resources={"accelerator_type:A100": 1})
    with pytest.raises(ConfigError, match=r"several models \(A100, L4\)"):
        PoolPlanner(build_spec(asks), ray.cluster_resources())
    spec = build_spec(experiment(digits, gpus_per_actor=0.5, actors=2, gpu_model="A100"))
    plan = PoolPlanner(spec, ray.cluster_resources()).plan()
    federation = RayFederation(spec, plan, print)
    try:
        federation.step()
        left = ray.available_resources()
        assert left["accelerator_type:A100"] < 1.0 == left["accelerator_type:L4"]
        assert left["GPU"] == 1.0
    finally:
        federation.close()
