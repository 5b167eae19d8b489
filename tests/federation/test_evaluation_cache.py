"""What tests of clients in one process have in common is computed once, and nothing else is shared."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flray.federation.federation import inline_federation
from flray.federation.worker import resources
from flray.federation.worker.client_runner import ClientRunner
from flray.federation.worker.resources import EvaluationCache
from flray.models import SplitModel
from flray.tasks import make_task
from flray.tasks.classification import summarise_parts
from tests.algorithms.helpers import gaussian_clients, run
from tests.helpers import built

SETTINGS: dict[str, Any] = {"rounds": 1, "local": {"epochs": 1}}


class Counting(nn.Linear):
    """A body that counts its passes."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x)


@pytest.fixture
def runner(digits: dict[str, Any]) -> ClientRunner:
    return ClientRunner(built(digits), torch.device("cpu"), 1)


@pytest.fixture
def model() -> SplitModel:
    body = nn.Sequential(nn.Flatten(), Counting(3 * 32 * 32, 5))
    return SplitModel(body, nn.Linear(5, 10)).eval()


def outputs(cache: EvaluationCache, runner: ClientRunner, model: nn.Module) -> list[Tensor]:
    """Return the outputs for two batches."""
    rows = runner.spec.data.test[:10]
    with torch.no_grad(), cache.sharing([("net", model)]):
        samples = runner._resources.samples(rows, once=True)
        return [model(x) for x, _ in cache.batches(rows, samples, 6)]


def test_a_body_of_the_same_bits_is_passed_once(runner: ClientRunner, model: SplitModel) -> None:
    cache, body = EvaluationCache(), model.features[1]
    first = outputs(cache, runner, model)
    assert body.passes == 2
    with torch.no_grad():
        model.classifier.weight.mul_(2)  # another head
    second = outputs(cache, runner, model)
    assert body.passes == 2
    assert not torch.equal(first[0], second[0])
    assert torch.equal(second[0], outputs(EvaluationCache(), runner, model)[0])


@pytest.mark.parametrize("change", ["weight", "sign of zero", "training", "hook", "batch"])
def test_anything_else_is_computed_anew(
    runner: ClientRunner, model: SplitModel, change: str
) -> None:
    cache, body = EvaluationCache(), model.features[1]
    body.bias.data.zero_()
    outputs(cache, runner, model)
    if change == "weight":
        body.weight.data[0, 0] += 1  # which raises no version of the tensor
    elif change == "sign of zero":
        body.bias.data.neg_()
    elif change == "training":
        body.train()
    elif change == "hook":
        body.register_forward_hook(lambda *_: None)
    else:
        cache._batch = None
        with torch.no_grad(), cache.sharing([("net", model)]):
            model(torch.zeros(6, 3, 32, 32))
    assert outputs(cache, runner, model) and body.passes == (3 if change == "batch" else 4)


def test_a_network_that_writes_to_its_input_or_features_harms_nobody(
    runner: ClientRunner, model: SplitModel
) -> None:
    """Also where the features are a view of the input."""
    for writes in (
        SplitModel(nn.Sequential(nn.ReLU(inplace=True), nn.Flatten()), model.classifier),
        SplitModel(model.features, nn.Sequential(nn.ReLU(inplace=True), model.classifier)),
    ):
        network = writes if writes.features is model.features else writes.features
        cache = EvaluationCache()
        wanted = outputs(EvaluationCache(), runner, network.eval())
        for _ in range(3):
            found = outputs(cache, runner, network)
            assert all(map(torch.equal, found, wanted))


def test_a_client_without_test_samples_has_one_empty_batch(runner: ClientRunner) -> None:
    rows = runner.spec.data.test[:0]
    for cache in (EvaluationCache(), runner._resources._tests):
        ((x, y),) = cache.batches(rows, runner._resources.samples(rows, once=True), 6)
        assert (len(x), len(y)) == (0, 0)


@pytest.mark.parametrize("others", [False, True])
def test_few_test_samples_leave_some_clients_without(others: bool) -> None:
    content = {
        "data": {"name": "random", "samples": 60, "shape": [3, 8, 8], "classes": 3},
        "partition": {"name": "iid", "clients": 20},
        "model": "linear",
        "algorithm": "fedper",
        "evaluation": {"others": others, "pooled": True},
    }
    federation = inline_federation(built({"rounds": 1, **content}), print)
    found = federation.step().metrics
    assert sum(not len(client.test) for client in federation.spec.data.clients) > 0
    assert 0 <= found["personal/local/accuracy"] <= 1
    federation.close()


def test_no_more_is_kept_than_there_is_room_for(
    runner: ClientRunner, model: SplitModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "CACHE_BYTES", 80_000)
    cache = EvaluationCache()
    wanted = outputs(EvaluationCache(), runner, model)
    for _ in range(2):
        assert all(map(torch.equal, outputs(cache, runner, model), wanted))
    assert sum(x.nbytes for x, _ in cache._inputs.values()) <= 80_000
    assert all(body.bytes <= 80_000 or not body.features for body in cache._bodies)


@pytest.mark.parametrize("method", ["fedper", "fedrod", "fedproto", "fedbabu", "fedco2"])
def test_methods_measure_the_same_without_it(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = gaussian_clients((12, 9, 15))
    wanted = {"others": True, "pooled": True}
    found = run(method, clients, **SETTINGS, evaluation=wanted).evaluate()
    monkeypatch.setattr(resources, "CACHE_BYTES", 0)
    assert run(method, clients, **SETTINGS, evaluation=wanted).evaluate() == found


@pytest.mark.parametrize("top_k", [None, 3])
def test_parts_are_measured_to_the_bits_of_each_alone(top_k: int | None) -> None:
    task, draws = (
        make_task("classification", tuple("abcdefg"), top_k=top_k),
        np.random.default_rng(1),
    )
    sizes = [*draws.integers(0, 20, 30), *draws.integers(0, 1000, 10), 0, 8, 8, 9000]
    found = {"correct": draws.random(sum(sizes)) < 0.5, "loss": draws.gamma(1.0, 2.0, sum(sizes))}
    if top_k is not None:
        found["top3"] = draws.random(sum(sizes)) < 0.8
    parts = summarise_parts(task, found, sizes)
    ends = np.cumsum([0, *sizes])
    for i in range(len(sizes)):
        alone = task.summarise({n: v[ends[i] : ends[i + 1]] for n, v in found.items()})
        np.testing.assert_array_equal([parts[name][i] for name in alone], list(alone.values()))
    assert list(parts) == list(alone)


def test_a_body_may_have_values_of_any_kind(runner: ClientRunner, model: SplitModel) -> None:
    cache, body = EvaluationCache(), model.features[1]
    model.features.register_buffer("phase", torch.ones((), dtype=torch.complex128))
    model.features.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    for _ in range(2):
        outputs(cache, runner, model)
    assert body.passes == 2
    model.features.phase.imag.add_(1)
    outputs(cache, runner, model)
    assert body.passes == 4
