"""Samplers: every method, the same bits whatever dies, and what clients are only asked is counted."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray import register_sampler, rng
from flray.federation import checkpoint
from flray.federation.federation import Federation
from flray.samplers import Sampling, choose, power_of_choice
from tests.algorithms import helpers as tiny
from tests.end_to_end.pool import Pools
from tests.messages import refused

POWER = {"name": "power-of-choice", "candidates": 4}
SIZES = (12, 9, 15, 6, 10)
Answers = dict[int, dict[str, float]]


@register_sampler("in-turn")
def in_turn(sampling: Sampling) -> Sequence[int]:
    """Those who were longest without, which takes a memory."""
    first = sampling.state.get("next", 0)
    sampling.state["next"] = (first + sampling.size) % len(sampling.clients)
    return [(first + i) % len(sampling.clients) for i in range(sampling.size)]


ANSWERS: dict[str, Any] = {
    "nothing": [],
    "none": None,
    "a-text": "ab",
    "a-number": 7.5,
    "twice": [1, 1],
    "nobody": [9],
    "negative": [-1],
    "floats": [0.0, 1.0],
    "a-mask": [True, False, True, False, False],
}


@register_sampler("answers")
def answers(sampling: Sampling, *, key: str) -> Any:
    return ANSWERS[key]


ASKED: list[Answers] = []


@register_sampler("asks")
def asks(sampling: Sampling, *, whom: list[list[int]]) -> Sequence[int]:
    ASKED.extend(sampling.ask(numbers) for numbers in whom)
    return [0]


def federation(sampler: Any, method: str = "fedavg", **settings: Any) -> Federation:
    participation = {"clients": 2, "sampler": sampler, **settings.pop("participation", {})}
    clients = tiny.gaussian_clients(SIZES)
    return tiny.fresh(method, clients, participation=participation, **settings)


def test_uniform_is_the_default_and_a_permutation_by_seed_and_round() -> None:
    made = federation("uniform")
    for number in range(3):
        made.step()
        order = rng.numpy_generator(0, "sampling", round=number).permutation(5)
        assert made.server.cohort == sorted(order[:2].tolist())
    assert tiny.spec_of("fedavg").config.participation.sampler.name == "uniform"


def test_power_of_choice_takes_the_candidates_with_the_largest_loss() -> None:
    asked: list[list[int]] = []
    losses = [0.3, 0.1, 0.5, 0.2, 0.4]

    def ask(numbers: Any) -> Answers:
        asked.append(list(numbers))
        return {n: {"loss": losses[n]} for n in asked[-1]}

    clients = federation("uniform").server.clients
    for seed in range(20):
        sampling = Sampling(0, 2, clients, np.random.default_rng(seed), {}, ask)
        chosen = choose("power-of-choice", partial(power_of_choice, candidates=3), sampling)
        assert len(asked[-1]) == 3
        assert chosen == sorted(sorted(asked[-1], key=lambda n: -losses[n])[:2])
    often = np.bincount(np.concatenate(asked), minlength=5)
    assert often[2] > often[3], "15 samples against 6"


def test_an_answer_is_the_loss_of_the_global_model_on_the_training_samples() -> None:
    """Asked again, a client answers the same, and is counted once."""
    ASKED.clear()
    made = federation({"name": "asks", "whom": [[0, 3], [3, 1]]}, local={"epochs": 0})
    metrics = made.step().metrics
    given, again = ASKED
    # Training and test samples of the hand-made clients are the same, and without an epoch the model stays.
    for client in (0, 3):
        for name in ("loss", "accuracy"):
            measured = metrics[f"global/local/{name}/client/client{client}"]
            assert given[client][name] == pytest.approx(measured, abs=1e-12)
    assert again.keys() == {1, 3} and again[3] == given[3]
    assert metrics["cohort/size"] == 1 and metrics["cohort/asked"] == 2
    refused(federation({"name": "asks", "whom": [[7]]}).step)


def test_bytes_of_those_who_were_only_asked_count_apart_and_in_the_sum() -> None:
    plain, asking = federation("uniform").step().metrics, federation(POWER).step().metrics
    model = plain["bytes/down"] / 2
    numbers = 8 * 2  # loss and accuracy
    assert not {"bytes/asked", "cohort/asked", "time/ask"} & plain.keys()
    assert asking["cohort/asked"] == 2 and asking["time/ask"] > 0
    assert asking["bytes/asked"] == 2 * model + 4 * numbers
    assert asking["bytes/down"] == 4 * model, "the two who take part get it once"
    assert asking["bytes/up"] == plain["bytes/up"] + 4 * numbers


def test_who_drops_out_does_not_answer() -> None:
    made = federation({"name": "power-of-choice", "candidates": 5}, participation={"dropout": 0.4})
    for number in range(6):
        drops = rng.numpy_generator(0, "dropouts", round=number).random(5)
        made.step()
        assert all(drops[client] >= 0.4 for client in made.server.cohort)


@pytest.mark.parametrize("sampler", ["in-turn", POWER], ids=str)
def test_a_resumed_federation_chooses_as_one_that_was_not(sampler: Any, tmp_path: Path) -> None:
    whole, again = federation(sampler), federation(sampler)
    cohorts, found = [], []
    for number in range(4):
        if number == 2:
            checkpoint.save(whole, tmp_path)
        whole.step()
        cohorts.append(whole.server.cohort)
    checkpoint.restore(again, tmp_path)
    for _ in range(2):
        again.step()
        found.append(again.server.cohort)
    assert found == cohorts[2:] and again.sha256() == whole.sha256()
    assert sampler != "in-turn" or cohorts == [[0, 1], [2, 3], [0, 4], [1, 2]]


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_actors_give_the_bits_and_values_of_one_process(pools: Pools, method: str) -> None:
    """Of clients that are chosen by their loss, minimise another one, and of one that is kept out."""
    settings: dict[str, Any] = {"model": tiny.DROPOUT, "evaluation": {"adapt_steps": 2}}
    settings["local"] = {"loss": {"name": "focal", "gamma": 1, "weights": "balanced"}}
    made = federation(POWER, method, participation={"unseen": ["client1"]}, **settings)
    assert "adapted/unseen/loss" in pools[2].same_as_inline(made.spec)[1]


@pytest.mark.parametrize("key", ANSWERS)
def test_a_wrong_answer_is_refused_in_one_line(key: str) -> None:
    refused(federation({"name": "answers", "key": key}).step)
