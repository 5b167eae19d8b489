"""Unseen clients: nothing of theirs in training, whatever the method and the sampler, and what is measured on them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from flray import api, registry
from flray.config.loader import load
from flray.errors import ConfigError
from flray.federation.building import dataset_for
from flray.federation.spec import FederationSpec
from flray.results.load import load_folder
from flray.results.sweep import build_table
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN
from tests.helpers import inline
from tests.messages import refused

SIZES = (12, 9, 15, 6, 10)
UNSEEN = ["client1", "client3"]
SHARING = [name for name in BUILT_IN if registry.algorithms.get(name).shared != "none"]


def spec_with(method: Any = "fedavg", unseen: Any = None, **settings: Any) -> FederationSpec:
    made = tiny.settings_for(method)
    participation = {"unseen": UNSEEN if unseen is None else unseen}
    participation |= settings.pop("participation", {})
    evaluation = {"adapt_steps": 3, **made.pop("evaluation", {}), **settings.pop("evaluation", {})}
    clients, settings = tiny.gaussian_clients(SIZES), {**made, **settings}
    return tiny.spec_of(
        method, clients, participation=participation, evaluation=evaluation, **settings
    )


def sent(executor: tiny.Noting) -> set[tuple[str, int]]:
    """Return which clients were sent which kind of task."""
    tasks = [job.client_task for call in executor.calls for block in call for job in block.jobs]
    return {(task.kind, task.client) for task in tasks}


def without_samples(spec: FederationSpec) -> FederationSpec:
    """Return a federation in whose memory there is nothing of the unseen clients."""
    x, y = spec.data.x.copy(), spec.data.y.copy()
    for client in spec.data.unseen:
        for rows in (client.train, client.val, client.test):
            x[rows], y[rows] = np.nan, 0
    return replace(spec, data=replace(spec.data, x=x, y=y))


def unseen_metrics(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if "/unseen/" in name}


@pytest.mark.parametrize("name", SHARING)
def test_no_method_learns_anything_of_them(name: str) -> None:
    spec = spec_with(name)
    executor = tiny.Noting(spec)
    federation = tiny.federation_of(spec, executor)
    blind = tiny.federation_of(without_samples(spec))
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
    said = f"unseen: found 2 of 5 clients; {name} shares no weights"
    with pytest.raises(ConfigError, match=said):
        spec_with(name)


@pytest.mark.parametrize(
    "sampler", sorted(set(registry.samplers.names()) - set(registry.samplers.added()))
)
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


def test_the_values_are_those_of_the_global_model_and_of_gradient_descent_from_it() -> None:
    spec = spec_with(
        model="one-layer", evaluation={"adapt_steps": 2}, local={"batch_size": 50, "lr": 0.3}
    )
    federation = tiny.federation_of(spec)
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


@pytest.mark.parametrize(
    ("unseen", "settings"),
    [
        (5, {}),
        (0.01, {}),
        (["cleint1"], {}),
        (0, {}),
        (2, {"method": "fedbn", "evaluation": {"adapt_steps": 0}}),
        (None, {"models": {"client0": "one-layer"}}),
        (2, {"participation": {"clients": 4}}),
    ],
)
def test_what_is_wrong_is_told_in_one_line(unseen: Any, settings: dict[str, Any]) -> None:
    refused(spec_with, unseen=unseen, **settings)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_sweeps_files_and_tables_have_a_column_for_each(
    tmp_cwd: Path, digits: dict[str, Any], ray_here: dict[str, float]
) -> None:
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
