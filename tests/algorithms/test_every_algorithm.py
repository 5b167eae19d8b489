"""What holds for every registered method; a new one is covered by being registered; its own test has `TRAFFIC`."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flray import registry, trees
from flray.federation import FederationSpec
from flray.federation.messages import TaskBlock, TaskInput
from flray.federation.worker.client_runner import InlineExecutor
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import Bytes, own_row, parameters, same, size
from tests.helpers import cases
from tests.messages import refused

BUILT_IN = sorted(set(registry.algorithms.names()) - set(registry.algorithms.added()))
every = pytest.mark.parametrize("name", BUILT_IN)
C = 3  # classes of `gaussian_clients`
ITEM = 8  # bytes of a float64


@every
def test_every_default_cites_its_source(name: str) -> None:
    for field, info in registry.algorithms.params(name).model_fields.items():
        extra = info.json_schema_extra
        assert isinstance(extra, dict), f"{name}.{field} is not declared with hyper()"
        assert len(str(extra["source"])) > 3 and info.description, f"{name}.{field}"


@every
def test_one_client_finishes(name: str) -> None:
    federation = tiny.run(name, tiny.gaussian_clients((9,)), rounds=2, **tiny.settings_for(name))
    assert federation.rounds_done == 2
    weights = [v for w in federation.server.models.values() for v in w.values()]
    assert all(bool(torch.isfinite(v).all()) for v in weights)


@registry.register_model("frozen-body")
def frozen_body(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The first layer is not trained."""
    model = tiny.two_layer(shape, num_classes)
    model.get_submodule("features.first").requires_grad_(False)
    return model


@every
def test_a_layer_that_the_network_freezes_is_not_trained(name: str) -> None:
    federation = tiny.run(name, model="frozen-body", **tiny.settings_for(name))
    began = tiny.start(federation)[tiny.W]
    kept = [tiny.state_of(federation, client).get("personal", {}) for client in range(3)]
    held = [federation.server.model, *kept]
    assert all(torch.allclose(one[tiny.W], began, atol=1e-15) for one in held if tiny.W in one)


class Twice(nn.Module):
    """Uses a layer twice."""

    def __init__(self, features: int, num_classes: int, names: list[str]) -> None:
        super().__init__()
        layer = nn.Linear(features, features)
        for name in names:
            self.add_module(name, layer)
        self.last, self.tied = nn.Linear(features, num_classes), len(names) > 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.get_submodule("one"), self.get_submodule("two" if self.tied else "one")
        return self.last(second(first(x).relu()))  # type: ignore[no-any-return]


@registry.register_model("twice")
def twice(shape: tuple[int, ...], num_classes: int, *, tied: bool) -> nn.Module:
    return Twice(shape[0], num_classes, ["one", "two"] if tied else ["one"])


@pytest.mark.parametrize("name", ["fedavgm", {"name": "scaffold", "server_lr": 0.5}])
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_a_layer_with_two_names_is_learnt_as_with_one(name: Any, buffers: str) -> None:
    once, tied = (
        tiny.run(name, rounds=3, model={"name": "twice", "tied": tied}, aggregation=settings)
        for tied, settings in ((False, {}), (True, {"buffers": buffers}))
    )
    assert all(torch.equal(tied.server.model[n], w) for n, w in once.server.model.items())
    assert tied.spec.has_common


@registry.register_model("twice-split")
def twice_split(shape: tuple[int, ...], num_classes: int, *, tied: str) -> nn.Module:
    body = Twice(shape[0], shape[0], ["one", "two"] if tied else ["one"])
    if tied == "parameters":
        one = body.get_submodule("one")
        body.two = two = copy.deepcopy(one)
        for name, value in one.named_parameters():
            setattr(two, name, value)
    model = nn.Sequential()
    model.add_module("features", nn.Sequential(body, nn.BatchNorm1d(shape[0])))
    model.add_module("classifier", nn.Linear(shape[0], num_classes))
    return model


