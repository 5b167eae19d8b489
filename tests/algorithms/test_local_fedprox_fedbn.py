"""Local training, FedProx and FedBN: closed forms, and what they are in special cases."""

import pytest
import torch

from flray import trees
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V as W

FULL = tiny.full(epochs=3)
PLAIN = {"name": "two-layer", "norm": False}
NORM = {
    "features.middle." + name
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


def test_fedprox_takes_the_steps_of_its_closed_form() -> None:
    """One layer, full batches: w <- w - lr (grad CE(w) + mu (w - w_0)), three times, then the weighted mean."""
    federation = tiny.run({"name": "fedprox", "mu": 0.7}, **FULL)
    start, ends = tiny.start(federation)[W], []
    for x, y in tiny.tensors():
        w = start.clone()
        for _ in range(3):
            w = w - 0.1 * (tiny.softmax_gradient(w, x, y) + 0.7 * (w - start))
        ends.append({W: w})
    tiny.close(federation.server.model, tiny.mean_of(ends, tiny.SIZES))


def test_local_is_plain_gradient_descent_and_sends_nothing() -> None:
    federation = tiny.run("local", rounds=2, **FULL)
    start = tiny.start(federation)[W]
    for i, (x, y) in enumerate(tiny.tensors()):
        w = start.clone()
        for _ in range(6):
            w = w - 0.1 * tiny.softmax_gradient(w, x, y)
        tiny.close(tiny.kept(federation, i)[W], w)
    assert torch.equal(federation.server.model[W], start)
    metrics = federation.step().metrics
    assert metrics["bytes/up"] == metrics["bytes/down"] == 0


def test_for_a_single_client_fedavg_and_fedbn_are_local_training() -> None:
    one = tiny.gaussian_clients((11,))
    alone, federated, norms = (
        tiny.run(name, one, rounds=3) for name in ("local", "fedavg", "fedbn")
    )
    whole = {**norms.server.model, **tiny.kept(norms, 0)}
    for model in (federated.server.model, whole):
        assert trees.sha256(model) == trees.sha256(tiny.kept(alone, 0))


def test_fedbn_keeps_every_batch_norm_entry_and_nothing_else() -> None:
    federation = tiny.run("fedbn", rounds=2)
    personal = [tiny.kept(federation, i) for i in range(3)]
    assert all(set(one) == NORM for one in personal)
    running = torch.stack([one["features.middle.running_mean"] for one in personal])
    assert float(running.std(0).min()) > 0.01


def test_fedbn_averages_the_rest_with_equal_weights() -> None:
    clients, settings = tiny.gaussian_clients((6, 6, 20)), {"model": PLAIN}
    uniform = tiny.digest("fedavg", clients, aggregation={"weights": "uniform"}, **settings)
    assert tiny.digest("fedbn", clients, **settings) == uniform
    assert uniform != tiny.digest("fedavg", clients, **settings)


def test_fedbn_without_batch_norm_says_so() -> None:
    spec, lines = tiny.spec_of("fedbn", model=PLAIN), list[str]()
    federation = Federation(spec, InlineExecutor(spec), lines.append)
    for _ in range(3):
        federation.step()
    assert len(lines) == 1 and "no batch norm" in lines[0]


def test_fedbn_evaluates_a_client_that_never_took_part_with_the_initial_norms() -> None:
    federation = tiny.run("fedbn", participation={"clients": 1})
    absent = next(i for i in range(3) if federation.states[i] is None)
    model = federation.spec.build("two-layer").double()
    shared = {n: v for n, v in federation.server.model.items() if n not in NORM}
    model.load_state_dict(shared, strict=False)
    x, y = tiny.tensors()[absent]
    right = (model.eval()(x).argmax(1) == y).double().mean()
    found = federation.evaluate()[f"personal/local/accuracy/client/client{absent}"]
    assert found == pytest.approx(float(right))
