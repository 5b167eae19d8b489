from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W


def test_prototypes_are_means_over_all_samples_of_a_class_and_stay_where_nobody_sends_one() -> None:
    """The features of a network whose body has no parameters are its inputs; client i lacks class i."""
    clients = tiny.tensors(skew=True)
    settings = {"clients": tiny.gaussian_clients(skew=True), "model": "one-layer"}
    state = tiny.run("fedproc", **settings).server.state["prototypes"]
    x, y = (torch.cat(parts) for parts in zip(*clients, strict=True))
    tiny.close(state["vectors"], torch.stack([x[y == c].mean(0) for c in range(3)]))
    assert state["present"].all()
    federation = tiny.fresh("fedproc", classes=4, participation={"clients": 1}, **settings)
    expected, known = torch.zeros(4, 4, dtype=torch.float64), set()
    for _ in range(5):
        federation.step()
        x, y = clients[federation.server.cohort[0]]
        for c in y.unique().tolist():
            expected[c] = x[y == c].mean(0)
            known.add(c)
        state = federation.server.state["prototypes"]
        tiny.close(state["vectors"], expected)
        assert set(state["present"].nonzero().flatten().tolist()) == known
    assert known == {0, 1, 2}


def test_the_weight_of_ce_grows_over_the_rounds() -> None:
    """The contrast has no gradient where the body has no parameters, so alpha scales the steps: 1, 1/4, 2/4."""
    federation = tiny.run({"name": "fedproc", "ramp": 4}, rounds=3, **tiny.full())
    w = tiny.start(federation)[V]
    for alpha in (1.0, 0.25, 0.5):
        steps = [{V: w - 0.1 * alpha * tiny.softmax_gradient(w, *data)} for data in tiny.tensors()]
        w = tiny.mean_of(steps, tiny.SIZES)[V]
    tiny.close(federation.server.model, {V: w})


def test_two_rounds_by_hand() -> None:
    federation = tiny.run({"name": "fedproc", "alpha": 0.3}, rounds=2, **tiny.full("linear-body"))
    clients = tiny.tensors()
    trained = tiny.each_step(tiny.start(federation), clients)
    features = torch.cat([x @ p[W].T for (x, _), p in zip(clients, trained, strict=True)])
    labels = torch.cat([y for _, y in clients])
    prototypes = F.normalize(torch.stack([features[labels == c].mean(0) for c in range(3)]))

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        r = x @ p[W].T
        return 0.3 * F.cross_entropy(r @ p[V].T, y) + 0.7 * F.cross_entropy(r @ prototypes.T, y)

    trained = tiny.each_step(tiny.mean_of(trained, tiny.SIZES), clients, loss)
    tiny.close(federation.server.model, tiny.mean_of(trained, tiny.SIZES))
