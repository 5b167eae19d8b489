"""How much and how fast a client trains in a round: `local.schedule`, `warmup`, `steps` and parts of an epoch."""

import math
from pathlib import Path
from typing import Any

import pytest

from flray.algorithms.client import learning_rate
from flray.config.experiment import Local, Participation
from flray.federation import checkpoint
from flray.runs.resume_checks import check_extendable
from tests.algorithms import helpers as tiny
from tests.messages import refused


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


@pytest.mark.parametrize(
    ("sizes", "local", "steps"),
    [
        # Batches of 4: an epoch has 3, 2 (a last one of one sample is left out) and 4 of them.
        ((12, 9, 15), {"steps": 1}, 3),
        ((12, 9, 15), {"steps": 2}, 6),
        ((12, 9, 15), {"steps": 5}, 15),
        # Half of 3 batches is 2 that are begun.
        ((12,), {"epochs": 0.5}, 2),
        ((12,), {"epochs": 0.1}, 1),
        ((12,), {"epochs": 1.5}, 5),
        ((12,), {"epochs": 2.0}, 6),
        ((60,), {"epochs": 0.1, "batch_size": 2}, 3),
    ],
)
def test_so_many_steps_are_taken(sizes: Any, local: dict[str, Any], steps: int) -> None:
    federation = tiny.run("fedavg", tiny.gaussian_clients(sizes), local=local)
    result = federation.wait_for_round()
    assert result is not None and result.metrics["train/steps"] == steps


def test_as_many_steps_as_epochs_have_give_the_same_bits() -> None:
    clients = tiny.gaussian_clients((12, 12, 12))
    epochs, steps, fewer = (
        tiny.run("fedavg", clients, rounds=2, local=local).sha256()
        for local in ({"epochs": 2}, {"steps": 6}, {"steps": 5})
    )
    assert epochs == steps != fewer


def test_a_slow_client_does_its_share_of_the_steps() -> None:
    slow = {"stragglers": 1.0, "straggler_work": 0.5}
    two = tiny.gaussian_clients((12, 12))
    federation = tiny.run("fedavg", two, local={"steps": 4}, participation=slow)
    result = federation.wait_for_round()
    assert result is not None and result.metrics["train/steps"] == 2 * 2


def test_a_schedule_that_depends_on_the_number_of_rounds_is_not_extended() -> None:
    refused(check_extendable, tiny.spec_of("fedavg", rounds=4, local={"schedule": "cosine"}), 2)
    check_extendable(tiny.spec_of("fedavg", rounds=4, local={"warmup": 2}), 3)


def test_whole_numbers_stay_what_they_are() -> None:
    settings = [Local(epochs=value).model_dump(mode="json") for value in (2, 2.0)]
    assert settings[0] == settings[1] and repr(settings[0]["epochs"]) == "2"


def works(federation: Any) -> dict[str, float]:
    """Return what a round tracks of each client's share of the work."""
    result = federation.step()
    prefix = "train/work/client/"
    return {k.removeprefix(prefix): v for k, v in result.metrics.items() if k.startswith(prefix)}


def test_single_clients_do_their_share_of_the_epochs() -> None:
    """12 samples in batches of 4: 3 steps an epoch; a product such as 0.1 * 30 gains no step."""
    four = tiny.gaussian_clients((12, 12, 12, 12))
    share = {"work": {"client0": 0.1, "client1": 0.3, "client2": 0.7}}
    federation = tiny.fresh("fedavg", four, local={"epochs": 10}, participation=share)
    metrics = federation.step().metrics
    assert metrics["train/steps"] == 3 + 9 + 21 + 30
    assert metrics["cohort/slow"] == 3 and metrics["cohort/dropped"] == 0
    assert works(federation) == {"client0": 0.1, "client1": 0.3, "client2": 0.7, "client3": 1.0}
    all_of_it = {"work": {"client0": 1.0}}
    plain, same = (tiny.run("fedavg", four, participation=one).sha256() for one in ({}, all_of_it))
    assert plain == same
    found = tiny.run("fedavg", four).step().metrics
    assert not [name for name in found if "work" in name or name == "cohort/slow"]


