"""A device without memory, or one that has failed, is no fault of the client's. No GPU is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flray
from flray import registry
from flray.algorithms.base import Algorithm
from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch
from flray.errors import FlrayError
from flray.federation.executor import InlineExecutor
from flray.tuning.trial import TRANSIENT_ERRORS
from tests.algorithms.helpers import federation_of, spec_of


@registry.register_algorithm("meets-errors")
class MeetsErrors(Algorithm):
    """FedAvg, to whose second client a device's errors come, as many as a file says."""

    class Params(registry.Params):
        file: str = registry.hyper("", "where the errors to come are counted", "our choice")
        error: str = registry.hyper("OutOfMemoryError", "of torch", "our choice")

    hp: Params

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Raise as long as errors are left."""
        left = Path(self.hp.file)
        if client.id == 1 and (count := int(left.read_text())):
            left.write_text(str(count - 1))
            raise getattr(torch, self.hp.error)("injected")
        return super().loss(client, batch)


def method(tmp_path: Path, errors: int, error: str = "OutOfMemoryError") -> dict[str, Any]:
    (tmp_path / "left").write_text(str(errors))
    return {"name": "meets-errors", "file": str(tmp_path / "left"), "error": error}


def test_one_error_is_forgotten_and_two_are_told(tmp_path: Path) -> None:
    digests = []
    for errors in (0, 1):
        federation = federation_of(spec_of(method(tmp_path, errors)))
        federation.step()
        digests.append(federation.sha256())
    assert digests[0] == digests[1]
    with pytest.raises(
        FlrayError, match=r"client 1 .*out of memory \(OutOfMemoryError: injected\)"
    ):
        federation_of(spec_of(method(tmp_path, 2))).step()


@pytest.mark.parametrize(("error", "count"), [("OutOfMemoryError", 2), ("AcceleratorError", 1)])
def test_a_trial_gets_the_error_itself_and_is_tried_again(
    tmp_path: Path, error: str, count: int
) -> None:
    spec = spec_of(method(tmp_path, count, error))
    with pytest.raises(FlrayError) as caught:
        federation_of(spec, InlineExecutor(spec, exhausted="raise")).step()
    assert isinstance(caught.value.__cause__, getattr(torch, error))
    assert issubclass(getattr(torch, error), TRANSIENT_ERRORS)


@pytest.mark.slow
@pytest.mark.parametrize(("error", "count"), [("OutOfMemoryError", 2), ("AcceleratorError", 1)])
def test_an_actor_ends_and_its_task_is_run_elsewhere(
    tmp_path: Path,
    tmp_cwd: Path,
    digits: dict[str, Any],
    ray_here: dict[str, float],
    error: str,
    count: int,
) -> None:
    found = [
        flray.run(
            {"experiment": digits}, algorithm=method(tmp_path, errors, error), rounds=1
        ).sha256
        for errors in (0, count)
    ]
    assert found[0] == found[1]
    assert (tmp_path / "left").read_text() == "0"
