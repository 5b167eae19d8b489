"""Covariance matrices of EEG trials as plain vectors: the tangent space at their mean (Barachant et al., 2012)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flray.data.arrays import Array

Floats = NDArray[np.float64]


def covariances(trials: Array, shrinkage: float = 1e-3) -> Floats:
    """Return each trial's covariance over time.

    Parameters
    ----------
    trials : ndarray [n, channels, times]
    shrinkage : float
        Share of the mean variance on the diagonal, so that short or re-referenced trials give
        definite matrices.

    Returns
    -------
    ndarray of float64 [n, channels, channels]
    """
    centred = np.asarray(trials, dtype=np.float64)
    centred = centred - centred.mean(-1, keepdims=True)
    raw = centred @ centred.swapaxes(1, 2) / centred.shape[-1]
    level = np.trace(raw, axis1=1, axis2=2)[:, None, None] / raw.shape[1]
    shrunk: Floats = (1 - shrinkage) * raw + shrinkage * level * np.eye(raw.shape[1])
    return shrunk


def log_euclidean_mean(matrices: Floats) -> Floats:
    """Return ``exp(mean(log C))`` of symmetric positive definite matrices [n, d, d]."""
    return _apply(np.exp, _apply(np.log, matrices).mean(0))


def tangent_vectors(matrices: Floats, reference: Floats) -> Floats:
    """Return ``upper(log(R^-1/2 C R^-1/2))``, off-diagonal entries times the square root of 2.

    The vector's length is the Riemannian distance of a matrix from the reference R.

    Parameters
    ----------
    matrices : ndarray [n, d, d]
        Symmetric positive definite.
    reference : ndarray [d, d]
        Where the tangent space touches: the mean of the training trials.

    Returns
    -------
    ndarray of float64 [n, d (d + 1) / 2]
        Row by row of the upper triangle.
    """
    whitener = _apply(lambda values: 1 / np.sqrt(values), reference)
    logs = _apply(np.log, whitener @ matrices @ whitener)
    rows, columns = np.triu_indices(matrices.shape[-1])
    vectors: Floats = logs[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))
    return vectors


def pad_vectors(vectors: Array, length: int) -> NDArray[np.float32]:
    """Return vectors [n, d] with zeros behind them, float32 [n, length] (LG-Mix, appendix: sets of unequal channels).

    Raises
    ------
    ValueError
        If the vectors are longer.
    """
    if vectors.shape[1] > length:
        raise ValueError(f"vectors: length {vectors.shape[1]}, expected at most {length}")
    return np.pad(vectors, ((0, 0), (0, length - vectors.shape[1]))).astype(np.float32)


def _apply(function: Callable[[Floats], Floats], matrices: Floats) -> Floats:
    """Return a function of symmetric matrices, applied to their eigenvalues."""
    values, vectors = np.linalg.eigh((matrices + matrices.swapaxes(-1, -2)) / 2)
    result: Floats = (vectors * function(values)[..., None, :]) @ vectors.swapaxes(-1, -2)
    return result
