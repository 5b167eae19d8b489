"""Closed forms: local and pooled training, FedProx, FedBN, FedRS, MOON, FedRCL, FedOpt and SCAFFOLD."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray import functional, trees
from flray.algorithms.common.samples import mean_over_positions
from flray.algorithms.fedrcl import collect_taps
from flray.models import build
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W
from tests.helpers import cases

FULL = tiny.full(epochs=3)
ONE, SKEWED = tiny.gaussian_clients((12,)), tiny.gaussian_clients(skew=True)
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
NORM = {f"features.middle.{name}" for name in ("weight", "bias", *STATISTICS)}


def test_fedprox_takes_the_steps_of_its_closed_form() -> None:
    """One layer, full batches: w <- w - lr (grad CE(w) + mu (w - w_0)), three times, then the weighted mean."""
    federation = tiny.run({"name": "fedprox", "mu": 0.7}, **FULL)
    start, ends = tiny.start(federation)[V], []
    for x, y in tiny.tensors():
        w = start.clone()
        for _ in range(3):
            w = w - 0.1 * (tiny.softmax_gradient(w, x, y) + 0.7 * (w - start))
        ends.append({V: w})
    tiny.close(federation.server.model, tiny.mean_of(ends, tiny.SIZES))


def test_local_is_plain_gradient_descent_and_sends_nothing() -> None:
    federation = tiny.run("local", rounds=2, **FULL)
    start = tiny.start(federation)[V]
    for i, data in enumerate(tiny.tensors()):
        tiny.close(tiny.kept(federation, i)[V], tiny.softmax_steps(start, *data, 6))
    assert torch.equal(federation.server.model[V], start)
    metrics = federation.step().metrics
    assert metrics["bytes/up"] == metrics["bytes/down"] == 0


def test_for_a_single_client_fedavg_and_fedbn_are_local_training() -> None:
    names = ("local", "fedavg", "fedbn")
    one = tiny.gaussian_clients((11,))
    alone, federated, norms = (tiny.run(name, one, rounds=3) for name in names)
    whole = {**norms.server.model, **tiny.kept(norms, 0)}
    for model in (federated.server.model, whole):
        assert trees.sha256(model) == trees.sha256(tiny.kept(alone, 0))


def test_fedbn_keeps_every_batch_norm_entry_and_averages_the_rest_with_equal_weights() -> None:
    plain, uniform = {"name": "two-layer", "norm": False}, {"weights": "uniform"}
    fedavg = tiny.digest("fedavg", model=plain, aggregation=uniform)
    assert tiny.digest("fedbn", model=plain) == fedavg
    federation = tiny.run("fedbn", rounds=2)
    personal = [tiny.kept(federation, i) for i in range(3)]
    assert all(set(one) == NORM for one in personal)
    running = torch.stack([one["features.middle.running_mean"] for one in personal])
    assert float(running.std(0).min()) > 0.01


def test_fedbn_evaluates_a_client_that_never_took_part_with_the_initial_norms() -> None:
    federation = tiny.run("fedbn", participation={"clients": 1})
    absent = next(i for i in range(3) if federation.states[i] is None)
    model, (x, y) = federation.spec.build("two-layer").double(), tiny.tensors()[absent]
    shared = {n: v for n, v in federation.server.model.items() if n not in NORM}
    model.load_state_dict(shared, strict=False)
    right = (model.eval()(x).argmax(1) == y).double().mean()
    found = federation.evaluate()[f"personal/local/accuracy/client/client{absent}"]
    assert found == pytest.approx(float(right))


def test_pooled_equation() -> None:
    """Two epochs of one batch are two steps of gradient descent on the union of the samples."""
    federation = tiny.run("pooled", SKEWED, **tiny.full(epochs=2, lr=0.3))
    x, y = (torch.cat(parts) for parts in zip(*tiny.as_tensors(SKEWED), strict=True))
    w = tiny.softmax_steps(tiny.start(federation)[V], x, y, 2, lr=0.3)
    tiny.close(federation.server.model, {V: w})


@pytest.mark.parametrize("settings", [{}, {"local": {"steps": 7}}, {"aggregation": {"block": 2}}])
def test_pooled_is_fedavg_with_one_client_who_holds_everything(settings: dict[str, Any]) -> None:
    """Also beside a client that is kept out of training: nothing of it is pooled."""
    settings = {"model": tiny.DROPOUT, "rounds": 2, **settings}
    one = {"partition": {"name": "iid", "clients": 1}}
    pooled = tiny.run("pooled", SKEWED, **settings)
    together = tiny.run("fedavg", SKEWED, **one, **settings)
    assert tiny.models_sha(pooled) == tiny.models_sha(together)
    metrics, loss = pooled.step().metrics, "global/common/loss"
    assert metrics[loss] == pytest.approx(together.step().metrics[loss], abs=1e-12)
    assert sum("global/local/accuracy/client/" in name for name in metrics) == 3
    more, out = tiny.gaussian_clients((12, 9, 15, 8)), {"unseen": ["client3"]}
    found = tiny.digest("pooled", more, participation=out, **settings)
    assert found == tiny.digest("fedavg", more[:3], **one, **settings)


@pytest.mark.parametrize("graded", [False, True])
def test_fedrs_one_step_by_hand(graded: bool) -> None:
    """Logits (a_c W_c) x, so the gradient of W_c is a_c times that of plain softmax regression at a W."""
    options = {"name": "fedrs", "alpha": 0.25, "graded": graded}
    federation = tiny.run(options, SKEWED, **tiny.full())
    w, ends = tiny.start(federation)[V], []
    for i, (x, y) in enumerate(tiny.as_tensors(SKEWED)):
        counts = torch.bincount(y, minlength=3).double()
        assert counts[i] == 0
        binary = torch.where(counts > 0, 1.0, 0.25).double()
        a = (0.25 + 0.75 * counts / counts.max() if graded else binary)[:, None]
        ends.append({V: w - 0.1 * a * tiny.softmax_gradient(a * w, x, y)})
    tiny.close(federation.server.model, tiny.mean_of(ends, tiny.SIZES))


def test_moon_three_rounds_by_hand() -> None:
    """Full-batch steps on a linear body; later ones contrast with the mean and with each client's own last model."""
    mu, tau, clients = 2.0, 0.3, tiny.tensors()
    federation = tiny.run(
        {"name": "moon", "mu": mu, "tau": tau}, None, 3, **tiny.full("linear-body")
    )
    own = tiny.each_step(tiny.start(federation), clients)

    def loss(p: Any, mean: Any, last: Any, x: Tensor, y: Tensor) -> Tensor:
        r = x @ p[W].T
        near, far = ((F.cosine_similarity(r, x @ w[W].T) / tau).exp() for w in (mean, last))
        return F.cross_entropy(r @ p[V].T, y) - mu * torch.log(near / (near + far)).mean()

    for _ in range(2):
        mean = tiny.mean_of(own, tiny.SIZES)
        own = [
            tiny.gradient_step(mean, partial(loss, mean=mean, last=w, x=x, y=y))
            for w, (x, y) in zip(own, clients, strict=True)
        ]
    tiny.close(federation.server.model, tiny.mean_of(own, tiny.SIZES))


