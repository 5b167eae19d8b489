"""Samplers: every method, the same bits whatever dies; unseen clients: nothing of theirs is learnt by any method."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from flray import api, register_sampler, registry, rng
from flray.config.loader import load
from flray.federation import FederationSpec, checkpoint
from flray.federation.building import dataset_for
from flray.federation.federation import Federation
from flray.results.load import load_folder
from flray.results.sweep import build_table
from flray.samplers import Sampling, choose, power_of_choice
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN
from tests.end_to_end.pool import Pools
from tests.helpers import Settings, inline
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


MASK = [True, False, True, False, False]
ANSWERS: list[Any] = [[], None, "ab", 7.5, [1, 1], [9], [-1], [0.0, 1.0], MASK]


@register_sampler("answers")
def answers(sampling: Sampling, *, number: int) -> Any:
    return ANSWERS[number]


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
    model, numbers = plain["bytes/down"] / 2, 8 * 2  # loss and accuracy
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


@register_sampler("remembers-lists")
def remembers_lists(sampling: Sampling) -> Sequence[int]:
    sampling.state["last"] = [0, 1]
    return [0, 1]


def test_a_wrong_answer_and_a_memory_that_no_checkpoint_holds_are_refused(tmp_path: Path) -> None:
    for number in range(len(ANSWERS)):
        refused(federation({"name": "answers", "number": number}).step)
    made = federation("remembers-lists")
    made.step()
    refused(checkpoint.save, made, tmp_path, 1)


UNSEEN = ["client1", "client3"]
SHARING = [name for name in BUILT_IN if registry.algorithms.get(name).shared != "none"]


def spec_with(method: Any = "fedavg", unseen: Any = None, **settings: Any) -> FederationSpec:
    made = tiny.settings_for(method)
    participation = {"unseen": UNSEEN if unseen is None else unseen}
    participation |= settings.pop("participation", {})
    evaluation = {"adapt_steps": 3, **made.pop("evaluation", {}), **settings.pop("evaluation", {})}
    both = {"participation": participation, "evaluation": evaluation}
    return tiny.spec_of(method, tiny.gaussian_clients(SIZES), **both, **{**made, **settings})


def sent(executor: tiny.Noting) -> set[tuple[str, int]]:
    """Return which clients were sent which kind of task."""
    tasks = [job.client_task for call in executor.calls for block in call for job in block.jobs]
    return {(task.kind, task.client) for task in tasks}


def unseen_metrics(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if "/unseen/" in name}


@pytest.mark.parametrize("name", SHARING)
def test_no_method_learns_anything_of_them(name: str) -> None:
    spec = spec_with(name)
    executor = tiny.Noting(spec)
    federation = tiny.federation_of(spec, executor)
    x, y = spec.data.x.copy(), spec.data.y.copy()
    for client in spec.data.unseen:
        for rows in (client.train, client.val, client.test):
            x[rows], y[rows] = np.nan, 0
    blind = tiny.federation_of(replace(spec, data=replace(spec.data, x=x, y=y)))
    for _ in range(2):
        metrics = federation.step().metrics
        blind.step()
    assert {client for kind, client in sent(executor) if kind == "unseen"} == {3, 4}
    assert {client for kind, client in sent(executor) if kind != "unseen"} <= {-1, 0, 1, 2}
    assert federation.sha256() == blind.sha256()
    # What was trained without them in memory, and then tested on them, has the same values.
    later = tiny.federation_of(spec)
    states = {k: blind.executor.fetch(state) for k, state in enumerate(blind.states) if state}
    later.load_snapshot(blind.snapshot(), states, blind.versions)
    measured = unseen_metrics(metrics)
    assert unseen_metrics(later.evaluate()) == measured
    views = {"adapted"} | ({"global"} if "global" in spec.algorithm.views else set())
    assert {name.split("/")[0] for name in measured} == views
    for view in views:
        start = f"{view}/unseen/accuracy/client/"
        assert [one.removeprefix(start) for one in measured if one.startswith(start)] == UNSEEN
    own = [one for one in metrics if "/local/" in one]
    assert not any(f"/client/{who}" in one for one in own for who in UNSEEN)


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - set(SHARING)))
def test_a_method_that_shares_no_weights_says_so(name: str) -> None:
    refused(spec_with, name)


OF_FLRAY = sorted(set(registry.samplers.names()) - set(registry.samplers.added()))


@pytest.mark.parametrize("sampler", OF_FLRAY)
def test_no_sampler_sees_them(sampler: str) -> None:
    spec = spec_with(participation={"clients": 2, "sampler": sampler})
    executor = tiny.Noting(spec)
    federation = tiny.federation_of(spec, executor)
    assert [info.name for info in federation.server.clients] == ["client0", "client2", "client4"]
    cohorts = set()
    for _ in range(8):
        federation.step()
        cohorts.update(federation.server.cohort)
    assert cohorts <= {0, 1, 2}
    assert {kind for kind, client in sent(executor) if client > 2} == {"unseen"}


@pytest.mark.parametrize("rate", [{}, {"schedule": "cosine"}, {"lr_decay": 0.5}])
def test_values_of_the_global_model_and_of_gradient_descent_from_it(rate: dict[str, Any]) -> None:
    """After the last round a cosine has no rate left."""
    local = {"batch_size": 50, "lr": 0.3, **rate}
    spec = spec_with(model="one-layer", evaluation={"adapt_steps": 2}, local=local, rounds=2)
    federation = tiny.federation_of(spec)
    federation.step()
    metrics = federation.step().metrics
    means: dict[str, list[float]] = {"global": [], "adapted": []}
    for client in spec.data.unseen:
        parts = [(spec.data.x[rows], spec.data.y[rows]) for rows in (client.train, client.test)]
        (x, y), (test_x, test_y) = tiny.as_tensors(parts)
        w = federation.server.model[tiny.V]
        for view in means:
            for _ in range(2 if view == "adapted" else 0):
                w = w - 0.3 * tiny.softmax_gradient(w, x, y)
            means[view].append(float(nn.functional.cross_entropy(test_x @ w.T, test_y)))
            found = metrics[f"{view}/unseen/loss/client/{client.name}"]
            assert found == pytest.approx(means[view][-1], abs=1e-12)
    for view, losses in means.items():
        assert metrics[f"{view}/unseen/loss"] == pytest.approx(float(np.mean(losses)), abs=1e-12)
    assert means["adapted"] != means["global"]


def names(spec: FederationSpec) -> list[str]:
    return [client.name for client in spec.data.unseen]


def test_who_they_are() -> None:
    assert names(spec_with(unseen=["client4", "client1"])) == ["client1", "client4"]
    drawn = names(spec_with(unseen=2))
    assert len(drawn) == 2 and drawn == names(spec_with(unseen=0.4)) == names(spec_with(unseen=2.0))
    assert len({tuple(names(spec_with(unseen=2, seed=seed))) for seed in range(8)}) > 2
    pinned = {"name": "domains", "seed": 3}
    assert len({tuple(names(spec_with(unseen=2, seed=s, partition=pinned))) for s in range(4)}) == 1
    partition = {"name": "domain-dirichlet", "parts": 2, "keep": 2, "alpha": 100.0}
    halves = spec_with(unseen=["client2"], partition=partition).data
    assert len(halves.unseen) == 2 and {c.domain for c in halves.unseen} == {"client2"}
    assert len(halves.test) == sum(len(client.test) for client in halves.clients)


def test_without_the_setting_nothing_is_kept_out() -> None:
    plain = tiny.spec_of("fedavg", tiny.gaussian_clients(SIZES))
    for nothing in (0, []):
        spec = spec_with(unseen=nothing, evaluation={"adapt_steps": 0})
        assert spec.data.partition_fingerprint == plain.data.partition_fingerprint
        assert not unseen_metrics(tiny.federation_of(spec).step().metrics)
    assert spec_with().data.partition_fingerprint != plain.data.partition_fingerprint


def test_what_is_wrong_is_one_line() -> None:
    for unseen in (5, 0.01, ["cleint1"], 0):
        refused(spec_with, unseen=unseen)
    refused(spec_with, unseen=2, method="fedbn", evaluation={"adapt_steps": 0})
    refused(spec_with, models={"client0": "one-layer"})
    refused(spec_with, unseen=2, participation={"clients": 4})


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures", "tmp_cwd", "ray_here")
def test_a_sweeps_files_and_tables_have_a_column_for_each(digits: Settings) -> None:
    first = dataset_for(load({"experiment": digits}).experiment).domains[0].name
    partition = {"name": "domain-dirichlet", "parts": 2, "keep": 2, "alpha": 10.0}
    added = {"rounds": 1, "participation": {"unseen": [first]}, "partition": partition}
    added["evaluation"] = {"adapt_steps": 2}
    result = api.tune({**inline(digits, **added), "sweep": {"seeds": [0, 1], "concurrency": 1}})
    table = build_table(load_folder(result.folder))
    heads = {column.head[-1]: place for place, column in enumerate(table.columns)}
    (cells,) = table.rows.values()
    for view, head in (("global/unseen", "unseen"), ("adapted/unseen", "unseen adapted")):
        shares = [100 * value for value in result.results[f"{view}/accuracy"]]
        assert list(cells[heads[head]].values.values()) == pytest.approx(shares)
    history = result.history("0001")
    assert f"global/unseen/accuracy/client/{first}0" in history
    assert f"global/local/accuracy/client/{first}0" not in history
