"""A device without memory, or one that has failed, is no fault of the client's. No GPU is needed."""

from pathlib import Path
from typing import Any

import pytest
import torch

import flray
from flray import registry, trees
from flray.algorithms.base import Algorithm, Server
from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch
from flray.config.loader import load
from flray.devices import CONTEXT_BYTES
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation
from flray.federation.messages import describe_failure
from flray.federation.ray_backend import nodes
from flray.federation.ray_backend.nodes import Gpu, ResourceSurvey, measure_footprint
from flray.federation.ray_backend.placement import make_plan
from flray.federation.worker.client_runner import ClientRunner, InlineExecutor
from flray.tuning.trial import TRANSIENT_ERRORS
from tests.algorithms.helpers import federation_of, spec_of
from tests.end_to_end.pool import Pools
from tests.helpers import Settings, built
from tests.messages import refused

GIB = 2**30


@registry.register_algorithm("meets-errors")
class MeetsErrors(Algorithm):
    """FedAvg, to one client or (-1) to all of which a device's errors come, as many as a file says."""

    class Params(registry.Params):
        file: str = registry.hyper("", "where the errors to come are counted", "our choice")
        error: str = registry.hyper("OutOfMemoryError", "of torch", "our choice")
        client: int = registry.hyper(1, "whose", "our choice")

    hp: Params

    def meet(self) -> None:
        left = Path(self.hp.file)
        if count := int(left.read_text()):
            left.write_text(str(count - 1))
            raise getattr(torch, self.hp.error)("injected")

    def loss(self, client: Client, batch: Batch) -> torch.Tensor:
        if self.hp.client in (client.id, -1):
            self.meet()
        return super().loss(client, batch)


@registry.register_algorithm("server-meets-errors")
class ServerMeetsErrors(MeetsErrors):
    """FedAvg whose server would train, and meets a device's errors in its second round."""

    trains_at_server = True

    def refine(self, server: Server) -> None:
        if server.round == 1:
            self.meet()
        super().refine(server)


def method(tmp_path: Path, errors: int, **options: Any) -> dict[str, Any]:
    left = tmp_path / "left"
    left.write_text(str(errors))
    return {"name": "meets-errors", "file": str(left), **options}


def test_one_error_is_forgotten_and_two_are_told(tmp_path: Path) -> None:
    """In one line: no traceback helps a user whose batch has no room."""
    digests = []
    for errors in (0, 1):
        federation = federation_of(spec_of(method(tmp_path, errors)))
        federation.step()
        digests.append(federation.sha256())
    assert digests[0] == digests[1]
    assert "\n" not in str(refused(federation_of(spec_of(method(tmp_path, 2))).step))


def test_of_a_gpu_s_words_those_on_memory_are_told() -> None:
    said = "CUDA out of memory. Tried to allocate 1.22 GiB. GPU 0 has a total capacity of 79.18 GiB"
    failure = describe_failure(torch.OutOfMemoryError(f"{said} and more.\nC++ frames"))
    assert failure.what.startswith("out of memory (CUDA out of memory. Tried to allocate 1.22 GiB)")
    assert failure.trace == ""


@pytest.mark.parametrize(("error", "count"), [("OutOfMemoryError", 2), ("AcceleratorError", 1)])
def test_a_trial_gets_the_error_and_is_tried_again(tmp_path: Path, error: str, count: int) -> None:
    spec = spec_of(method(tmp_path, count, error=error))
    caught = refused(federation_of(spec, InlineExecutor(spec, exhausted="raise")).step)
    assert isinstance(caught.__cause__, getattr(torch, error))
    assert issubclass(getattr(torch, error), TRANSIENT_ERRORS)