@every
def test_every_method_learns_a_layer_with_two_names_as_with_one(name: str) -> None:
    models = [{"name": "twice-split", "tied": tied} for tied in ("", "module", "parameters")]
    settings = tiny.settings_for(name)
    runs = (tiny.run(name, rounds=2, model=model, **settings) for model in models)
    once, *others = (run.evaluate() for run in runs)
    for found in others:
        assert found == pytest.approx(once, rel=1e-12, nan_ok=True)


@every
@cases(
    "section, key, values",
    "[aggregation, weights, [samples, uniform]], [local, clip_norm, [null, 0.001]], [local, epochs, [1, 2]]",
)
def test_a_setting_acts_or_is_said_not_to(name: str, section: str, key: str, values: Any) -> None:
    settings, clients = tiny.settings_for(name), tiny.gaussian_clients((8, 12, 20))
    one, other = (
        tiny.run(name, clients, rounds=2, **{**settings, section: {key: value}}) for value in values
    )
    unused = f"{section}.{key}" in other.spec.algorithm.unused()
    assert (one.sha256() == other.sha256()) == unused


@every
def test_schedules_a_named_optimiser_and_a_sampler_that_asks_are_taken(name: str) -> None:
    """A warmup and a schedule over half epochs, then so many steps instead of epochs."""
    method = {"name": name, "option": "I"} if name == "scaffold" else name
    settings = {**tiny.settings_for(name), **tiny.partial_participation(name)}
    if some := settings.get("participation"):
        settings["participation"] = {**some, "sampler": {"name": "power-of-choice"}}
    rates = {"schedule": "cosine", "warmup": 1, "epochs": 1 if name == "l2sgd" else 0.5}
    for local in (rates, {"steps": 2, "epochs": 7}):
        named = {"optimizer": "rmsprop", "lr": 0.01, **local}
        federation = tiny.run(method, rounds=2, local=named, **settings)
        assert federation.rounds_done == 2 and (not some or len(federation.server.cohort) == 2)


class Permuted(InlineExecutor):
    """Runs the jobs in another order than the clients' and hands the results on in theirs, as many workers would."""

    calls = 0

    def run_blocks(self, blocks: Sequence[TaskBlock], *rest: Any, **named: Any) -> Iterator[Any]:
        self.calls += 1
        order = np.random.default_rng(self.calls).permutation(len(blocks))
        found = super().run_blocks([blocks[i] for i in order], *rest, **named)
        results = dict(zip(order, found, strict=True))
        return iter([results[i] for i in range(len(blocks))])


def sampled(name: str) -> FederationSpec:
    settings = {**tiny.settings_for(name), **tiny.partial_participation(name)}
    return tiny.spec_of(name, model=tiny.DROPOUT, **settings)


@every
def test_any_order_and_a_resume_from_any_round_give_one_result(name: str, tmp_path: Path) -> None:
    spec = sampled(name)
    permuted = tiny.federation_of(spec, Permuted(spec))
    for _ in range(3):
        permuted.step()
    assert permuted.sha256() == tiny.resumed_from_any_round(spec, tmp_path), "clients' order"


@pytest.mark.parametrize("name", [name for name in BUILT_IN if tiny.partial_participation(name)])
def test_a_client_that_is_not_sampled_keeps_its_state(name: str) -> None:
    federation = tiny.federation_of(sampled(name))

    def states() -> list[Any]:
        known = [h and trees.unpack(federation.executor.fetch(h)) for h in federation.states]
        return [state and trees.sha256(state) for state in known]

    for _ in range(4):
        before = states()
        federation.step()
        (away,) = set(range(3)) - set(federation.server.cohort)
        assert states()[away] == before[away]


