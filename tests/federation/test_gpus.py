"""GPUs, without one: the first is waited for, each gets work, models are not mixed unasked, bits are repeatable."""

import itertools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray

import flray
from flray import api, devices
from flray.config.loader import load
from flray.devices import check_kinds
from flray.errors import DataError
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation
from flray.federation.ray_backend import nodes, placement
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.nodes import await_first_node, only_model
from flray.federation.ray_backend.placement import PoolPlanner, make_plan
from flray.federation.ray_backend.pool import ClientActor
from flray.records import directory, read_events, rounds_of
from flray.tuning.resources import TrialResources
from tests.clusters import joined_cluster
from tests.end_to_end.pool import inline_digest, pids
from tests.federation.test_placement import experiment
from tests.helpers import Settings, built, python
from tests.messages import refused

L4, A100 = ({"CPU": 4.0, "GPU": 2.0, f"accelerator_type:{name}": 1.0} for name in ("L4", "A100"))
ONE = {"model": "One", "driver": "580.1", "cuda": "13.0", "cudnn": "92000"}


def test_models_are_not_mixed_unless_that_is_asked_for(digits: Settings) -> None:
    assert only_model(experiment(digits), [L4, L4, {"CPU": 8.0}]) == ""
    refused(only_model, experiment(digits), [L4, A100])
    assert only_model(experiment(digits, gpu_model="any"), [L4, A100]) == ""
    assert only_model(experiment(digits, gpus_per_actor=0), [L4, A100]) == ""
    assert only_model(experiment(digits, gpu_model="L4"), [L4, A100]) == "L4"
    refused(only_model, experiment(digits, gpu_model="H100"), [L4, A100])
    # Actors that found themselves on several kinds end the run.
    assert check_kinds([ONE], "one", "float32", "native") == ""
    check_kinds([ONE, {**ONE, "driver": "570"}], "any", "float32", "native")
    refused(check_kinds, [ONE, {**ONE, "driver": "570"}], "one", "float32", "native")


def test_bfloat16_is_refused_on_a_gpu_that_has_none() -> None:
    old, new = {**ONE, "capability": "7.5"}, {**ONE, "capability": "10.0"}
    for found, precision in (([old], "float32"), ([new], "bfloat16"), ([], "bfloat16")):
        check_kinds(found, "any", precision, "native")
    refused(check_kinds, [new, old], "any", "bfloat16", "native")


