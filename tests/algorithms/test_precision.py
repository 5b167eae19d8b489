"""``local.precision`` and ``local.compile``: what they may change, whatever the method."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils

from flray import registry
from flray.algorithms.base import Algorithm
from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch
from flray.federation import checkpoint
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from flray.tasks import Classification
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN, Permuted


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_keeps_its_weights_and_outputs_in_float32(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[torch.dtype] = set()
    loss = Classification.loss

    def watched(self: Classification, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.add(outputs.dtype)
        value = loss(self, outputs, targets)
        seen.add(value.dtype)
        return value

    monkeypatch.setattr(Classification, "loss", watched)
    digests = []
    for precision in ("float32", "bfloat16"):
        federation = tiny.run(
            name, rounds=2, local={"precision": precision}, **tiny.settings_for(name)
        )
        values = [v for weights in federation.server.models.values() for v in weights.values()]
        assert {v.dtype for v in values} <= {torch.float32, torch.int64}
        assert all(bool(torch.isfinite(v).all()) for v in values)
        digests.append(federation.sha256())
    assert seen <= {torch.float32}
    assert digests[0] != digests[1], "it did not reach the network"


@registry.register_algorithm("noting-types")
class NotingTypes(Algorithm):
    """FedAvg that tracks how wide its features, gradients and velocity are."""

    def step(self, client: Client, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        super().step(client, batch, optimizer)
        tensors = [
            batch.features,
            *(p.grad for p in client.parameters.values()),
            *(state["momentum_buffer"] for state in optimizer.state.values()),
        ]
        client.log("bytes", max(t.element_size() for t in tensors if t is not None))
        client.log("least_bytes", min(t.element_size() for t in tensors if t is not None))


def test_features_gradients_and_velocity_are_float32() -> None:
    local = {"precision": "bfloat16", "momentum": 0.9}
    metrics = tiny.fresh("noting-types", local=local).step().metrics
    assert metrics["train/bytes"] == metrics["train/least_bytes"] == 4


# Of FedAvg, of a frozen half and then the other, of gradients at other parameters and of a hook
# into the network.
METHODS = ("fedavg", "fedrep", "perfedavg", "fedrcl")


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("ATEN_CPU_CAPABILITY") == "default",
    reason="torch 2.13's compiler writes C++ that does not compile where vectors are turned off",
)
@pytest.mark.parametrize("name", METHODS)
def test_compiled_runs_repeat_resume_and_stay_near(name: str, tmp_path: Path) -> None:
    def federation(compile: bool, executor: Any = InlineExecutor) -> Federation:
        spec = tiny.spec_of(name, local={"compile": compile, "momentum": 0.9})
        return tiny.federation_of(spec, executor(spec))

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain, permuted = federation(False), federation(True, Permuted)
    fast, resumed = federation(True), federation(True)
    for number in range(3):
        for each in (plain, fast, permuted):
            each.step()
        if number == 0:
            checkpoint.save(fast, tmp_path)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == 1 if name == "fedrcl" else graphs >= 2, (
        "FedRCL's hooks are in the features: the classifier alone"
    )
    assert checkpoint.restore(resumed, tmp_path) == 1
    resumed.step()
    resumed.step()
    assert fast.sha256() == permuted.sha256() == resumed.sha256()
    for entry, value in fast.server.model.items():
        tiny.close(value, plain.server.model[entry])