class Watched(InlineExecutor):
    """Asserts that no turn, evaluation included, changes what it was given."""

    client_tasks = 0

    def run_blocks(self, blocks: Sequence[TaskBlock], *rest: Any, **named: Any) -> Iterator[Any]:
        def given(job: TaskInput) -> str:
            parts = (job.common, job.private, job.state)
            return trees.sha256(*(trees.unpack(part) for part in parts if part))

        before = [given(block.jobs[0]) for block in blocks]
        results = super().run_blocks(blocks, *rest, **named)
        for block, digest, result in zip(blocks, before, results, strict=True):
            assert result.results[0].outcome.failure is None, result.results[0].outcome.failure
            stage = block.jobs[0].client_task.stage.name
            assert given(block.jobs[0]) == digest, f"{stage} changed its message or state"
            self.client_tasks += 1
            yield result


@every
def test_no_turn_and_no_evaluation_changes_what_it_was_given(name: str) -> None:
    spec = tiny.spec_of(name, **tiny.settings_for(name))
    executor = Watched(spec)
    federation = tiny.federation_of(spec, executor)
    for _ in range(3):
        federation.step()
    assert executor.client_tasks >= 3 * (1 if spec.algorithm.pools else 3)
    before, metrics = federation.sha256(), federation.evaluate()
    assert federation.evaluate() == metrics and federation.sha256() == before
    measure = {"global": "global/common/accuracy", "personal": "personal/local/accuracy"}
    assert all(0 <= metrics[measure[view]] <= 1 for view in spec.algorithm.views)


TRAFFIC: dict[str, Bytes] = {
    "local": same("none"),
    "fedbn": same("not_batch_norm"),
    **dict.fromkeys(("fedavg", "fedprox", "feddf", "perfedavg"), same("all")),
    "scaffold": lambda f: (size(f, "all") + parameters(f),) * 2,
    "pooled": lambda f: (size(f, "all") / 3,) * 2,  # one task for all three clients
    **dict.fromkeys(("fedopt", "fedavgm", "fedadagrad", "fedadam", "fedyogi"), same("all")),
    **dict.fromkeys(("fedper", "fedrep", "fedbabu", "fedalt", "fedsim"), same("features")),
    **dict.fromkeys(("fedrs", "moon", "fedrcl", "fedrod", "apfl", "l2sgd"), same("all")),
    "copa": lambda f: (size(f, "features") + 3 * size(f, "classifier"), size(f, "all")),
    # vectors of C classes with a mask down, with int64 counts up; 5 features
    "fedproc": lambda f: (size(f, "all") + C * 5 * ITEM + C, size(f, "all") + C * 5 * ITEM + C * 8),
    "fedproto": lambda f: (C * 5 * ITEM + C, C * 5 * ITEM + C * 8),
    "fedhkd": lambda f: (
        size(f, "all") + C * (5 + C) * ITEM + C,
        size(f, "all") + C * (5 + C) * ITEM + C * 8,
    ),
    # the class vectors come down as the classifier's weight; up go their directions in its place
    "fednh": lambda f: (size(f, "all"), size(f, "all") + C * 8),
    # three offline classifiers down, the own one up
    "fedco2": lambda f: (
        size(f, "not_batch_norm") + 3 * size(f, "classifier"),
        size(f, "not_batch_norm") + size(f, "classifier"),
    ),
    # one public batch of 24: logits, for FCCL+ also similarities to the 23 others
    **dict.fromkeys(("fccl", "fedmd"), lambda f: (24 * C * ITEM,) * 2),
    "fcclplus": lambda f: (24 * (C + 23) * ITEM,) * 2,
    # psi and two helpers' psi, which leave out batch norm, down; psi and a prediction of one image up
    "fedmatch": lambda f: (
        size(f, "all") + 3 * (parameters(f) - 10 * ITEM),
        size(f, "all") + parameters(f) - 10 * ITEM + C * ITEM,
    ),
    # both peers' models down; the own one and a float64 per peer up
    "fedfomo": lambda f: (2 * size(f, "all"), size(f, "all") + 2 * 8),
    # everyone's probabilities and confidences down; the own probabilities and the private loss up
    "rhfl": lambda f: (3 * (24 * C + 1) * ITEM, (24 * C + 1) * ITEM),
    "lgmix": lambda f: (2 * size(f, "all"), size(f, "all")),  # u before training and after it
    # knowledge of C x C with a mask down, with int64 counts up
    "fedskc": lambda f: (size(f, "all") + C * C * ITEM + C, size(f, "all") + C * C * ITEM + C * 8),
}
"""Bytes down to and up from one client in a round after the first, as its paper describes it; a method that is not here
has them in its own test."""


