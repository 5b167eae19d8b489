"""Local and pooled training, FedProx, FedBN, FedRS, MOON and FedRCL: closed forms and special cases."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray import trees
from flray.algorithms.common.samples import mean_over_positions
from flray.algorithms.fedrcl import collect_taps
from flray.models import build
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W

FULL = tiny.full(epochs=3)
SKEWED = tiny.gaussian_clients(skew=True)
NORM = {
    "features.middle." + name
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


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
    one = tiny.gaussian_clients((11,))
    alone, federated, norms = (
        tiny.run(name, one, rounds=3) for name in ("local", "fedavg", "fedbn")
    )
    whole = {**norms.server.model, **tiny.kept(norms, 0)}
    for model in (federated.server.model, whole):
        assert trees.sha256(model) == trees.sha256(tiny.kept(alone, 0))


def test_fedbn_keeps_every_batch_norm_entry_and_averages_the_rest_with_equal_weights() -> None:
    plain, uniform = {"name": "two-layer", "norm": False}, {"weights": "uniform"}
    assert tiny.digest("fedbn", model=plain) == tiny.digest(
        "fedavg", model=plain, aggregation=uniform
    )
    federation = tiny.run("fedbn", rounds=2)
    personal = [tiny.kept(federation, i) for i in range(3)]
    assert all(set(one) == NORM for one in personal)
    running = torch.stack([one["features.middle.running_mean"] for one in personal])
    assert float(running.std(0).min()) > 0.01


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
    options = {"name": "moon", "mu": mu, "tau": tau}
    federation = tiny.run(options, rounds=3, **tiny.full("linear-body"))
    own = tiny.each_step(tiny.start(federation), clients)

    def loss(p: Any, mean: Any, last: Any, x: Tensor, y: Tensor) -> Tensor:
        r = x @ p[W].T
        near = torch.exp(F.cosine_similarity(r, x @ mean[W].T) / tau)
        far = torch.exp(F.cosine_similarity(r, x @ last[W].T) / tau)
        return F.cross_entropy(r @ p[V].T, y) - mu * torch.log(near / (near + far)).mean()

    for _ in range(2):
        mean = tiny.mean_of(own, tiny.SIZES)
        own = [
            tiny.gradient_step(mean, partial(loss, mean=mean, last=w, x=x, y=y))
            for w, (x, y) in zip(own, clients, strict=True)
        ]
    tiny.close(federation.server.model, tiny.mean_of(own, tiny.SIZES))


def test_fedrcl_a_round_by_hand() -> None:
    """One full-batch step, pair by pair, on a body of two layers, both tapped."""
    tau, threshold, beta, weight = 0.5, 0.3, 0.8, 1.5
    options = {"name": "fedrcl", "tau": tau, "threshold": threshold, "beta": beta, "weight": weight}
    federation = tiny.run(options, **tiny.full({"name": "linear-body", "layers": 2}))

    def term(f: Tensor, y: Tensor) -> Tensor:
        s = F.normalize(f) @ F.normalize(f).T
        terms = []
        for a in range(len(y)):
            positive = min(s[a, b] for b in range(len(y)) if y[b] == y[a] and b != a)
            negatives = sorted((s[a, b] for b in range(len(y)) if y[b] != y[a]), reverse=True)
            attracted = torch.exp(positive / tau)
            repelled = torch.exp(torch.stack(negatives[:2]) / tau).sum()
            terms.append(-torch.log(attracted / (attracted + repelled)))
            if positive >= threshold:
                itself = torch.exp(torch.tensor(1 / tau, dtype=torch.float64))
                terms.append(-beta * torch.log(itself / (itself + attracted)))
        return torch.stack(terms).sum() / len(y)

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        first = x @ p[W].T
        second = first @ p["features.second.weight"].T
        return F.cross_entropy(second @ p[V].T, y) + weight * (term(first, y) + term(second, y)) / 2

    trained = tiny.each_step(tiny.start(federation), tiny.tensors(), loss)
    tiny.close(federation.server.model, tiny.mean_of(trained, [1, 1, 1]))


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


def test_fedrcl_a_client_with_a_single_class_stays_finite() -> None:
    ((x, y),) = tiny.gaussian_clients((9,))
    federation = tiny.run("fedrcl", [(x, np.zeros_like(y))], rounds=2)
    assert all(bool(torch.isfinite(w).all()) for w in federation.server.model.values())
