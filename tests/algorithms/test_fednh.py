import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray.algorithms.fednh import W, spread
from tests.algorithms import helpers as tiny

S = "classifier.scale"
SKEWED = tiny.gaussian_clients(skew=True)


def random(classes: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(classes, size, dtype=torch.float64, generator=generator)


def largest_cosine(vectors: Tensor) -> float:
    return float((F.normalize(vectors) @ F.normalize(vectors).T).fill_diagonal_(-1).max())


@pytest.mark.parametrize(
    ("classes", "size", "cosine"),
    [
        (3, 5, 0.0),
        (7, 4, 0.0),
        (8, 4, 0.0),
        (7, 2, math.cos(2 * math.pi / 7)),
        (8, 3, 0.2612),
        (12, 3, 1 / math.sqrt(5)),
    ],
)
def test_the_class_vectors_start_far_apart(classes: int, size: int, cosine: float) -> None:
    """Best known: the square antiprism for 8 in three dimensions, the icosahedron for 12."""
    vectors = spread(random(classes, size))
    tiny.close(vectors.norm(dim=1), torch.ones(classes, dtype=torch.float64))
    assert largest_cosine(vectors) == pytest.approx(cosine, abs=5e-3 if size == 3 else 1e-12)
    assert largest_cosine(random(classes, size)) > cosine + 0.1
    if classes <= size:
        tiny.close(vectors @ vectors.T, torch.eye(classes, dtype=torch.float64))


def test_with_full_momentum_w_keeps_its_bits_whatever_the_optimiser_does() -> None:
    local = {"momentum": 0.9, "weight_decay": 0.1}
    federation = tiny.run({"name": "fednh", "rho": 1.0}, rounds=3, local=local)
    before, after = tiny.start(federation), federation.server.model
    assert torch.equal(before[W], after[W])
    assert not any(torch.equal(before[name], after[name]) for name in (S, tiny.W))


def test_rows_of_w_have_length_1_after_every_round() -> None:
    federation = tiny.fresh("fednh", SKEWED, participation={"clients": 1})
    for _ in range(4):
        before = federation.server.model[W]
        federation.step()
        after = federation.server.model[W]
        tiny.close(after.norm(dim=1), torch.ones(3, dtype=torch.float64))
        # a client lacks the class of its own number, whose vector then stays
        stayed = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
        assert stayed == [c == federation.server.cohort[0] for c in range(3)]


def test_a_round_by_hand() -> None:
    """The body has no parameters: two full-batch steps on s alone, and W from the directions of the inputs."""
    options = {"name": "fednh", "rho": 0.7, "scale": 2.0}
    federation = tiny.run(options, SKEWED, **tiny.full(epochs=2))
    w, scales = tiny.start(federation)[W], []
    pull = torch.zeros(3, 4, dtype=torch.float64)
    for x, y in tiny.as_tensors(SKEWED):
        directions = x / x.norm(dim=1, keepdim=True)
        cosines = directions @ w.T
        s = torch.tensor(2.0, dtype=torch.float64)
        for _ in range(2):
            p = torch.softmax(s * cosines, dim=1)
            p[torch.arange(len(y)), y] -= 1
            s = s - 0.1 * (p * cosines).sum() / len(y)
        scales.append(s)
        for c in y.unique():
            u = directions[y == c].mean(0)
            pull[c] += (y == c).sum() * u / u.norm()
    moved = 0.7 * w + 0.3 * pull / pull.norm(dim=1, keepdim=True)
    expected = {S: torch.stack(scales).mean(), W: moved / moved.norm(dim=1, keepdim=True)}
    tiny.close(federation.server.model, expected)


def test_a_fixed_scale_is_no_part_of_the_state_and_bounds_the_logits() -> None:
    federation = tiny.run({"name": "fednh", "scale": 30.0, "train_scale": False}, rounds=2)
    assert S not in federation.server.model
    model = federation.spec.build("two-layer")
    model.load_state_dict(federation.server.model)
    assert 20 < model(random(50, 4)).abs().max() <= 30


def test_personal_models_are_the_clients_last_ones_and_change_no_training() -> None:
    runs = [tiny.run({"name": "fednh", "personal": on}, rounds=2) for on in (True, False)]
    assert tiny.models_sha(runs[0]) == tiny.models_sha(runs[1])
    assert all(handle is None for handle in runs[1].states)
    metrics, fresh = runs[0].evaluate(), tiny.federation_of(runs[0].spec).evaluate()
    assert metrics["personal/local/loss"] < metrics["global/local/loss"]
    assert fresh["personal/local/loss"] == fresh["global/local/loss"]
