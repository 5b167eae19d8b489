"""Measures of two classes, of masks, of the k best and of pooled clients, against counting by hand and libraries."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from pytest import approx
from sklearn.metrics import f1_score, recall_score, roc_auc_score

from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.evaluation import available_metrics
from flray.tasks import make_task
from flray.tasks.classification import among_largest, binary_metrics
from flray.tasks.segmentation import dice_coefficient, hausdorff_distance
from tests.algorithms.helpers import gaussian_clients, run, spec_of
from tests.end_to_end.test_tasks import GLYPHS
from tests.messages import refused


def test_two_classes_by_hand() -> None:
    labels = np.array([1, 1, 1, 0, 0, 0, 0])
    scores = np.array([0.9, 0.6, 0.4, 0.8, 0.3, 0.2, 0.1])
    found = binary_metrics(scores, labels)
    # pairs in order: 0.9 beats 4, 0.6 beats 3, 0.4 beats 3, of 12
    assert found == approx(
        {"auc": 10 / 12, "sensitivity": 2 / 3, "specificity": 3 / 4, "f1": 4 / 6}
    )


def test_two_classes_equal_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=200)
    scores = np.round(np.clip(labels * 0.2 + generator.random(200) * 0.8, 0, 1), 2)  # with ties
    found, predicted = binary_metrics(scores, labels), scores > 0.5
    assert found["auc"] == approx(roc_auc_score(labels, scores), abs=1e-12)
    assert found["sensitivity"] == approx(recall_score(labels, predicted), abs=1e-12)
    assert found["specificity"] == approx(recall_score(labels, predicted, pos_label=0), abs=1e-12)
    assert found["f1"] == approx(f1_score(labels, predicted), abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "defined"),
    [([1, 1], {"sensitivity", "f1"}), ([0, 0], {"specificity", "f1"}), ([], set())],
)
def test_what_is_not_defined_is_nan(labels: list[int], defined: set[str]) -> None:
    found = binary_metrics(np.full(len(labels), 0.9), np.array(labels, dtype=np.int64))
    assert {name for name, value in found.items() if not math.isnan(value)} == defined


def box(top: int, left: int, height: int, width: int, size: int = 24) -> np.ndarray:
    mask = np.zeros((size, size), dtype=np.uint8)
    mask[top : top + height, left : left + width] = 1
    return mask


def test_a_shifted_square() -> None:
    first, second = box(4, 4, 10, 10), box(4, 7, 10, 10)
    assert dice_coefficient(first[None, None], second[None, None])[0, 0] == 0.7
    assert hausdorff_distance(first, second).tolist() == [3.0]


def test_a_far_pixel_counts_at_100_percent_only() -> None:
    truth = box(2, 2, 20, 20)
    predicted = truth.copy()
    predicted[0, 0] = 1
    largest, most = hausdorff_distance(predicted, truth, (100.0, 95.0))
    assert largest == approx(np.sqrt(8))
    assert most == 0


def test_empty_masks() -> None:
    nothing, something = box(0, 0, 0, 0), box(3, 3, 4, 4)
    pairs = [(nothing, nothing), (nothing, something), (something, nothing)]
    dice = [float(dice_coefficient(a[None, None], b[None, None])[0, 0]) for a, b in pairs]
    assert dice == [1.0, 0.0, 0.0]
    distances = [float(hausdorff_distance(a, b)[0]) for a, b in pairs]
    assert np.isnan(distances[0]) and distances[1:] == [np.inf, np.inf]


def masks(generator: np.random.Generator) -> np.ndarray:
    """Return boxes at the image's rim and inside, some with scattered pixels, one empty."""
    made = np.stack(
        [box(*generator.integers(0, 12, 2), *generator.integers(1, 13, 2)) for _ in range(12)]
    )
    made[:6] |= generator.random(made[:6].shape) < 0.02
    made[11] = 0
    return made.reshape(6, 2, 24, 24)