def test_fedrcl_a_round_by_hand() -> None:
    """One full-batch step on a body of two layers, both tapped; the loss itself: tests/functional/test_losses.py."""
    given = {"tau": 0.5, "threshold": 0.3, "beta": 0.8}
    options = {"name": "fedrcl", **given, "weight": 1.5}
    federation = tiny.run(options, **tiny.full({"name": "linear-body", "layers": 2}))

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        first = x @ p[W].T
        second = first @ p["features.second.weight"].T
        contrast = functional.relaxed_contrastive_loss
        terms = [contrast(layer, y, *given.values()) for layer in (first, second)]
        return F.cross_entropy(second @ p[V].T, y) + 1.5 * (terms[0] + terms[1]) / 2

    trained = tiny.each_step(tiny.start(federation), tiny.tensors(), loss)
    tiny.close(federation.server.model, tiny.mean_of(trained, [1, 1, 1]))


def test_fedrcl_a_client_with_a_single_class_stays_finite() -> None:
    ((x, y),) = tiny.gaussian_clients((9,))
    federation = tiny.run("fedrcl", [(x, np.zeros_like(y))], rounds=2)
    assert all(bool(torch.isfinite(w).all()) for w in federation.server.model.values())


def test_fedrcl_layers_are_tapped_before_their_relu_and_only_during_the_pass() -> None:
    model = build("lenet", (1, 16, 16), 3, {}, seed=0)
    x = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with collect_taps(model) as layers:
        model(x)
    assert [mean_over_positions(layer).shape[1] for layer in layers] == [6, 16, 120, 84]
    assert all((layer < 0).any() for layer in layers)
    torch.testing.assert_close(mean_over_positions(layers[0])[1, 2], layers[0][1, 2].mean())
    model(x)
    assert len(layers) == 4


STEP = tiny.full(lr=0.3)


