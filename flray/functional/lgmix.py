"""LG-Mix: traces of feature Gram matrices, the mixing ratio, and the mixed update.

Equation numbers are those of the LG-Mix paper (local-global updates mixing).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flray import trees
from flray.functional.numerics import check_shapes, map_floating
from flray.trees import Tree, Weights


def gram_trace(features: Tensor, centred: bool = False, *, drop_smallest: bool = False) -> Tensor:
    """Return the trace of the features' Gram matrix, ``tr(H) = tr(Sigma) / m``, ``Sigma = sum h h^T`` (LG-Mix Eq. 5).

    Uncentred and with all eigenvalues, traces of a round's batches add up to that of all samples
    together; otherwise they do not, and the authors' released code takes an epoch's samples at once.

    Parameters
    ----------
    features : Tensor [n, m]
        Penultimate features h, one row per sample; accumulated in float64.
    centred : bool
        Subtract each feature's mean over the rows first, as the authors' released code does.
    drop_smallest : bool
        Leave out the smallest of the m eigenvalues of Sigma, as the authors' released code does.

    Returns
    -------
    Tensor, scalar
        Of the features' dtype; 0 or more; 0 without samples.

    Raises
    ------
    ValueError
        If the shape differs from the above or m is 0.
    """
    sizes = check_shapes(features=(features, "n m"))
    if not sizes["m"]:
        raise ValueError(f"features: shape {list(features.shape)}, expected at least one feature")
    if not sizes["n"]:
        return features.sum()
    values = features.double()
    if centred:
        values = values - values.mean(0)
    trace = values.square().sum()
    # With fewer samples than features the smallest one is zero.
    if drop_smallest and sizes["n"] >= sizes["m"]:
        smallest: Tensor = torch.linalg.svdvals(values)[-1]
        trace = trace - smallest.square()
    return (trace / sizes["m"]).to(features.dtype)


def trace_ratio(local_trace: Tensor | float, global_trace: Tensor | float) -> Tensor:
    """Return ``local / (local + global)`` of two traces (LG-Mix Eq. 4); one half if both are zero.

    Parameters
    ----------
    local_trace, global_trace : Tensor, scalar, or float
        Traces of `gram_trace`, possibly summed over batches.

    Returns
    -------
    Tensor, scalar
        In [0, 1].

    Raises
    ------
    ValueError
        If a trace is negative or not finite.
    """
    local, other = torch.as_tensor(local_trace), torch.as_tensor(global_trace)
    check_shapes(local_trace=(local, ""), global_trace=(other, ""))
    for name, value in (("local_trace", local), ("global_trace", other)):
        if not bool(torch.isfinite(value) & (value >= 0)):
            raise ValueError(f"{name}: {value.item()}, expected a finite number of 0 or more")
    total = local + other
    return torch.where(total > 0, local / torch.where(total > 0, total, 1), 0.5)


def mixing_ratio(
    local_features: Tensor,
    global_features: Tensor,
    centred: bool = False,
    *,
    drop_smallest: bool = False,
) -> Tensor:
    """Return ``lambda``, the share of the local update, from both models' features of the same samples (LG-Mix Eq. 6).

    Parameters
    ----------
    local_features, global_features : Tensor [n, m]
    centred, drop_smallest : bool
        As in `gram_trace`.

    Returns
    -------
    Tensor, scalar
        In [0, 1]; one half if all features are zero.

    Raises
    ------
    ValueError
        If shapes differ from the above or a feature is not finite.
    """
    check_shapes(local_features=(local_features, "n m"), global_features=(global_features, "n m"))
    # In float64 throughout: a trace may exceed the range of the features' own dtype.
    traces = [
        gram_trace(features.double(), centred, drop_smallest=drop_smallest)
        for features in (local_features, global_features)
    ]
    return trace_ratio(traces[0], traces[1]).to(local_features.dtype)


def stabilised_ratio(
    earlier: Sequence[float], current: float, include_current: bool = False
) -> float:
    """Return the mean of the mixing ratios of earlier rounds (LG-Mix, below Eq. 6).

    Parameters
    ----------
    earlier : sequence of float
        A client's own ratios of the rounds before, as measured.
    current : float
        This round's ratio: used as it is in the first round.
    include_current : bool
        Average this round's ratio as well, as the authors' released code does.
    """
    values = [*earlier, current] if include_current or not earlier else list(earlier)
    return trees.total(values) / len(values)


def mix_updates(
    start: Tree, local_update: Tree, global_update: Tree, ratio: Tensor | float
) -> Weights:
    """Return ``w + lambda local + (1 - lambda) global`` (LG-Mix Eq. 2).

    Parameters
    ----------
    start : dict of Tensor
        The personalised model at the start of the round. Integer and boolean tensors are returned
        as they are.
    local_update, global_update : dict of Tensor
        Like `start`; float64 updates of a float32 model are used at full precision.
    ratio : float or Tensor, scalar
        lambda in [0, 1]. At exactly 0 the local and at exactly 1 the global update has no
        influence.

    Returns
    -------
    dict of Tensor
        Like `start`; computed in float64 and rounded once.

    Raises
    ------
    ValueError
        If shapes or names differ.
    """
    share = float(ratio)

    def mix(w: Tensor, local: Tensor, common: Tensor) -> Tensor:
        if share in (0.0, 1.0):
            return w + (local if share else common)
        return w + (share * local + (1 - share) * common)

    return map_floating(mix, start, local_update=local_update, global_update=global_update)
