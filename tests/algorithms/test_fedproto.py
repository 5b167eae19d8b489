from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray import trees
from flray.config.experiment import Config
from flray.errors import ConfigError
from flray.federation.building import build_spec
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny
from tests.algorithms.test_tasks import FEW_SHOT

DROPOUT = {"name": "two-layer", "dropout": 0.2}
FULL = {"batch_size": 99}
W, V = "features.first.weight", "classifier.weight"


def personal(federation: Federation) -> list[str]:
    return [trees.sha256(tiny.state_of(federation, i)["personal"]) for i in range(3)]


def test_lam_zero_is_local_and_so_is_the_first_round() -> None:
    local = [personal(tiny.run("local", rounds=r, model=DROPOUT)) for r in (1, 2)]
    assert personal(tiny.run({"name": "fedproto", "lam": 0.0}, rounds=2, model=DROPOUT)) == local[1]
    assert personal(tiny.run("fedproto", rounds=1, model=DROPOUT)) == local[0]
    assert personal(tiny.run("fedproto", rounds=2, model=DROPOUT)) != local[1]


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_prototypes_are_means_over_the_clients_that_hold_the_class(weighting: str) -> None:
    """Inputs are the features of a network whose body has no parameters; client i lacks class i, nobody has class 3."""
    state = tiny.run(
        {"name": "fedproto", "weighting": weighting},
        tiny.gaussian_clients(skew=True),
        classes=4,
        model="one-layer",
    ).server.state["prototypes"]
    for c in range(3):
        held = [x[y == c] for x, y in tiny.tensors(skew=True) if (y == c).any()]
        assert len(held) == 2
        mean = (
            torch.stack([h.mean(0) for h in held]).mean(0)
            if weighting == "uniform"
            else torch.cat(held).mean(0)
        )
        tiny.close(state["vectors"][c], mean)
    assert state["present"].tolist() == [True, True, True, False]


@pytest.mark.parametrize("own", [False, True])
def test_the_nearest_known_prototype_predicts(own: bool) -> None:
    federation = tiny.run(
        {"name": "fedproto", "own_classes": own},
        tiny.gaussian_clients(skew=True),
        classes=4,
        model="one-layer",
    )
    prototypes = federation.server.state["prototypes"]["vectors"]
    metrics, test = federation.evaluate(), tiny.tensors(skew=True)
    for i, (x, y) in enumerate(test):
        distances = (x[:, None] - prototypes[None]).norm(dim=2)
        # Nobody holds it; its row of zeros would be a point like any other.
        distances[:, 3] = torch.inf
        if own:
            distances[:, i] = torch.inf
        assert (
            metrics[f"personal/local/accuracy/client/client{i}"]
            == (distances.argmin(1) == y).double().mean()
        )
        assert metrics[f"personal/local/loss/client/client{i}"] == pytest.approx(
            float(F.cross_entropy(-distances, y))
        )


def test_the_classifier_predicts_where_asked_and_before_there_are_prototypes() -> None:
    by_classifier = {"name": "fedproto", "predict": "classifier"}
    federation = tiny.fresh("fedproto")
    assert federation.evaluate() == tiny.fresh(by_classifier).evaluate()
    federation.step()
    assert federation.evaluate() != tiny.run(by_classifier).evaluate()
    assert tiny.run(by_classifier).evaluate() == tiny.run("local").evaluate()


@pytest.mark.parametrize("per_feature", [False, True])
def test_two_rounds_by_hand(per_feature: bool) -> None:
    federation = tiny.run(
        {"name": "fedproto", "lam": 0.5, "per_feature": per_feature},
        model="linear-body",
        local=FULL,
        rounds=2,
    )
    clients, start = tiny.tensors(), tiny.start(federation)
    trained = [
        tiny.gradient_step(start, lambda p, x=x, y=y: F.cross_entropy(x @ p[W].T @ p[V].T, y))
        for x, y in clients
    ]
    prototypes = torch.stack(
        [
            torch.stack(
                [(x @ p[W].T)[y == c].mean(0) for (x, y), p in zip(clients, trained, strict=True)]
            ).mean(0)
            for c in range(3)
        ]
    )

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        f = x @ p[W].T
        distance = (f - prototypes[y]).square().sum(1).mean() / (5 if per_feature else 1)
        return F.cross_entropy(f @ p[V].T, y) + 0.5 * distance

    for i, (x, y) in enumerate(clients):
        tiny.assert_weights(
            tiny.state_of(federation, i)["personal"],
            tiny.gradient_step(trained[i], lambda p, x=x, y=y: loss(p, x, y)),
        )


def test_networks_may_differ_but_not_in_their_number_of_features() -> None:
    federation = tiny.run(
        "fedproto", rounds=2, models={"client0": {"name": "two-layer", "norm": False}}
    )
    assert len(federation.server.models) == 2 and federation.server.state["prototypes"][
        "vectors"
    ].shape == (3, 5)
    with pytest.raises(
        ConfigError, match="found two-layer: 4, two-layer-2: 5; fedproto compares features"
    ):
        tiny.spec_of("fedproto", models={"client0": {"name": "two-layer", "width": 4}})


def test_in_few_shot_learning_the_distance_is_added_to_the_episodes_loss() -> None:
    """Unseen classes have no shared prototype: the tested model is the embedding, and lam = 0 is FedAvg."""

    def weights(algorithm: str | dict[str, object], rounds: int) -> str:
        federation = tiny.federation_of(
            build_spec(
                Config.model_validate(
                    {"experiment": {"algorithm": algorithm, **FEW_SHOT}}
                ).experiment
            )
        )
        for _ in range(rounds):
            metrics = federation.step().metrics
        assert 0 <= metrics["global/common/accuracy"] <= 1
        return trees.sha256(federation.server.model)

    paper = {"name": "fedproto", "preset": "fedskc"}
    assert weights({**paper, "lam": 0.0}, 2) == weights("fedavg", 2)
    assert weights(paper, 1) == weights("fedavg", 1)
    assert weights(paper, 2) != weights("fedavg", 2)