def rule(form: str, m: Tensor, v: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if form == "avgm":
        m = 0.9 * m + delta
        return m, v, 1.0 * m
    beta1 = 0.0 if form == "adagrad" else 0.9
    m, square = beta1 * m + (1 - beta1) * delta, delta**2
    forms = {"adagrad": v + square, "adam": 0.99 * v + 0.01 * square}
    v = {**forms, "yogi": v - 0.01 * square * torch.sign(v - square)}[form]
    return m, v, 0.1 * m / (v.sqrt() + 1e-3)


@pytest.mark.parametrize("form", ["avgm", "adagrad", "adam", "yogi"])
def test_fedopt_three_rounds_by_hand_at_the_defaults(form: str) -> None:
    """FedAvg's mean update of one full-batch step is what the server's optimiser is given; buffers are averaged."""
    federation = tiny.fresh(f"fed{form}", **STEP)
    general = tiny.run({"name": "fedopt", "server_optimizer": form}, rounds=3, **STEP)
    w = federation.server.model[V].clone()
    m, v = torch.zeros_like(w), torch.full_like(w, 1e-6)
    for _ in range(3):
        federation.step()
        steps = [{V: -0.3 * tiny.softmax_gradient(w, x, y)} for x, y in tiny.tensors()]
        m, v, step = rule(form, m, v, tiny.mean_of(steps, tiny.SIZES)[V])
        w = w + step
        tiny.close(federation.server.model[V], w)
    assert tiny.models_sha(general) == tiny.models_sha(federation)
    found, expected = tiny.run(f"fed{form}").server.model, tiny.run("fedavg").server.model
    for name in STATISTICS:
        assert torch.equal(found[f"features.middle.{name}"], expected[f"features.middle.{name}"])


@pytest.mark.parametrize("form", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_fedopt_each_form_approaches_fedavg(form: str) -> None:
    """FedAvgM without momentum is FedAvg; in the others step and tau grow together."""
    options, rtol = {"server_lr": 1e6, "tau": 1e6, "beta1": 0.0, "initial": 0.0}, 1e-5
    if form == "fedavgm":
        options, rtol = {"server_lr": 1.0, "beta1": 0.0}, 1e-12
    found, expected = (tiny.run(a, rounds=1) for a in ({"name": form, **options}, "fedavg"))
    tiny.close(found.server.model, expected.server.model, rtol=rtol, atol=rtol / 10)


def test_fedopt_momentum_moves_the_weights_by_its_rate() -> None:
    update, m = {V: torch.tensor([2.0])}, {V: torch.tensor([1.0])}
    step, m = functional.momentum_step(update, m, 0.3, 0.5)
    tiny.close([m[V], step[V]], [torch.tensor([2.5]), torch.tensor([0.75])])


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_scaffold_three_rounds_by_hand_of_some_clients(option: str, server_lr: float) -> None:
    options = {"name": "scaffold", "option": option, "server_lr": server_lr}
    federation = tiny.fresh(options, participation={"clients": 2}, **tiny.full(epochs=4))
    w, data = federation.server.model[V].clone(), tiny.tensors()
    c, own = torch.zeros_like(w), [torch.zeros_like(w) for _ in data]
    for _ in range(3):
        federation.step()
        moves, changes = [], []
        for i in federation.server.cohort:
            theta = w.clone()
            for _ in range(4):
                theta = theta - 0.1 * (tiny.softmax_gradient(theta, *data[i]) + c - own[i])
            moved = own[i] - c + (w - theta) / (4 * 0.1)
            new = tiny.softmax_gradient(w, *data[i]) if option == "I" else moved
            moves.append(theta - w)
            changes.append(new - own[i])
            own[i] = new
        w = w + server_lr * torch.stack(moves).mean(0)  # uniform, over the cohort
        c = c + torch.stack(changes).sum(0) / 3  # over all clients, not the cohort
        tiny.close(federation.server.model[V], w)
        tiny.close(federation.server.state["c"][V], c)
        for i in federation.server.cohort:
            tiny.close(tiny.state_of(federation, i)["c"][V], own[i])


@cases("steps, slow", "[6, {}], [3, {stragglers: 1.0, straggler_work: 0.5}]")
def test_scaffold_counts_steps_and_not_epochs(steps: int, slow: dict[str, float]) -> None:
    """Option II after round 1 is the mean of the gradients seen: the displacement over (optimiser steps x lr)."""
    batches = tiny.full(batch_size=4, epochs=2, lr=0.05)
    federation = tiny.run("scaffold", ONE, participation=slow, **batches)
    expected = (tiny.start(federation)[V] - federation.server.model[V]) / (steps * 0.05)
    tiny.close(tiny.state_of(federation, 0)["c"][V], expected)


def test_scaffold_uses_the_round_s_decayed_learning_rate() -> None:
    federation = tiny.run("scaffold", ONE, **tiny.full(lr=0.2, lr_decay=0.5))
    start = federation.server.model[V].clone()
    federation.step()
    expected = tiny.softmax_gradient(start, *tiny.as_tensors(ONE)[0])
    tiny.close(tiny.state_of(federation, 0)["c"][V], expected)


def test_scaffold_its_first_round_is_uniform_fedavg_and_alone_all_are_sequential_sgd() -> None:
    assert tiny.digest("scaffold") == tiny.digest("fedavg", aggregation={"weights": "uniform"})
    one = tiny.gaussian_clients((10,))
    found, expected = (tiny.run(name, one, rounds=3) for name in ("scaffold", "fedavg"))
    tiny.close(found.server.model, expected.server.model)
