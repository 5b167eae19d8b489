"""``local.compile``: near the plain bits, the same bits again, whichever clients the process has trained before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils

from flray.federation import checkpoint
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import Permuted

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
    plain, fast, permuted, resumed = (
        federation(False),
        federation(True),
        federation(True, Permuted),
        federation(True),
    )
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
