"""Sets that are drawn or composed here, and the steps to them: what they promise, whatever the seed."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.linalg import eigvalsh, logm
from sklearn.neighbors import KNeighborsClassifier

from flray.data import DataSet, Domain
from flray.data.datasets import eeg
from flray.data.datasets.embedded import FONTS, _atlas, _ink, _paint
from flray.data.datasets.fundus import SOURCES
from flray.data.loading import load_dataset, take_subset, validate_dataset
from flray.data.sources import images
from tests.helpers import cases
from tests.messages import refused


def test_random_has_the_shape_asked_for() -> None:
    dataset = load_dataset("random", {"samples": 1000, "shape": [1, 8, 8], "classes": 4})
    (domain,) = dataset.domains
    assert domain.train_x.shape == (1000, 1, 8, 8) and domain.train_x.dtype == np.float32
    assert np.bincount(domain.train_y).tolist() == [250] * 4
    assert np.bincount(domain.test_y).tolist() == [50] * 4
    assert abs(float(domain.train_x.mean())) < 0.02
    assert float(domain.train_x.std()) == pytest.approx(1, abs=0.02)


def test_fundus_synthetic() -> None:
    data = load_dataset("fundus-synthetic", {"samples": 20, "size": 32})
    assert [d.name for d in data.domains] == list(SOURCES) == list("ABCDEF")
    assert data.task == "segmentation" and data.classes == ("disc", "cup")
    looks = []
    for domain in data.domains:
        assert domain.origin == "rendered"
        assert domain.train_x.shape == (16, 3, 32, 32) and domain.test_y.shape == (4, 2, 32, 32)
        disc, cup = domain.train_y[:, 0], domain.train_y[:, 1]
        assert (cup <= disc).all() and cup.any((1, 2)).all()
        areas = disc.mean((1, 2))
        assert areas.min() > 0.02 and areas.max() < 0.4
        looks.append(domain.train_x.mean((0, 2, 3)))
        # what is to be found can be seen: inside and outside differ more than the noise of a mean
        inside = (domain.train_x * disc[:, None]).sum((0, 2, 3)) / disc.sum()
        outside = (domain.train_x * (1 - disc[:, None])).sum((0, 2, 3)) / (1 - disc).sum()
        assert np.abs(inside - outside).max() > 20
        # The odd one: dark on a bright ground.
        assert (inside.mean() > outside.mean()) == (domain.name != "E")
    distances = [np.abs(a - b).max() for i, a in enumerate(looks) for b in looks[:i]]
    assert min(distances) > 5


def test_glyphs_have_other_classes_for_test() -> None:
    data = load_dataset("glyphs", {"classes": 12, "unseen": 5, "samples": 7, "size": 24})
    (domain,) = data.domains
    seen, unseen = set(domain.train_y.tolist()), set(domain.test_y.tolist())
    assert (len(seen), len(unseen), seen & unseen, len(data.classes)) == (7, 5, set(), 12)
    assert domain.train_x.shape == (49, 1, 24, 24) and len(set(data.classes)) == 12


def test_eeg_synthetic() -> None:
    data = load_dataset("eeg-synthetic", {"samples": 40})
    assert data.task == "binary" and len(data.domains) == 4
    for domain, channels in zip(data.domains, (8, 11, 15, 7), strict=True):
        assert domain.train_x.shape == (32, 120) and domain.train_x.dtype == np.float32
        length = channels * (channels + 1) // 2
        assert not domain.train_x[:, length:].any() and domain.train_x[:, :length].all(1).all()
        assert set(domain.train_y.tolist()) == {0, 1}


def test_every_font_has_ten_different_digits_of_one_height() -> None:
    tiles, widths = _atlas()
    assert tiles.shape[:2] == (len(FONTS), 10)
    for font in tiles:
        assert len({tile.tobytes() for tile in font}) == 10
        rows = (font > 0.5).any(axis=2).sum(axis=1)
        assert 28 <= rows.min() <= rows.max() <= 38
    assert 8 <= widths.min() <= widths.max() <= 40


def test_the_labelled_digit_is_the_one_in_the_middle() -> None:
    # Nearest neighbour on the middle columns tells it; neighbouring digits would not.
    labels = np.arange(2000) % 10
    ink = _ink(labels, np.random.default_rng(0))[:, 4:28, 8:24].reshape(len(labels), -1)
    found = KNeighborsClassifier(1).fit(ink[:1600], labels[:1600]).predict(ink[1600:])
    assert (found == labels[1600:]).mean() > 0.6


def test_ink_differs_from_paper_in_brightness() -> None:
    half = np.zeros((400, 32, 32), dtype=np.float32)
    half[:, 10:22, 10:22] = 1
    painted = _paint(half, np.random.default_rng(0)).astype(float)
    brightness = np.einsum("c,nchw->nhw", [0.299, 0.587, 0.114], painted)
    inside = brightness[:, 13:19, 13:19].mean((1, 2))
    outside = (brightness[:, 6:8].mean((1, 2)) + brightness[:, 24:26].mean((1, 2))) / 2
    assert np.quantile(np.abs(inside - outside), 0.05) > 25


def test_a_subset_is_small_has_every_class_and_is_always_the_same() -> None:
    whole = load_dataset("digits-sklearn")
    small, again = take_subset(whole, 30), take_subset(whole, 30)
    assert small.fingerprint != whole.fingerprint
    assert take_subset(whole, 10**6).fingerprint == whole.fingerprint
    without = replace(whole.domains[0], test_x=whole.domains[0].test_x[:0], test_y=np.arange(0))
    assert not len(take_subset(replace(whole, domains=(without,)), 30).domains[0].test_y)
    for before, after, same in zip(whole.domains, small.domains, again.domains, strict=True):
        assert len(after.train_y) == len(after.test_y) == 30
        assert set(after.train_y) == set(after.test_y) == set(range(10))
        assert np.array_equal(after.train_x, same.train_x)
        known = {x.tobytes(): y for x, y in zip(before.train_x, before.train_y, strict=True)}
        labels = [known[x.tobytes()] for x in after.train_x]
        assert np.array_equal(labels, after.train_y)


def test_resize_and_a_digit_over_a_photo_by_hand() -> None:
    assert images.resize(np.array([[0, 100], [0, 100]]), 4).tolist() == [[0, 25, 75, 100]] * 4
    even = images.resize(np.full((2, 3, 28, 28), 200), 32)
    assert np.array_equal(even, np.full((2, 3, 32, 32), 200))
    crop = np.array([[[[10, 250]], [[0, 128]], [[255, 1]]]], dtype=np.uint8)
    over = images.over_photos(np.array([[[100, 255]]], dtype=np.uint8), crop)
    assert over.tolist() == [[[[90, 5]], [[100, 127]], [[155, 254]]]]


def test_crops_are_pieces_of_the_photos_with_contrast_and_follow_the_generator() -> None:
    crops = images.photo_crops(20, 16, np.random.default_rng(0), max_scale=1)
    assert crops.shape == (20, 3, 16, 16)
    view = np.lib.stride_tricks.sliding_window_view
    windows = [view(photo[..., 1], (16, 16)) for photo in images.bundled_photos()]
    for crop in crops[:, 1]:
        found = 0
        for seen, window in product((crop, crop[:, ::-1]), windows):
            alike = (window[..., 0, 0] == seen[0, 0]) & (window[..., 8, 8] == seen[8, 8])
            found += sum(np.array_equal(one, seen) for one in window[alike])
        assert found >= 1
    made = (images.photo_crops(300, 28, np.random.default_rng(seed)) for seed in (0, 0, 1))
    crops, again, other = made
    assert np.array_equal(crops, again) and not np.array_equal(crops, other)
    assert (crops.std(axis=(2, 3)).mean(1) >= 20).mean() > 0.95


def test_statistics_agree_with_numpy() -> None:
    parts = np.random.default_rng(0).integers(0, 256, (2, 9, 3, 4, 4), dtype=np.uint8)
    mean, std = images.channel_statistics(parts)
    pooled = np.concatenate(parts) / 255
    assert mean == pytest.approx(pooled.mean((0, 2, 3)), abs=1e-6)
    assert std == pytest.approx(pooled.std((0, 2, 3)), abs=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8])
def test_statistics_of_a_table_are_of_its_columns(dtype: type) -> None:
    """The square roots of 8/3 and 200/3; a column that never changes."""
    parts = [np.array([[0, 10, 5], [4, 30, 5]], dtype=dtype), np.array([[2, 20, 5]], dtype=dtype)]
    found = images.channel_statistics(parts)
    assert found == ((2.0, 20.0, 5.0), (1.63299, 8.16497, 1.0))
    signals = np.stack([parts[0]] * 4, 2)
    assert images.channel_statistics([signals]) == ((2.0, 20.0, 5.0), (2.0, 10.0, 1.0))


@pytest.mark.parametrize(
    "part", [np.zeros(3), np.zeros((0, 3)), np.array([["a"]]), np.zeros((2, 3), np.uint8)]
)
def test_what_has_no_statistics_is_one_line(part: np.ndarray[Any, Any]) -> None:
    refused(images.channel_statistics, [part])
    refused(images.channel_statistics, [np.zeros((2, 3)), np.zeros((2, 4))])


@cases(
    "mean, std",
    """[0.5, [1.0]], [[0.5], 1.0], [[a], [1.0]], [[0.0, 0.0], [1.0, 1.0]], [[.nan], [1.0]],
    [[0.5, 0.5, 0.5], [0.0, 0.0, 0.0]], [null, null]""",
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_wrong_mean_is_one_line(mean: Any, std: Any, dtype: type) -> None:
    mean, std = (tuple(one) if isinstance(one, list) else one for one in (mean, std))
    x = np.zeros((2, 3, 4, 4), dtype=dtype)
    refused(validate_dataset, "own", own(x, x, mean, std))


def own(train: Any, test: Any, mean: Any = (0.0,), std: Any = (1.0,)) -> DataSet:
    y = np.arange(len(train)) % 2
    return DataSet("own", (Domain("d", "real", train, y, test, y),), ("a", "b"), mean, std)


def test_a_sample_that_is_no_number_is_named() -> None:
    whole = np.ones((4, 3), dtype=np.float32)
    holed = np.where(np.arange(12).reshape(4, 3) == 7, np.nan, whole).astype(np.float32)
    refused(validate_dataset, "own", own(whole, holed))


TRIALS = np.random.default_rng(0).standard_normal((6, 4, 50))


def test_covariances() -> None:
    raw = eeg.covariances(TRIALS, shrinkage=0.0)
    np.testing.assert_allclose(raw, np.stack([np.cov(t, bias=True) for t in TRIALS]), rtol=1e-12)
    shrunk = eeg.covariances(np.repeat(TRIALS[:, :1], 4, axis=1))  # of one channel: rank 1
    assert (np.linalg.eigvalsh(shrunk) > 0).all()
    traces = np.trace(shrunk, axis1=1, axis2=2)
    np.testing.assert_allclose(traces, 4 * TRIALS[:, 0].var(1), rtol=1e-12)


def test_mean_and_vectors_by_definition() -> None:
    matrices = eeg.covariances(TRIALS)
    mean = eeg.log_euclidean_mean(matrices)
    np.testing.assert_allclose(logm(mean), np.mean([logm(m) for m in matrices], 0), atol=1e-12)
    vectors = eeg.tangent_vectors(matrices, mean)
    distances = [np.sqrt((np.log(eigvalsh(m, mean)) ** 2).sum()) for m in matrices]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), distances, rtol=1e-10)
    assert np.abs(eeg.tangent_vectors(mean[None], mean)).max() < 1e-12
    diagonal = eeg.tangent_vectors(np.diag([np.e, 1.0])[None], np.eye(2))
    np.testing.assert_allclose(diagonal, [[1, 0, 0]], atol=1e-15)
    found = eeg.tangent_vectors(np.array([[[1.25, 0.75], [0.75, 1.25]]]), np.eye(2))
    expected = [[np.log(2) / 2 + np.log(0.5) / 2, np.sqrt(2) * np.log(2), 0]]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_source_of_one_class_is_named() -> None:
    x = eeg.covariances(eeg.trials(np.arange(40) % 2, 5, 0.5, np.random.default_rng(5)))
    refused(eeg.dataset_of, "eeg", {"AlexMI": (x, np.ones(40, dtype=np.int64))}, 0)


class MotorImagery:
    """Answers as MOABB's paradigm does: trials, names of events, and a table that is not used."""

    def __init__(self, **settings: Any) -> None:
        events = ["feet", "right_hand"]
        assert settings == {"events": events, "n_classes": 2, "fmin": 8.0, "fmax": 32.0}

    def get_data(self, dataset: Any) -> tuple[Any, Any, None]:
        return dataset


def test_events_become_labels_by_name() -> None:
    answer = np.zeros((3, 2, 5)), np.array(["right_hand", "feet", "right_hand"]), None
    x, y = eeg.imagery_trials(answer, SimpleNamespace(MotorImagery=MotorImagery), 8.0, 32.0)
    assert y.tolist() == [1, 0, 1] and x.shape == (3, 2, 5)


def test_without_moabb_a_line_says_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "moabb", None)
    refused(load_dataset, "eeg", root=tmp_path)