@pytest.mark.slow
def test_the_first_gpu_is_waited_for(digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
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

        federation, inline = RayFederation(spec, plan, print), inline_federation(spec, print)
        try:
            federation.step()
            inline.step()
            assert federation.sha256() == inline.sha256()
            asked = federation._server.__ray_call__.remote(lambda server: pids(server.executor))
            assert len(set(ray.get(asked))) == 2
            left = ray.available_resources()
            assert left["accelerator_type:A100"] < 1.0 == left["accelerator_type:L4"]
            assert left["GPU"] == 1.0
        finally:
            federation.close()


MACHINES = [(gpus, cpus) for gpus in (1, 2, 4, 8) for cpus in (4, 8, 64)]


def placed(digits: Settings, **settings: Any) -> Any:
    content = {**digits, "partition": {"name": "iid", "clients": 20}, **settings}
    return load({"experiment": content}).experiment


def busy(shares: list[float]) -> int:
    """Return how many GPUs are used where Ray fills one before it takes the next."""
    free: list[float] = []
    for share in shares:
        fits = [place for place, left in enumerate(free) if left >= share - 1e-9]
        if fits:
            free[fits[0]] -= share
        else:
            free.append(1.0 - share)
    return len(free)


@pytest.mark.parametrize(("gpus", "cpus"), MACHINES)
def test_every_gpu_gets_an_actor(digits: Settings, gpus: int, cpus: int) -> None:
    cohorts = (1, 3, 5, 20, 1000)
    for each, server, cohort in itertools.product((1, 4), (False, True), cohorts):
        config = placed(digits, resources={"cpus_per_actor": each})
        plan = make_plan(config, 1000, cohort, {"GPU": gpus, "CPU": cpus}, trains_at_server=server)
        shares = [plan.gpus_per_actor] * plan.actors + [plan.server_gpu] * bool(plan.server_gpu)
        assert plan.actors * each <= cpus and busy(shares) <= gpus
        most = min(gpus, cohort + bool(plan.server_gpu), cpus // each + server)
        assert busy(shares) >= most, plan


def test_several_nodes_are_filled_each(digits: Settings) -> None:
    nodes = [{"CPU": 4.0, "GPU": 4.0}, {"CPU": 16.0, "GPU": 4.0}, {"CPU": 64.0}]
    plan = make_plan(placed(digits), 100, 100, {"CPU": 84, "GPU": 8}, nodes)
    assert plan.gpus_per_actor == 1.0  # four actors on the first node's four GPUs
    assert plan.actors == 8


@pytest.mark.parametrize(("gpus", "cpus"), MACHINES)
def test_every_gpu_gets_an_actor_of_a_sweep(digits: Settings, gpus: int, cpus: int) -> None:
    config = placed(digits)
    for trials in (1, 3, 9, 40):
        resources = TrialResources({"CPU": cpus, "GPU": gpus}, trials, "auto")
        bundles = resources.bundles(config)
        each = sum(bundle.get("CPU", 0.0) for bundle in bundles)
        at_once = min(resources.slots, trials)
        shares = [bundle["GPU"] for bundle in bundles if "GPU" in bundle] * at_once
        assert each * at_once <= cpus and busy(shares) <= gpus
        # What trials of equal size leave over is less than one more actor for each of them.
        most = min(gpus, cpus)
        assert busy(shares) >= min(most, at_once * max(1, most // at_once)), (bundles, at_once)


def test_a_server_that_trains_has_a_share_of_its_own(digits: Settings) -> None:
    config = placed(digits)
    plan = make_plan(config, 20, 20, {"CPU": 8, "GPU": 1}, trains_at_server=True)
    assert (plan.actors, plan.gpus_per_actor, plan.server_gpu) == (3, 0.25, 0.25)
    assert str(plan).endswith("; the server trains on 0.25 GPU")
    assert not make_plan(config, 20, 20, {"CPU": 8}, trains_at_server=True).server_gpu


AT_THE_SERVER: Settings = {"algorithm": {"name": "feddf", "steps": 2, "public_size": 40}}
AT_THE_SERVER["public"] = {"name": "digits-sklearn", "samples": 40}
"""A method whose server trains."""


def test_a_server_away_from_gpus(digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the driver's node, as in a sweep, it may be anywhere."""
    nodes = [{"id": "head", "CPU": 4.0}, {"id": "other", "CPU": 4.0, "GPU": 1.0}]
    monkeypatch.setattr(placement, "node_resources", lambda: nodes)
    monkeypatch.setattr(placement, "should_probe", lambda spec, nodes: False)
    spec = build_spec(placed(digits, **AT_THE_SERVER))
    here = 0.0, 4, "trains on a CPU: the node of the driver, where it is, has no GPU"
    there = 0.25, 3, "trains on 0.25 GPU"
    for driver, (share, actors, words) in {"head": here, "other": there, "": there}.items():
        plan = placement.PoolPlanner(spec, {"CPU": 8, "GPU": 1}, driver).plan()
        found = plan.server_gpu, plan.actors, plan.gpus_per_actor
        assert found == (share, actors, 0.25), driver
        assert str(plan).endswith(f"; the server {words}")


@pytest.mark.slow
def test_actors_and_server_are_where_the_plan_has_them(digits: Settings) -> None:
    """On two GPUs that are not there; an actor that finds none although Ray gave it one says so."""
    config = placed(digits, **AT_THE_SERVER)
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
        actor = ray.remote(ClientActor).options(num_gpus=1, runtime_env=blind).remote(spec)
        with pytest.raises(DataError, match=r"torch .* sees none: install a build of torch"):
            ray.get(actor.describe.remote())


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_actors_of_a_trial_leave_its_server_s_bundle(tmp_cwd: Path, digits: Settings) -> None:
    """One that was put there would never start, and the others would do its work."""
    resources = {"executor": "ray", "actors": 2, "gpus_per_actor": 0.25}
    faults = {"round_timeout": 3600}  # with a limit all actors are waited for
    content = {**digits, **AT_THE_SERVER, "rounds": 2, "resources": resources, "faults": faults}
    with joined_cluster({"num_cpus": 3, "num_gpus": 1}):
        result = api.tune({"experiment": content, "sweep": {"seeds": [0]}})
    events = rounds_of(read_events(next((result.folder / "trials").iterdir())))
    assert {"memory/peak/actor/0", "memory/peak/actor/1"} <= events[2].keys()


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_an_actor_of_a_trial_that_sees_no_gpu_ends_it_at_once(
    tmp_cwd: Path, digits: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLRAY_FAKE_GPUS", "0")
    resources = {"executor": "ray", "actors": 2, "gpus_per_actor": 0.25}
    with joined_cluster({"num_cpus": 3, "num_gpus": 1}):
        result = api.tune(
            {"experiment": {**digits, "resources": resources}, "sweep": {"seeds": [0]}}
        )
    (trial,) = (result.folder / "trials").iterdir()
    assert directory.read(trial)["failure"].startswith(
        "Ray has given this process a GPU, and torch"
    )


SETTINGS = """
import json, os, sys, torch
from types import SimpleNamespace
from flray.devices import make_repeatable
capped = []
torch.cuda.get_device_properties = lambda device: SimpleNamespace(total_memory=16 * 2**30)
torch.cuda.set_per_process_memory_fraction = lambda share, device: capped.append(share)
for device, tf32, share, fast in (("cpu", False, 1.0, True), ("cuda", False, 1.0, True),
                                  ("cuda", False, 1.0, False), ("cuda", True, 0.25, False)):
    make_repeatable(torch.device(device), tf32=tf32, share=share, fast=fast)
    print(json.dumps([
        torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32, os.environ.get("CUBLAS_WORKSPACE_CONFIG"), capped]))
"""
OTHER = {**ONE, "model": "Other"}


@pytest.mark.slow
def test_a_gpu_computes_repeatably_and_in_full_precision_unless_it_is_asked_not_to() -> None:
    cpu, fast, cuda, tf32 = map(json.loads, python(SETTINGS).stdout.splitlines())
    assert cpu[:3] == [False, False, False]
    assert fast == [False, False, True, False, False, ":4096:8", []]
    assert cuda == [True, True, False, False, False, ":4096:8", []]
    assert tf32 == [True, True, False, True, True, ":4096:8", [0.25 - 0.5 / 16]]


def test_fast_bits_say_what_they_give_up_where_there_is_a_gpu(digits: Settings) -> None:
    digits["resources"] = {"executor": "inline"}
    native = inline_digest(built(digits))
    spec = built({**digits, "resources": {"executor": "inline", "bits": "fast"}})
    assert spec.repeatable == {"tf32": False, "fast": True}
    assert spec.check_gpus([]) == ""
    assert "flray verify may have other last bits" in spec.check_gpus([ONE])
    assert inline_digest(spec) == native  # on a CPU nothing changes


def test_kinds_of_gpu_are_compared_by_all_that_the_bits_depend_on() -> None:
    assert not devices.difference([ONE, OTHER], [OTHER, ONE, ONE])
    assert not devices.difference([], [])
    for name in ONE:
        assert devices.difference([ONE], [{**ONE, name: "2"}])
    words = "began on no GPU, and here computes on One (driver 580.1"
    assert words in devices.difference([], [ONE])


def interrupted(digits: Settings) -> Path:
    """Return a run that is one round short."""
    result = flray.run({"experiment": {**digits, "resources": {"executor": "inline"}}})
    directory.update(result.folder, status="interrupted")
    for file in (result.folder / "checkpoint").glob("round-000003*"):
        file.unlink()
    return result.folder


def test_gpus_of_a_resume(tmp_cwd: Path, digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flray.devices.gpu_identity", lambda device: ONE)
    folder = interrupted(digits)
    noted = directory.read(folder)
    assert noted["gpus"] == [ONE]
    monkeypatch.setattr("flray.devices.gpu_identity", lambda device: OTHER)
    refused(flray.resume, folder)
    result = flray.resume(folder, other_cpu=True)
    assert result.sha256 == noted["sha256"] and directory.read(folder)["other_gpus"] == [[OTHER]]


def test_older_runs_go_on(tmp_cwd: Path, digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = interrupted(digits)
    noted = directory.read(folder)
    assert noted.pop("gpus") == []
    directory.write(folder, "run", noted)
    monkeypatch.setattr("flray.devices.gpu_identity", lambda device: ONE)
    assert flray.resume(folder).sha256 == noted["sha256"]
    assert directory.read(folder)["gpus"] == [ONE]
