"""Losses at their edges, and what by-hand rounds of the methods do not reach."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from pytest import approx
from torch import nn
from torch.autograd import grad, gradcheck
from torch.testing import assert_close

import flray.functional as fn
from flray.functional import numerics
from tests.functional.helpers import f64, flat, near, normal

LABELS = torch.tensor([0, 1, 2, 0])


def test_balanced_softmax_neutral_and_absent_classes() -> None:
    logits = normal(4, 3).requires_grad_()
    (plain,) = grad(F.cross_entropy(logits, LABELS), logits)
    for counts in (torch.tensor([7, 7, 7]), torch.tensor([0, 0, 0])):
        (uniform,) = grad(fn.balanced_softmax_loss(logits, LABELS, counts), logits)
        assert_close(uniform, plain, rtol=1e-12, atol=1e-15)
    loss = fn.balanced_softmax_loss(logits, LABELS, torch.tensor([5, 0, 5]))
    assert torch.isfinite(loss) and torch.isfinite(grad(loss, logits)[0]).all()


def test_restricted_logits_scale_the_weights_not_the_bias() -> None:
    assert fn.restricted_scale(torch.zeros(2), 0.3, graded=True).tolist() == approx([0.3, 0.3])
    features, weight, bias = normal(4, 5), normal(3, 5, seed=1), normal(3, seed=2)
    scale = torch.tensor([1.0, 0.5, 0.0])
    found = fn.restricted_softmax_logits(features, weight, bias, scale)
    assert_allclose(found, (features @ weight.T).numpy() * scale.numpy() + bias.numpy(), rtol=1e-12)
    without = fn.restricted_softmax_logits(features, weight, None, scale)
    assert not without[:, 2].any()


@pytest.mark.slow
def test_equals_monai() -> None:
    with warnings.catch_warnings(action="ignore"):
        from monai.losses import DiceLoss

        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(4, 2, 8, 8, generator=generator, dtype=torch.float64)
        masks = (torch.rand(4, 2, 8, 8, generator=generator) < 0.3).double()
        masks[0, 1] = 0
        for s in (1e-5, 0.5):
            how = {"reduction": "none", "smooth_nr": s, "smooth_dr": s}
            theirs = DiceLoss(sigmoid=True, squared_pred=True, **how)
            expected = theirs(logits, masks).flatten(1).mean(1)
            assert_close(fn.dice_loss(logits, masks, s, "none"), expected, rtol=1e-9, atol=0)
            assert_close(fn.dice_loss(logits, masks, s), expected.mean(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200, 1e-320])
def test_unit_vectors_of_any_size(scale: float) -> None:
    directions = numerics.unit(f64([[3.0, -4.0], [0.0, 0.0]]) * scale)
    assert_allclose(directions, [[0.6, -0.8], [0.0, 0.0]], rtol=1e-3 if scale < 1e-300 else 1e-14)


def test_unit_gradient_along_any_dimension() -> None:
    vectors = normal(4, 3).requires_grad_()
    for dim in (0, 1, -1):
        assert gradcheck(lambda x, d=dim: numerics.unit(x, d), vectors)
    zero = torch.zeros(2, 3, requires_grad=True)
    (gradient,) = grad(numerics.unit(zero).sum(), zero)
    assert not gradient.any()
    # A diverged model must not look like a zero vector.
    assert numerics.unit(torch.tensor([[float("nan"), 1.0]])).isnan().all()


def test_means_of_nothing_are_zero_and_rows_that_are_not_kept_leave_no_trace() -> None:
    values = torch.zeros(0, requires_grad=True)
    assert numerics.batch_mean(values).item() == 0.0 and numerics.batch_mean(values).requires_grad
    spoilt = torch.tensor([float("nan"), 2.0, 4.0, float("inf")], requires_grad=True)
    mean = numerics.masked_mean(spoilt, torch.tensor([False, True, True, False]))
    assert mean.item() == 3.0 and grad(mean, spoilt)[0].tolist() == [0.0, 0.5, 0.5, 0.0]
    assert numerics.masked_mean(spoilt, torch.zeros(4).bool()).item() == 0.0
    rows = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")]], requires_grad=True)
    kept = numerics.keep_rows(rows, torch.tensor([True, False]))
    assert kept.tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert grad(kept.square().sum(), rows)[0].tolist() == [[2.0, 4.0], [0.0, 0.0]]


def test_cross_entropies() -> None:
    scores, labels = normal(5, 3).requires_grad_(), torch.tensor([0, 1, 2, 0, 1])
    assert torch.equal(numerics.cross_entropy(scores, labels), F.cross_entropy(scores, labels))
    assert numerics.cross_entropy(scores[:0], labels[:0]).item() == 0.0
    everything = numerics.masked_cross_entropy(scores, labels, torch.ones(3).bool())
    near(everything, F.cross_entropy(scores, labels).item(), rel=1e-14)
    some = numerics.masked_cross_entropy(scores, labels, torch.tensor([True, False, True]))
    kept = F.cross_entropy(scores[[0, 2, 3]][:, [0, 2]], torch.tensor([0, 1, 0]))
    near(some, kept.item(), rel=1e-14)
    assert not grad(some, scores)[0][:, 1].any()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_model_contrastive_first_round_scale_and_edges() -> None:
    own, common = normal(4, 3).requires_grad_(), normal(4, 3, seed=1)
    loss = fn.model_contrastive_loss(own, common, common)
    near(loss, math.log(2), rel=1e-15)
    assert not grad(loss, own)[0].any()
    before = normal(4, 3, seed=2)
    loss, scaled = (fn.model_contrastive_loss(one, common, before) for one in (own, 2 * own))
    assert torch.equal(loss, scaled)
    zero = torch.zeros(1, 3, requires_grad=True)
    loss = fn.model_contrastive_loss(zero, torch.ones(1, 3), -torch.ones(1, 3))
    assert loss.item() == approx(math.log(2)) and not grad(loss, zero)[0].any()
    ones = torch.ones(2, 3)
    near(fn.model_contrastive_loss(ones, -ones, ones, 1e-3), 2000.0, rel=1e-5)
    nothing = torch.ones(0, 3)
    assert fn.model_contrastive_loss(nothing, nothing, nothing).item() == 0.0


def relaxed(x: Any, y: Any, tau: float, threshold: float, beta: float, k: int, pairs: str) -> float:
    total = 0.0
    for a in range(len(x)):
        s = [1.0 if i == a else cosine(x[a], x[i]) for i in range(len(x))]
        partners = [s[i] for i in range(len(x)) if y[i] == y[a] and i != a]
        others = sorted((s[i] for i in range(len(x)) if y[i] != y[a]), reverse=True)
        positives, close = partners or [1.0], partners
        if pairs == "top":
            positives, close, others = [min(positives)], sorted(partners)[:1], others[:k]
        repulsion = sum(math.exp(v / tau) for v in others)
        shares = [math.exp(p / tau) / (math.exp(p / tau) + repulsion) for p in positives]
        total += sum(-math.log(share) for share in shares) / len(positives)
        attraction = sum(math.exp(v / tau) for v in close if v >= threshold)
        total += beta * -math.log(math.exp(1 / tau) / (math.exp(1 / tau) + attraction))
    return total / len(x)


@pytest.mark.parametrize("pairs", ["top", "all"])
@pytest.mark.parametrize(
    "labels", [[0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5, 6], [0] * 7, [0, 0, 0, 0, 0, 0, 1]]
)
@pytest.mark.parametrize("threshold", [0.2, 1.1])
def test_relaxed_contrastive_equals_loops(pairs: str, labels: list[int], threshold: float) -> None:
    features = normal(7, 4).requires_grad_()

    def call(x: torch.Tensor) -> torch.Tensor:
        return fn.relaxed_contrastive_loss(x, torch.tensor(labels), 0.3, threshold, 0.7, 2, pairs)  # type: ignore[arg-type]

    expected = relaxed(features.detach().numpy(), labels, 0.3, threshold, 0.7, 2, pairs)
    near(call(features), expected, rel=1e-11, abs=1e-14)
    assert gradcheck(call, features)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_relaxed_contrastive_small_batches_and_equal_samples(size: int) -> None:
    features = torch.ones(size, 3, dtype=torch.float64, requires_grad=True)
    loss = fn.relaxed_contrastive_loss(features, torch.zeros(size).long())
    loss.backward()
    # Two equal samples of one class: no contrast, the penalty is log 2 for each.
    near(loss, math.log(2) if size == 2 else 0.0)
    assert torch.isfinite(features.grad).all()


def test_correlation_of_identical_clients_and_affine_maps() -> None:
    own, mean = normal(9, 4), normal(9, 4, seed=1)
    assert_close(fn.cross_correlation(own, own).diagonal(), torch.ones(4, dtype=torch.float64))
    scaled = own * torch.tensor([2.0, 0.1, 30.0, 1e-3]) + torch.tensor([1.0, -5.0, 0.0, 1e3])
    losses = (fn.cross_correlation_loss(logits, mean) for logits in (scaled, own))
    near(next(losses), next(losses).item(), rel=1e-9)
    assert fn.cross_correlation(own, mean).abs().max() <= 1 + 1e-14


@pytest.mark.parametrize("value", [0.0, 0.1, 1e20, -7.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_without_variance_have_no_correlation(value: float, dtype: torch.dtype) -> None:
    own = normal(7, 3).to(dtype)
    own[:, 1] = value
    own.requires_grad_()
    mean = normal(7, 3, seed=1).to(dtype)
    mean[:, 2] = value
    correlation = fn.cross_correlation(own, mean)
    assert not correlation[1].any() and not correlation[:, 2].any() and correlation[0, 0] != 0
    (gradient,) = grad(fn.cross_correlation_loss(own, mean), own)
    assert torch.isfinite(gradient).all() and not gradient[:, 1].any() and gradient[:, 0].any()


def test_small_batches() -> None:
    one = normal(1, 3).requires_grad_()
    loss = fn.cross_correlation_loss(one, normal(1, 3, seed=1), 0.5)
    assert loss.item() == 3 + 0.5 * 6 and not grad(loss, one)[0].any()
    two = f64([[0.0, 5.0], [1.0, 2.0]])
    assert_allclose(fn.cross_correlation(two, two).numpy(), [[1, -1], [-1, 1]], rtol=1e-15)
    near(fn.cross_correlation_loss(two, two), 0.0, abs=1e-15)


def test_similarity_edges() -> None:
    features = f64([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], requires_grad=True)
    similarity = fn.instance_similarity(features)
    assert_allclose(similarity.detach().numpy(), [[0, 0], [0, 50], [0, 50]], rtol=1e-13)
    loss = fn.instance_similarity_loss(similarity, torch.zeros(3, 2, dtype=torch.float64))
    near(loss, 2 / 3 * (25 + math.log((1 + math.exp(-50)) / 2)))
    (gradient,) = grad(loss, features)
    assert torch.isfinite(gradient).all() and not gradient[0].any()
    for batch in (0, 1, 2):
        small = normal(batch, 4).requires_grad_()
        pair = (fn.instance_similarity(one) for one in (small, normal(batch, 4, seed=1)))
        flat(fn.instance_similarity_loss(*pair), small)
    # Saturated rows: the cosine divided by the paper's temperature reaches 50.
    rows = torch.tensor([[50.0, -50.0]] * 3)
    assert fn.instance_similarity_loss(rows, -rows).item() == 100.0


def test_saturated_logits_and_empty_batches_are_finite() -> None:
    student = f64([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = fn.distillation_loss(student, -student)
    loss = loss + fn.non_target_distillation_loss(student, -student, torch.tensor([0]), 1.0)
    loss.backward()
    assert loss.item() == approx(4e4, rel=1e-12) and torch.isfinite(student.grad).all()  # type: ignore[arg-type]
    empty = torch.empty(0, 3, requires_grad=True)
    assert fn.non_target_distillation_loss(empty, empty, torch.empty(0).long()).item() == 0.0


@pytest.mark.parametrize("classes", [10, 31, 65])  # of FCCL+'s data sets
def test_fntd_with_the_square_of_the_temperature_pulls_as_kd_does(classes: int) -> None:
    """On logits that moved from their teacher's; without the square it would be a ninth of that."""
    labels = torch.arange(256) % classes
    teacher = 2 * normal(256, classes) + 2 * F.one_hot(labels, classes)
    student = (teacher + normal(256, classes, seed=1)).requires_grad_()
    fntd = 3**2 * fn.non_target_distillation_loss(student, teacher, labels, 3.0)
    kd = fn.scaled_distillation_loss(student, teacher, 3.0)
    (one,), (other,) = grad(fntd, student), grad(kd, student)
    assert 0.5 < one.norm() / other.norm() < 2