def test_single_clients_do_epochs_of_their_own() -> None:
    """12 samples in batches of 4: 3 steps an epoch; as many as local.epochs are the bits of none of their own."""
    four = tiny.gaussian_clients((12, 12, 12, 12))
    own = {"client0": {"epochs": 2}, "client1": {"epochs": 20}, "client2": {"epochs": 0.5}}
    federation = tiny.fresh("fedavg", four, local={"epochs": 5}, participation={"work": own})
    metrics = federation.step().metrics
    assert metrics["train/steps"] == 6 + 60 + 2 + 15 and metrics["cohort/slow"] == 2
    assert works(federation) == {"client0": 0.4, "client1": 4.0, "client2": 0.1, "client3": 1.0}
    for epochs in (2, 5, 7):
        all_of_them = {"work": {f"client{number}": {"epochs": epochs} for number in range(4)}}
        run = tiny.run("scaffold", four, local={"epochs": 5}, participation=all_of_them)
        assert run.sha256() == tiny.run("scaffold", four, local={"epochs": epochs}).sha256()
    more = {"work": {"client1": {"epochs": 20}}}
    found = tiny.fresh("fedavg", four, participation=more).step().metrics
    assert found["train/work/client/client1"] == 20 and found["cohort/slow"] == 0


def test_slow_clients_draw_whole_epochs_as_fedprox_has_it(tmp_path: Path) -> None:
    """A tenth of 5 epochs never happens; each number of epochs does, anew in each round, and again at a resume."""
    many = tiny.gaussian_clients((4,) * 12)
    drawn = {"stragglers": 0.9, "straggler_work": "drawn"}
    settings = {"local": {"epochs": 5}, "participation": drawn}
    federation = tiny.fresh("fedprox", many, **settings)
    rounds = [works(federation) for _ in range(4)]
    seen = {share for each in rounds for share in each.values()}
    assert seen == {0.2, 0.4, 0.6, 0.8, 1.0} and rounds[0] != rounds[1]
    again = tiny.fresh("fedprox", many, **settings)
    assert [works(again) for _ in range(2)] == rounds[:2]
    checkpoint.save(again, tmp_path)
    resumed = tiny.federation_of(again.spec)
    assert checkpoint.restore(resumed, tmp_path) == 2
    assert [works(resumed) for _ in range(2)] == rounds[2:]
    assert resumed.sha256() == federation.sha256()
    fewer = {**drawn, "straggler_work": 0.5}
    assert set(works(tiny.fresh("fedprox", many, participation=fewer)).values()) <= {0.5, 1.0}


def test_who_dropped_out_is_tracked() -> None:
    many = tiny.gaussian_clients((4,) * 12)
    federation = tiny.fresh("fedavg", many, participation={"dropout": 0.5})
    metrics = federation.step().metrics
    dropped = {n for n, v in metrics.items() if n.startswith("train/work/client/") and not v}
    assert metrics["cohort/dropped"] == len(dropped) == 12 - metrics["cohort/size"] > 0


def test_shares_that_mean_nothing_are_refused() -> None:
    refused(tiny.spec_of, "fedavg", participation={"work": {"client7": 0.5}})
    refused(tiny.spec_of, "pooled", participation={"work": {"client1": 0.5}})
    for epochs in (1, 2.5):
        drawn = {"straggler_work": "drawn", "stragglers": 0.5}
        refused(tiny.spec_of, "fedavg", local={"epochs": epochs}, participation=drawn)
    for wrong in ({"work": {"client0": 0}}, {"work": {"client0": 1.5}}, {"work": 0.5}):
        refused(tiny.spec_of, "fedavg", participation=wrong)
    refused(tiny.spec_of, "fedavg", participation={"straggler_work": "draw"})
    for epochs in (0, "many", None):
        own = {"work": {"client0": {"epochs": epochs}}}
        refused(tiny.spec_of, "fedavg", participation=own)
    own = {"work": {"client0": {"epochs": 2}}}
    for local in ({"epochs": 0}, {"epochs": 0.5}, {"steps": 4}):
        refused(tiny.spec_of, "fedavg", local=local, participation=own)


def test_without_shares_settings_are_the_former_ones() -> None:
    assert "work" not in Participation().model_dump(mode="json")
    assert Participation(work={"a": 0.5}).model_dump(mode="json")["work"] == {"a": 0.5}
    own = Participation(work={"a": {"epochs": 2.0}})  # type: ignore[dict-item]
    assert repr(own.model_dump(mode="json")["work"]) == "{'a': {'epochs': 2}}"
    assert Participation().model_dump(mode="json")["straggler_work"] == 0.5
