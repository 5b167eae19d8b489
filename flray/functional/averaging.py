"""The one routine that averages trees of tensors, for every method: fixed order, float64, counters never averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flray.functional.checks import check_names


class WeightedMean:
    """Weighted mean of named trees that arrive one after another; holds one tree in float64, whatever their number.

    ``sum_k weight_k tree_k / sum_k weight_k`` in the order of the calls, rounded once to each tensor's dtype.
    Integer and boolean tensors (BatchNorm's counters) take the elementwise maximum. A tree of weight 0 has no
    influence, not even through NaN. A single tree comes back with its own bits, and so do equal float32 trees with
    integer weights.
    """

    def __init__(self) -> None:
        self._layout: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._first: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._total = 0.0
        self._seen = 0
        self._counted = 0

    def add(self, tree: Mapping[str, Tensor], weight: float) -> None:
        """Add one tree.

        Parameters
        ----------
        tree : dict of Tensor
            Copied; may be changed afterwards.
        weight : float
            Finite and not negative; need not be normalised.

        Raises
        ------
        ValueError
            If the weight is negative or not finite, or names, shapes or dtypes differ from the first tree's.
        """
        weight = float(weight)
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight: {weight}, expected a finite number of 0 or more")
        if not self._seen:
            self._layout = {name: (tensor.shape, tensor.dtype) for name, tensor in tree.items()}
        check_names("tree", tree, self._layout)
        for name, (shape, dtype) in self._layout.items():
            if tree[name].shape != shape:
                raise ValueError(f"tree[{name!r}]: shape {list(tree[name].shape)}, expected {list(shape)}")
            if tree[name].dtype != dtype:
                raise ValueError(f"tree[{name!r}]: dtype {tree[name].dtype}, expected {dtype}")
        self._seen += 1
        if not weight:
            return
        self._counted += 1
        if self._counted == 1:
            # Kept unweighted until a second one comes: w * x / w is not always x.
            self._first = {name: tree[name].detach().clone() for name in self._layout}
        else:
            if self._counted == 2:
                self._sums = {name: _weighted(value, self._total) for name, value in self._first.items()}
                self._first = {}
            for name, so_far in self._sums.items():
                term = _weighted(tree[name].detach(), weight)
                # A product and a sum rather than one fused operation, which would round differently elsewhere.
                self._sums[name] = so_far.add_(term) if term.is_floating_point() else torch.maximum(so_far, term)
        self._total += weight

    def result(self) -> dict[str, Tensor]:
        """Return the mean of the trees added so far; more may be added afterwards.

        Raises
        ------
        ValueError
            If no tree was added or all weights are zero.
        """
        if not self._seen:
            raise ValueError("trees: none given, expected at least one")
        if not self._counted:
            raise ValueError("weights: all zero, expected a positive sum")
        if self._counted == 1:
            return {name: value.clone() for name, value in self._first.items()}
        return {name: (value / self._total if value.is_floating_point() else value.clone()).to(self._layout[name][1])
                for name, value in self._sums.items()}


def _weighted(tensor: Tensor, weight: float) -> Tensor:
    return tensor.to(torch.float64, copy=True).mul_(weight) if tensor.is_floating_point() else tensor


def weighted_mean(trees: Sequence[Mapping[str, Tensor]], weights: Tensor | Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted mean of named trees (FedAvg's aggregation); `WeightedMean` gives the same bits piecewise.

    Parameters
    ----------
    trees : sequence of K dicts of Tensor
        Equal names, shapes and dtypes; averaged in this order, in float64, then rounded to each tensor's dtype.
        Integer and boolean tensors take the elementwise maximum.
    weights : Tensor [K] or sequence of K floats
        Finite, not negative, with a positive sum; need not be normalised.

    Returns
    -------
    dict of Tensor
        New tensors, detached.

    Raises
    ------
    ValueError
        If there is no tree, numbers, names, shapes or dtypes differ, or the weights cannot be used.
    """
    values = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    if values.shape != (len(trees),):
        raise ValueError(f"weights: shape {list(values.shape)}, expected [{len(trees)}], one per tree")
    mean = WeightedMean()
    for tree, weight in zip(trees, values.tolist(), strict=True):
        mean.add(tree, weight)
    return mean.result()