@pytest.mark.slow
def test_a_lost_task_runs_elsewhere(tmp_path: Path, digits: Settings, pools: Pools) -> None:
    whole, own = (built(digits, algorithm=one) for one in ("fedavg", method(tmp_path, 2)))
    nodes.ship_user_modules()
    federation, inline = pools[2].federation(own), inline_federation(whole, print)
    federation.step()
    inline.step()
    assert federation.sha256() == inline.sha256() and (tmp_path / "left").read_text() == "0"


def test_the_heaviest_round_counts(digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int, int]] = []
    run = ClientRunner.run

    def watched(self: ClientRunner, job: Any) -> Any:
        task, private = job.client_task, job.private
        peers = len(trees.unpack(private)["models"]) if private is not None else 0
        result = run(self, job)
        seen.append((task.kind, task.round, peers, int(result[0].metrics.get("steps", 0))))
        return result

    monkeypatch.setattr(ClientRunner, "run", watched)
    monkeypatch.setattr("flray.devices.reserved_bytes", lambda device: GIB)
    own = {"algorithm": "fedfomo", "evaluation": {"validation": 0.3, "every": 5}}
    partition, local = {"name": "iid", "clients": 9}, {"epochs": 2, "batch_size": 8}
    spec = built(digits, **own, partition=partition, local=local)
    assert measure_footprint(spec, torch.device("cpu")).gpu == int(1.2 * GIB) + CONTEXT_BYTES
    assert seen == [("stage", 0, 0, 2), ("stage", 1, 5, 2), ("personal", 2, 0, 0)]


def test_no_room_ends_early(tmp_path: Path, digits: Settings, ray_here: dict[str, float]) -> None:
    found = measure_footprint(spec_of(method(tmp_path, 2, client=-1)), torch.device("cpu"))
    assert found.problem == "injected"
    spec = built(digits, algorithm=method(tmp_path, 2, client=-1))
    refused(nodes.survey_nodes, spec, nodes.node_resources())


def test_a_task_that_could_not_be_measured_has_its_gpu_alone(
    digits: Settings, ray_here: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flray.federation.ray_backend.nodes.GPU_PROBE_TIMEOUT_S", 0.01)
    config = load({"experiment": digits}).experiment
    survey = nodes.survey_nodes(build_spec(config), nodes.node_resources())
    plan = make_plan(config, 20, 20, {"CPU": 8, "GPU": 2}, survey=survey)
    assert (plan.actors, plan.gpus_per_actor) == (2, 1.0)
    why = "(what an actor takes could not be measured, not within 0.01 s, so no GPU is shared)"
    assert str(plan).endswith(why)
    asked = load({"experiment": {**digits, "resources": {"actors": 4}}}).experiment
    refused(make_plan, asked, 20, 20, {"CPU": 8, "GPU": 2}, survey=survey)


def test_the_node_that_needs_most_and_the_gpu_with_least_count(digits: Settings) -> None:
    large = ResourceSurvey(GIB, 2 * GIB, (Gpu("a", 0, 80 * GIB),))
    small = ResourceSurvey(GIB, 3 * GIB, (Gpu("b", 0, 8 * GIB),))
    config = load({"experiment": digits}).experiment
    survey = nodes.joined([large, small])
    plan = make_plan(config, 20, 20, {"CPU": 16, "GPU": 2}, survey=survey)
    assert (plan.gpus_per_actor, plan.measured) == (0.5, 3 * GIB)


@pytest.mark.slow
def test_a_server_whose_device_fails_goes_on_in_a_new_process(
    tmp_path: Path, tmp_cwd: Path, digits: Settings, ray_here: dict[str, float]
) -> None:
    found = []
    for errors, resources in ((0, {"executor": "inline"}), (1, {"actors": 1})):
        how = {"name": "server-meets-errors", "error": "AcceleratorError", "client": 99}
        own = {**method(tmp_path, errors), **how}
        result = flray.run({"experiment": digits}, algorithm=own, rounds=2, resources=resources)
        found.append(result.sha256)
    assert found[0] == found[1] and (tmp_path / "left").read_text() == "0"
