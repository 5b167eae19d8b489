"""The tangent space at a reference: lengths are Riemannian distances, and congruence changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import eigvalsh, logm

from flray.data.datasets.eeg import covariances, log_euclidean_mean, pad_vectors, tangent_vectors

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
    with pytest.raises(ValueError, match="length 3, expected at most 2"):
        pad_vectors(np.ones((2, 3)), 2)
