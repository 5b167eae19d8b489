"""``local.steps``: so many optimiser steps per round, however many samples a client has."""

from __future__ import annotations

from typing import Any

import pytest

from flray import registry
from flray.errors import ConfigError
from tests.algorithms import helpers as tiny

BUILT_IN = sorted(set(registry.algorithms.names()) - set(registry.algorithms.added()))


def steps_of(**local: Any) -> tuple[float, dict[str, float]]:
    federation = tiny.run("fedavg", tiny.gaussian_clients((12, 9, 15)), local=local)
    result = federation.wait_for_round()
    assert result is not None
    return result.metrics["train/steps"], result.metrics


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_every_client_does_so_many(steps: int) -> None:
    """Batches of 4: an epoch has 3, 2 (a last one of one sample is left out) and 4 of them."""
    done, metrics = steps_of(steps=steps)
    assert done == 3 * steps
    if steps < 3:
        assert metrics["train/samples"] == 4 * done


def test_as_many_as_epochs_have_give_the_same_bits() -> None:
    clients = tiny.gaussian_clients((12, 12, 12))
    epochs = tiny.run("fedavg", clients, rounds=2, local={"epochs": 2})
    steps = tiny.run("fedavg", clients, rounds=2, local={"steps": 6})
    fewer = tiny.run("fedavg", clients, rounds=2, local={"steps": 5})
    assert epochs.sha256() == steps.sha256() != fewer.sha256()


def test_a_slow_client_does_its_share() -> None:
    slow = {"stragglers": 1.0, "straggler_work": 0.5}
    federation = tiny.run(
        "fedavg", tiny.gaussian_clients((12, 12)), local={"steps": 4}, participation=slow
    )
    result = federation.wait_for_round()
    assert result is not None and result.metrics["train/steps"] == 2 * 2


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_takes_it(name: str) -> None:
    settings = tiny.settings_for(name)
    federation = tiny.run(name, rounds=2, local={"steps": 2, "epochs": 7}, **settings)
    assert federation.rounds_done == 2


def test_epochs_that_are_counted_are_not_replaced() -> None:
    with pytest.raises(ConfigError, match=r"found 2; fcclplus counts epochs \(algorithm.epoch_opt"):
        tiny.spec_of({"name": "fcclplus", "epoch_optimizer": "fresh"}, local={"steps": 2})
    with pytest.raises(ConfigError, match=r"experiment.local.steps: found 2; with a coin"):
        tiny.spec_of({"name": "l2sgd", "coin": True}, local={"steps": 2})