def test_symmetric_cross_entropy_parts() -> None:
    sure = f64([[50.0, -50.0]])
    near(fn.symmetric_cross_entropy(sure, torch.tensor([0]), 0.0), 1e-7 * 9.2103, rel=1e-4)
    near(fn.symmetric_cross_entropy(sure, torch.tensor([1]), 0.0), -math.log(1e-4))
    assert fn.symmetric_cross_entropy(torch.zeros(0, 3), torch.zeros(0).long()).item() == 0.0


def test_neutral_cases_of_confidence_and_of_learning_from_peers() -> None:
    losses, uniform = torch.tensor([1.0, 2.0, 4.0]), approx([1 / 3] * 3)
    assert fn.confidence_weights(losses, losses * 2, eta=0.0).tolist() == uniform
    assert fn.confidence_weights(losses, losses).tolist() == uniform
    rising = fn.confidence_weights(losses, torch.tensor([0.9, 1.0, 1.0]))
    assert rising.tolist() == uniform  # a negative sum of efficiencies would reverse the ranking
    for one in ((losses[:1],), (losses[:1], losses[:1])):
        assert fn.confidence_weights(*one).tolist() == [0.0]
    perfect = fn.confidence_weights(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    assert perfect[0] > perfect[1] and perfect.sum().item() == approx(1.0)
    logits = normal(2, 3).requires_grad_()
    same = torch.softmax(logits.detach(), dim=1).expand(3, 2, 3)
    near(fn.peer_distillation_loss(logits, same, torch.ones(3).double(), 0), 0.0, abs=1e-15)
    flat(fn.peer_distillation_loss(logits, same[:1], torch.ones(1).double(), 0), logits)


def test_confidence_and_votes() -> None:
    logits = torch.tensor([[0.0, 2.0], [0.0, 1.0]])  # largest probabilities 0.881 and 0.731
    assert fn.confident(logits, 0.75).tolist() == [True, False]
    assert not fn.confident(logits, 1.01).any()
    # The second sample is tied three ways.
    picks = torch.tensor([[2, 2, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]])
    assert fn.vote(F.one_hot(picks, 3).double()).tolist() == [1, 2, 1, 1]
    own = normal(1, 5, 3)
    assert torch.equal(fn.vote(own.expand(3, 5, 3)), own[0].argmax(1))


FEATURES = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 3)))
FIVE = torch.tensor([0, 1, 2, 3, 0])


