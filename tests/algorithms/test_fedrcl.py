from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flray.algorithms.common.samples import mean_over_positions
from flray.algorithms.fedrcl import collect_taps
from flray.models import build
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W


def test_a_round_by_hand() -> None:
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


def test_layers_are_tapped_before_their_relu_and_only_during_the_pass() -> None:
    model = build("lenet", (1, 16, 16), 3, {}, seed=0)
    x = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with collect_taps(model) as layers:
        model(x)
    assert [mean_over_positions(layer).shape[1] for layer in layers] == [6, 16, 120, 84]
    assert all((layer < 0).any() for layer in layers)
    torch.testing.assert_close(mean_over_positions(layers[0])[1, 2], layers[0][1, 2].mean())
    model(x)
    assert len(layers) == 4


def test_a_client_with_a_single_class_stays_finite() -> None:
    ((x, y),) = tiny.gaussian_clients((9,))
    federation = tiny.run("fedrcl", [(x, np.zeros_like(y))], rounds=2)
    assert all(bool(torch.isfinite(w).all()) for w in federation.server.model.values())
