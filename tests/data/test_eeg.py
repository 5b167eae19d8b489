"""From trials to zero-padded tangent vectors; MOABB itself is an extra. Lengths are Riemannian distances."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import eigvalsh, logm

from flray.data.datasets import eeg
from flray.data.datasets.eeg import (
    covariances,
    log_euclidean_mean,
    pad_vectors,
    tangent_vectors,
    trials,
)
from flray.data.loading import load_dataset
from tests.messages import refused

TRIALS = np.random.default_rng(0).standard_normal((6, 4, 50))


def test_covariances() -> None:
    raw = covariances(TRIALS, shrinkage=0.0)
    np.testing.assert_allclose(raw, np.stack([np.cov(t, bias=True) for t in TRIALS]), rtol=1e-12)
    shrunk = covariances(np.repeat(TRIALS[:, :1], 4, axis=1))  # four copies of one channel: rank 1
    assert (np.linalg.eigvalsh(shrunk) > 0).all()
    np.testing.assert_allclose(
        np.trace(shrunk, axis1=1, axis2=2), 4 * TRIALS[:, 0].var(1), rtol=1e-12
    )


def test_mean_and_vectors_by_definition() -> None:
    matrices = covariances(TRIALS)
    mean = log_euclidean_mean(matrices)
    np.testing.assert_allclose(logm(mean), np.mean([logm(m) for m in matrices], 0), atol=1e-12)
    vectors = tangent_vectors(matrices, mean)
    distances = [np.sqrt((np.log(eigvalsh(m, mean)) ** 2).sum()) for m in matrices]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), distances, rtol=1e-10)
    assert np.abs(tangent_vectors(mean[None], mean)).max() < 1e-12
    diagonal = tangent_vectors(np.diag([np.e, 1.0])[None], np.eye(2))
    np.testing.assert_allclose(diagonal, [[1, 0, 0]], atol=1e-15)
    np.testing.assert_allclose(
        tangent_vectors(np.array([[[1.25, 0.75], [0.75, 1.25]]]), np.eye(2)),
        [[np.log(2) / 2 + np.log(0.5) / 2, np.sqrt(2) * np.log(2), 0]],
        atol=1e-12,
    )


def test_padding() -> None:
    made = pad_vectors(np.ones((2, 3)), 5)
    assert made.dtype == np.float32 and made.tolist() == [[1, 1, 1, 0, 0]] * 2
    refused(pad_vectors, np.ones((2, 3)), 2)


def sources(samples: int = 40) -> dict[str, eeg.Trials]:
    y = np.arange(samples, dtype=np.int64) % 2
    return {
        name: (covariances(trials(y, channels, 0.5, np.random.default_rng(channels))), y)
        for name, channels in (("AlexMI", 5), ("Zhou2016", 3))
    }


def test_sources_are_split_by_class_and_padded_to_the_widest() -> None:
    dataset = eeg.dataset_of("eeg", sources(), 0)
    assert [d.name for d in dataset.domains] == ["AlexMI", "Zhou2016"]
    assert dataset.task == "binary"
    for domain, channels in zip(dataset.domains, (5, 3), strict=True):
        assert domain.train_x.shape == (32, 15) and domain.test_x.shape == (8, 15)
        assert np.bincount(domain.test_y).tolist() == [4, 4]
        used = channels * (channels + 1) // 2
        assert np.abs(domain.train_x[:, :used]).min(1).max() > 0
        assert not domain.train_x[:, used:].any()


def test_a_source_without_a_class_is_named() -> None:
    x, y = sources()["AlexMI"]
    refused(eeg.dataset_of, "eeg", {"AlexMI": (x, np.ones_like(y))}, 0)


class Paradigms:
    """Answers as MOABB's paradigm does: trials, names of events, and a table that is not used."""

    class MotorImagery:
        def __init__(self, **settings: Any) -> None:
            events = ["feet", "right_hand"]
            assert settings == {"events": events, "n_classes": 2, "fmin": 8.0, "fmax": 32.0}

        def get_data(self, dataset: Any) -> tuple[Any, Any, None]:
            return dataset


def test_events_become_labels_by_name() -> None:
    answer = np.zeros((3, 2, 5)), np.array(["right_hand", "feet", "right_hand"]), None
    x, y = eeg.imagery_trials(answer, Paradigms, 8.0, 32.0)
    assert y.tolist() == [1, 0, 1] and x.shape == (3, 2, 5)


def test_without_moabb_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "moabb", None)
    refused(load_dataset, "eeg", root=tmp_path)