def test_single_participant_and_poisoned_own_head() -> None:
    features = torch.full((2, 3), float("inf"), dtype=torch.float64, requires_grad=True)
    flat(fn.peer_classifier_loss(features, FIVE[:2], [nn.Linear(3, 4).double()], 0), features)
    heads = [nn.Linear(3, 4).double() for _ in range(2)]
    nn.init.constant_(heads[0].weight, float("nan"))  # type: ignore[arg-type]
    assert torch.isfinite(fn.peer_classifier_loss(FEATURES[:1], FIVE[:1], heads, 0))


SEEN, WEIGHTS = torch.ones(3).bool(), torch.ones(2, dtype=torch.float64)


TREE, TWO = {"w": (3,)}, (fn.cross_correlation_loss, fn.digest_loss, fn.distillation_loss)
OF_CLASSES = (fn.hyper_feature_loss, fn.local_contrastive_loss)
OF_CLASSES += (fn.prototype_contrastive_loss, fn.prototype_loss)
ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    **dict.fromkeys((*TWO, fn.instance_similarity_loss), ((4, 3), (4, 3))),
    **dict.fromkeys(OF_CLASSES, ((4, 3), LABELS, (3, 3), SEEN)),
    fn.decomposition_penalty: (TREE, TREE),
    fn.proximal_penalty: (TREE, TREE, 0.5),
    fn.ewc_penalty: (TREE, TREE, TREE, 0.5),
    fn.helper_consistency_loss: ((4, 3), (2, 4, 3), torch.ones(4).bool()),
    fn.hyper_prediction_loss: ((3, 3), (3, 3), SEEN),
    fn.model_contrastive_loss: ((4, 3), (4, 3), (4, 3)),
    fn.peer_distillation_loss: ((4, 3), (2, 4, 3), WEIGHTS, 0),
}


@pytest.mark.parametrize("loss", ARGUMENTS)
def test_a_gradient_reaches_the_own_argument_alone(loss: Any) -> None:
    leaves: list[torch.Tensor] = []

    def made(value: Any) -> Any:
        """Return an argument of a shape, and others as they are."""
        if isinstance(value, dict):
            return {name: made(shape) for name, shape in value.items()}
        if not isinstance(value, tuple):
            return value
        leaves.append(normal(*value, seed=len(leaves)).requires_grad_())
        return leaves[-1]

    loss(*map(made, ARGUMENTS[loss])).backward()
    assert [leaf.grad is not None for leaf in leaves] == [True, *[False] * (len(leaves) - 1)]
