"""Overlap and distance of masks, equal to MONAI's `compute_dice` and `compute_hausdorff_distance` (tested).

Written out here because importing MONAI takes seconds in every process that evaluates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def dice_coefficient(predicted: NDArray[Any], truth: NDArray[Any]) -> NDArray[np.float64]:
    """Return ``2 |P and T| / (|P| + |T|)`` of binary masks.

    Parameters
    ----------
    predicted, truth : ndarray [n, K, ...]
        Nonzero is inside.

    Returns
    -------
    ndarray of float64 [n, K]
        In [0, 1]; 1 where both masks are empty.
    """
    inside, wanted = predicted != 0, truth != 0
    axes = tuple(range(2, inside.ndim))
    both, sizes = (inside & wanted).sum(axes), inside.sum(axes) + wanted.sum(axes)
    overlap: NDArray[np.float64] = np.where(sizes > 0, 2 * both / np.maximum(sizes, 1), 1.0)
    return overlap


def hausdorff_distance(
    predicted: NDArray[Any], truth: NDArray[Any], percentiles: tuple[float, ...] = (100.0,)
) -> NDArray[np.float64]:
    """Return the Hausdorff distance of one pair of masks, in pixels, at several percentiles.

    The larger of the two directed distances: from every edge pixel of one mask to the nearest of
    the other, the given percentile of these (100: the largest). Edge pixels have a neighbour (along
    an axis) outside of the mask or image.

    Parameters
    ----------
    predicted, truth : ndarray
        Two masks of one shape; nonzero is inside.
    percentiles : tuple of float
        In [0, 100].

    Returns
    -------
    ndarray of float64 [number of percentiles]
        NaN if both masks are empty, infinite if one is (where MONAI's percentiles give NaN).
    """
    from scipy.ndimage import binary_erosion, distance_transform_edt

    edges = [mask & ~binary_erosion(mask) for mask in (predicted != 0, truth != 0)]
    empty = [not edge.any() for edge in edges]
    if any(empty):
        return np.full(len(percentiles), np.nan if all(empty) else np.inf)
    directed = [
        np.percentile(distance_transform_edt(~other)[edge], percentiles)
        for edge, other in (edges, edges[::-1])
    ]
    larger: NDArray[np.float64] = np.maximum(*directed)
    return larger