@every
def test_counters_are_exact_and_bytes_are_those_of_the_method_s_description(name: str) -> None:
    federation = tiny.run(name, **tiny.settings_for(name))
    spec = federation.spec
    sizes = [len(spec.training_rows(number)) for number in range(3)]
    steps = [-(-n // 4) - (n % 4 == 1) for n in sizes]  # a last batch of one sample is left out
    (counter,) = [v for k, v in federation.server.model.items() if k.endswith("batches_tracked")]
    assert counter.dtype == torch.int64
    # The largest client's count (0 where batch norm stays local), which no mean of others gives.
    assert (len(set(steps)) > 1 or spec.algorithm.pools) and int(counter) % max(steps) == 0
    metrics: dict[str, Any] = federation.step().metrics
    down, up = (TRAFFIC.get(name) or own_row(name, "TRAFFIC"))(federation)
    assert (metrics["bytes/down"], metrics["bytes/up"]) == (3 * down, 3 * up)


@cases(
    "algorithm, settings",
    """[fedavg, {local: {warmup: 3}}],
    [fedavg, {data: {name: random, shape: [2, 12, 12]}, local: {public_augment: strong}, model: simple-cnn}],
    [feddf, {aggregation: {buffers: local}}], [fedfomo, {}], [fednh, {model: deep-classifier}],
    [fedproto, {models: {client0: {name: two-layer, width: 4}}}], [fedrcl, {model: one-layer}],
    [fedrs, {model: deep-classifier}], [fedhkd, {model: {name: one-layer, more: 1}}],
    [fednh, {model: {name: one-layer, more: 1}}], [fedrod, {model: {name: one-layer, more: 1}}],
    [fedrs, {model: {name: one-layer, more: 1}}], [pooled, {participation: {clients: 2}}],
    [scaffold, {local: {momentum: 0.9}}], [scaffold, {local: {optimizer: adam}}],
    [{name: fedper, personal: head}, {}], [{name: fedalt, personal: head}, {}],
    [{name: fedsim, personal: head}, {}],
    [{name: fcclplus, epoch_optimizer: fresh}, {local: {epochs: 1.5}}],
    [{name: fcclplus, epoch_optimizer: fresh}, {local: {steps: 2}}],
    [{name: fcclplus, variant: released}, {local: {batch_size: 16}}],
    [{name: fcclplus, variant: released}, {local: {batch_size: 128, public_augment: weak}}],
    [{name: fcclplus, public_augment: blur}, {}], [fcclplus, {local: {public_augment: blur}}],
    [{name: fedskc, variant: released}, {local: {lr: 0.05}}],
    [{name: l2sgd, coin: true, p: 0.01, lam: 0.5}, {}],
    [{name: l2sgd, coin: true, p: 0.5, lam: 0.5}, {local: {epochs: 2}}],
    [{name: l2sgd, coin: true, p: 0.5, lam: 0.5}, {local: {optimizer: adam}}],
    [{name: l2sgd, coin: true, p: 0.5, lam: 0.5}, {local: {steps: 2}}]""",
)
def test_what_would_be_ignored_is_refused(algorithm: Any, settings: dict[str, Any]) -> None:
    refused(tiny.spec_of, algorithm, **settings)
