from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W


def test_three_rounds_by_hand() -> None:
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