def test_equals_monai() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from monai.metrics import compute_dice, compute_hausdorff_distance

        generator = np.random.default_rng(5)
        predicted, truth = masks(generator), masks(generator)[::-1].copy()
        p, t = torch.from_numpy(predicted).float(), torch.from_numpy(truth).float()
        dice = compute_dice(p, t, include_background=True, ignore_empty=False).numpy()
        distances = [
            compute_hausdorff_distance(p, t, include_background=True, percentile=percentile).numpy()
            for percentile in (None, 95)
        ]
    assert_allclose(dice_coefficient(predicted, truth), dice, rtol=1e-6)
    pairs = zip(predicted.reshape(12, 24, 24), truth.reshape(12, 24, 24), strict=True)
    mine = np.array([hausdorff_distance(a, b, (100.0, 95.0)) for a, b in pairs]).reshape(6, 2, 2)
    assert np.isinf(mine).sum() == 4 and np.isfinite(mine).sum() == 20
    largest, most = distances
    assert_allclose(mine[..., 0], largest, rtol=1e-5)
    # MONAI interpolates between infinities where one mask is empty, which gives NaN
    assert_allclose(np.where(np.isinf(mine[..., 1]), np.nan, mine[..., 1]), most, rtol=1e-5)


def test_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 9, generator=generator, dtype=torch.float64)
    labels = torch.randint(9, (500,), generator=generator)
    for k in range(1, 9):
        wanted = (logits.topk(k, 1).indices == labels[:, None]).any(1)
        assert torch.equal(among_largest(logits, labels, k), wanted)


def test_exactly_k_classes_count_where_logits_are_equal() -> None:
    """A network that says nothing is right as often as chance."""
    logits, labels = torch.zeros(5, 5), torch.arange(5)
    assert among_largest(logits, labels, 2).sum() == 2
    assert torch.equal(among_largest(logits, labels, 1), logits.argmax(1) == labels)


def test_a_diverged_network_is_never_right() -> None:
    logits, labels = torch.full((5, 5), math.nan), torch.arange(5)
    assert not among_largest(logits, labels, 4).any()
    logits = torch.tensor([[math.nan, 1.0, 0.0]])
    assert not among_largest(logits, torch.tensor([1]), 1).any()
    assert among_largest(logits, torch.tensor([1]), 2).all()


@pytest.mark.parametrize("k", [3, 5])
def test_as_many_as_there_are_classes_is_refused(k: int) -> None:
    refused(spec_of, "fedavg", evaluation={"top_k": k})


@pytest.mark.parametrize("task", ["segmentation", "few-shot"])
def test_without_fixed_classes_it_is_refused(task: str) -> None:
    refused(make_task, task, ("cup",), top_k=5)


CLIENTS = gaussian_clients((5, 9, 40))
SETTINGS: dict[str, Any] = {"local": {"epochs": 1, "lr": 0.02}}


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_each_client_counts_by_its_samples(others: bool, measure: str) -> None:
    federation = run("local", CLIENTS, **SETTINGS, evaluation={"pooled": True, "others": others})
    found = federation.evaluate()
    clients = federation.spec.data.clients
    single = [found[f"personal/local/{measure}/client/{c.name}"] for c in clients]
    sizes = [len(c.test) for c in clients]
    assert sizes == [5, 9, 40]
    by_hand = sum(n * one for n, one in zip(sizes, single, strict=True)) / sum(sizes)
    assert found[f"personal/pooled/{measure}"] == pytest.approx(by_hand, rel=1e-12)
    assert found[f"personal/pooled/{measure}"] != found[f"personal/local/{measure}"]
    assert f"personal/pooled/{measure}" in available_metrics(federation.spec)
    plain = run("local", CLIENTS, **SETTINGS).spec
    assert f"personal/pooled/{measure}" not in available_metrics(plain)


def test_one_model_for_all_has_it_on_the_common_test_set() -> None:
    """Whose models are all the same need no measure of their own: that is what global/common is."""
    federation = run("fedavg", CLIENTS, **SETTINGS, evaluation={"pooled": True})
    found = federation.evaluate()
    clients = federation.spec.data.clients
    by_hand = sum(
        len(c.test) * found[f"global/local/accuracy/client/{c.name}"] for c in clients
    ) / len(federation.spec.data.test)
    assert found["global/common/accuracy"] == pytest.approx(by_hand, rel=1e-12)
    assert not any("pooled" in name for name in found)


def test_episodes_are_refused() -> None:
    config = load({"experiment": {**GLYPHS, "algorithm": "local", "evaluation": {"pooled": True}}})
    refused(build_spec, config.experiment)
