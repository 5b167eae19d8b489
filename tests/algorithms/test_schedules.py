"""``local.schedule``, ``local.warmup`` and parts of an epoch."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flray import registry
from flray.algorithms.common.optimizers import learning_rate
from flray.config.experiment import Local
from flray.errors import ConfigError, FlrayError
from flray.federation.spec import FederationSpec
from flray.runs.extend import check_extendable
from tests.algorithms import helpers as tiny

BUILT_IN = sorted(set(registry.algorithms.names()) - set(registry.algorithms.added()))


def rates(rounds: int, **local: Any) -> list[float]:
    settings = Local(lr=0.4, **local)
    return [learning_rate(settings, round, rounds) for round in range(rounds)]


def test_the_learning_rate_of_each_round() -> None:
    assert rates(3) == [0.4, 0.4, 0.4]
    assert rates(3, lr_decay=0.5) == [0.4, 0.4 * 0.5, 0.4 * 0.25]
    assert rates(4, warmup=2) == [0.2, 0.4, 0.4, 0.4]
    half = math.sqrt(0.5)
    expected = [0.4, 0.2 * (1 + half), 0.2, 0.2 * (1 - half)]
    assert rates(4, schedule="cosine") == pytest.approx(expected, rel=1e-15)
    warm = [0.2, 0.4, *expected]
    assert rates(6, schedule="cosine", warmup=2) == pytest.approx(warm, rel=1e-15)


def test_one_step_is_as_long_as_the_rate_says() -> None:
    """One full batch of SGD: the update is proportional to the learning rate."""

    def moved(**local: Any) -> dict[str, Any]:
        options = {"steps": 1, "batch_size": 12, "lr": 0.1, **local}
        done = tiny.run("fedavg", tiny.gaussian_clients((12,)), local=options)
        start = tiny.run(
            "fedavg", tiny.gaussian_clients((12,)), local={**options, "epochs": 0, "steps": None}
        )
        (trained,) = start.server.parameter_names.values()
        return {n: done.server.model[n] - start.server.model[n] for n in trained}

    full, warm = moved(), moved(warmup=2)
    assert all((warm[n] - w / 2).abs().max() < 1e-6 for n, w in full.items())
    assert max(w.abs().max() for w in full.values()) > 1e-3


def spec(rounds: int = 4, **local: Any) -> FederationSpec:
    return tiny.spec_of("fedavg", rounds=rounds, local=local)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"experiment\.local\.warmup: found 4; there are 4 rounds"
    ):
        spec(warmup=4)
    with pytest.raises(FlrayError, match=r"local\.schedule: cosine, which depends"):
        check_extendable(spec(schedule="cosine"), 2)
    check_extendable(spec(warmup=2), 3)
    with pytest.raises(ConfigError, match=r"found 1\.5; fcclplus counts epochs .* a whole number"):
        tiny.spec_of({"name": "fcclplus", "epoch_optimizer": "fresh"}, local={"epochs": 1.5})


@pytest.mark.parametrize(("epochs", "batches"), [(0.5, 2), (0.1, 1), (1.5, 5), (2, 6), (2.0, 6)])
def test_parts_of_an_epoch(epochs: float, batches: int) -> None:
    """12 samples in batches of 4: an epoch has 3 of them, and half of one is 2 that are begun."""
    federation = tiny.run("fedavg", tiny.gaussian_clients((12,)), local={"epochs": epochs})
    result = federation.wait_for_round()
    assert result is not None and result.metrics["train/steps"] == batches


def test_a_tenth_of_thirty_is_three() -> None:
    federation = tiny.run(
        "fedavg", tiny.gaussian_clients((60,)), local={"epochs": 0.1, "batch_size": 2}
    )
    result = federation.wait_for_round()
    assert result is not None and result.metrics["train/steps"] == 3


def test_whole_numbers_stay_what_they_are() -> None:
    settings = [Local(epochs=value).model_dump(mode="json") for value in (2, 2.0)]
    assert settings[0] == settings[1] and repr(settings[0]["epochs"]) == "2"


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_takes_them(name: str) -> None:
    local = {"schedule": "cosine", "warmup": 1, "epochs": 1 if name == "l2sgd" else 0.5}
    federation = tiny.run(name, rounds=3, local=local, **tiny.settings_for(name))
    assert federation.rounds_done == 3
