from __future__ import annotations

import pytest
import torch

from flray import trees
from flray.errors import FlrayError
from tests.algorithms import helpers as tiny

DROPOUT = {"name": "two-layer", "dropout": 0.2}
SKEWED = tiny.gaussian_clients(skew=True)


def rs(alpha: float, graded: bool = False) -> dict[str, object]:
    return {"name": "fedrs", "alpha": alpha, "graded": graded}


def digest(algorithm: object, **settings: object) -> str:
    return tiny.digest(algorithm, SKEWED, rounds=2, **settings)  # type: ignore[arg-type]


def test_alpha_one_is_fedavg() -> None:
    assert digest(rs(1.0), model=DROPOUT) == digest("fedavg", model=DROPOUT)
    assert digest(rs(1.0, graded=True), model=DROPOUT) == digest("fedavg", model=DROPOUT)
    assert digest(rs(0.5)) != digest("fedavg")


def test_the_binary_rule_is_fedavg_where_all_clients_hold_all_classes() -> None:
    assert tiny.digest(rs(0.0), rounds=2) == tiny.digest("fedavg", rounds=2)


@pytest.mark.parametrize("graded", [False, True])
def test_one_step_by_hand(graded: bool) -> None:
    """Logits (a_c W_c) x, so the gradient of W_c is a_c times that of plain softmax regression at a W."""
    federation = tiny.run(rs(0.25, graded), SKEWED, model="one-layer", local={"batch_size": 99})
    w = tiny.start(federation)["classifier.weight"]
    expected, total = torch.zeros_like(w), 0
    for i, (x, y) in enumerate(tiny.as_tensors(SKEWED)):
        counts = torch.bincount(y, minlength=3).double()
        assert counts[i] == 0
        a = (
            0.25 + 0.75 * counts / counts.max()
            if graded
            else torch.where(counts > 0, 1.0, 0.25).double()
        )
        p = torch.softmax(x @ (a[:, None] * w).T, dim=1)
        p[torch.arange(len(y)), y] -= 1
        expected += len(y) * (w - 0.1 * a[:, None] * (p.T @ x) / len(y))
        total += len(y)
    tiny.close(federation.server.model["classifier.weight"], expected / total)


def test_alpha_zero_leaves_the_rows_of_missing_classes() -> None:
    alone = tiny.run(rs(0.0), SKEWED[:1], model="one-layer", rounds=2)
    before, after = (
        f.server.model["classifier.weight"] for f in (tiny.federation_of(alone.spec), alone)
    )
    assert torch.equal(before[0], after[0]) and not torch.equal(before[1:], after[1:])


def test_the_graded_rule_differs_from_fedavg_where_all_clients_hold_all_classes() -> None:
    graded = tiny.run(rs(0.5, graded=True), tiny.gaussian_clients((11, 9, 13)), rounds=1)
    assert tiny.models_sha(graded) != trees.sha256(
        tiny.run("fedavg", tiny.gaussian_clients((11, 9, 13)), rounds=1).server.models
    )


def test_a_classifier_of_several_layers_is_refused() -> None:
    with pytest.raises(FlrayError, match="one linear layer as classifier, found Sequential"):
        tiny.spec_of("fedrs", model="deep-classifier")
