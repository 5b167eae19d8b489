from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray import trees
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W
from tests.algorithms.test_tasks import FEW_SHOT, world_of

# Inputs are the features of a network whose body has no parameters; client i lacks class i, nobody has class 3.
SKEWED = {"clients": tiny.gaussian_clients(skew=True), "classes": 4, "model": "one-layer"}


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_prototypes_are_means_over_the_clients_that_hold_the_class(weighting: str) -> None:
    federation = tiny.run({"name": "fedproto", "weighting": weighting}, **SKEWED)
    state = federation.server.state["prototypes"]
    for c in range(3):
        held = [x[y == c] for x, y in tiny.tensors(skew=True) if (y == c).any()]
        assert len(held) == 2
        parts = [h.mean(0, keepdim=True) for h in held] if weighting == "uniform" else held
        tiny.close(state["vectors"][c], torch.cat(parts).mean(0))
    assert state["present"].tolist() == [True, True, True, False]


@pytest.mark.parametrize("own", [False, True])
def test_the_nearest_known_prototype_predicts(own: bool) -> None:
    federation = tiny.run({"name": "fedproto", "own_classes": own}, **SKEWED)
    prototypes = federation.server.state["prototypes"]["vectors"]
    metrics = federation.evaluate()
    for i, (x, y) in enumerate(tiny.tensors(skew=True)):
        distances = (x[:, None] - prototypes[None]).norm(dim=2)
        # Nobody holds it; its row of zeros would be a point like any other.
        distances[:, [3, i] if own else [3]] = torch.inf
        right = (distances.argmin(1) == y).double().mean()
        assert metrics[f"personal/local/accuracy/client/client{i}"] == right
        tiny.has_loss(federation, i, -distances)


def test_the_classifier_predicts_where_asked_and_before_there_are_prototypes() -> None:
    by_classifier = {"name": "fedproto", "predict": "classifier"}
    federation = tiny.fresh("fedproto")
    assert federation.evaluate() == tiny.fresh(by_classifier).evaluate()
    federation.step()
    assert federation.evaluate() != tiny.run(by_classifier).evaluate()
    assert tiny.run(by_classifier).evaluate() == tiny.run("local").evaluate()


@pytest.mark.parametrize("per_feature", [False, True])
def test_two_rounds_by_hand(per_feature: bool) -> None:
    options = {"name": "fedproto", "lam": 0.5, "per_feature": per_feature}
    federation = tiny.run(options, rounds=2, **tiny.full("linear-body"))
    clients = tiny.tensors()
    trained = tiny.each_step(tiny.start(federation), clients)
    features = [(x @ p[W].T, y) for (x, y), p in zip(clients, trained, strict=True)]
    means = [torch.stack([f[y == c].mean(0) for c in range(3)]) for f, y in features]
    prototypes = torch.stack(means).mean(0)

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        f = x @ p[W].T
        distance = (f - prototypes[y]).square().sum(1).mean() / (5 if per_feature else 1)
        return F.cross_entropy(f @ p[V].T, y) + 0.5 * distance

    for i, expected in enumerate(tiny.each_step(trained, clients, loss)):
        tiny.close(tiny.kept(federation, i), expected)


def test_networks_may_differ() -> None:
    models = {"client0": {"name": "two-layer", "norm": False}}
    server = tiny.run("fedproto", rounds=2, models=models).server
    assert len(server.models) == 2 and server.state["prototypes"]["vectors"].shape == (3, 5)


def test_in_few_shot_learning_the_distance_is_added_to_the_episodes_loss() -> None:
    """Unseen classes have no shared prototype: the tested model is the embedding, and lam = 0 is FedAvg."""

    def digests(**algorithm: object) -> list[str]:
        federation, found = tiny.federation_of(world_of(algorithm, FEW_SHOT)), []
        for _ in range(2):
            assert 0 <= federation.step().metrics["global/common/accuracy"] <= 1
            found.append(trees.sha256(federation.server.model))
        return found

    paper = {"name": "fedproto", "preset": "fedskc"}
    plain, first, off = digests(name="fedavg"), digests(**paper), digests(**paper, lam=0.0)
    assert off == plain and first[0] == plain[0] and first[1] != plain[1]
