"""The one routine that averages trees of tensors, for every method: fixed order, float64, counters never averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from flray.functional.checks import check_names

Layout: TypeAlias = dict[str, tuple[torch.Size, torch.dtype]]


class WeightedMean:
    """Weighted mean of named trees that arrive one after another; holds one tree in float64, whatever their number.

    ``sum_k weight_k tree_k / sum_k weight_k`` in the order of the calls, rounded once to each
    tensor's dtype. Integer and boolean tensors (BatchNorm's counters) take the elementwise maximum.
    A tree of weight 0 has no influence, not even through NaN. A single tree comes back with its own
    bits, and so do equal float32 trees with integer weights.
    """

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._first: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._terms: dict[str, Tensor] = {}
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
            If the weight is negative or not finite, or names, shapes or dtypes differ from the
            first tree's.
        """
        weight = float(weight)
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight: {weight}, expected a finite number of 0 or more")
        layout = self._layout_of(
            {name: (tensor.shape, tensor.dtype) for name, tensor in tree.items()}, "tree"
        )
        self._seen += 1
        if not weight:
            return
        self._counted += 1
        if self._counted == 1:
            # Kept unweighted until a second one comes: w * x / w is not always x.
            self._first = {name: tree[name].detach().clone() for name in layout}
        else:
            # A product and a sum rather than one fused operation, which would round differently
            # elsewhere.
            self._accumulate(
                (name, self._weighted(name, tree[name].detach(), weight)) for name in layout
            )
        self._total += weight

    def partial(self) -> dict[str, Any]:
        """Return what was added so far as a plain tree, for another mean to `merge`.

        Returns
        -------
        dict
            ``sums``: the weighted sums in float64, or of a single tree its own values; ``weight``:
            the sum of the weights; ``count``: trees of positive weight; ``like``: an empty tensor
            of each entry's dtype. The tensors are not copied, so that nothing may be added
            afterwards.
        """
        return {
            "sums": self._first if self._counted == 1 else self._sums,
            "weight": self._total,
            "count": self._counted,
            "like": {
                name: torch.empty(0, dtype=dtype)
                for name, (_, dtype) in (self._layout or {}).items()
            },
        }

    def merge(self, partial: Mapping[str, Any]) -> None:
        """Add the trees that another mean took in, as one term.

        So the trees of a block are added up among themselves first, and the blocks in the order of
        the calls. Of blocks of one tree each, the result has the bits of `add`.

        Parameters
        ----------
        partial : mapping
            What `partial` returned; copied, may be changed afterwards.

        Raises
        ------
        ValueError
            If names, shapes or dtypes differ from those of the first tree.
        """
        sums, count = partial["sums"], partial["count"]
        if count == 0:
            self._seen += 1
        elif count == 1:
            self.add(sums, partial["weight"])
        else:
            layout = self._layout_of(
                {name: (sums[name].shape, like.dtype) for name, like in partial["like"].items()},
                "partial",
            )
            self._seen += 1
            self._counted += count
            if self._counted == count:
                self._sums = {name: sums[name].clone() for name in layout}
            else:
                self._accumulate((name, sums[name]) for name in layout)
            self._total += partial["weight"]

    def _layout_of(self, found: Layout, what: str) -> Layout:
        """Return the entries' shapes and dtypes in the first tree's order; every tree must have the same."""
        if self._layout is None:
            self._layout = found
        check_names(what, found, self._layout)
        for name, (shape, dtype) in self._layout.items():
            if found[name][0] != shape:
                raise ValueError(
                    f"{what}[{name!r}]: shape {list(found[name][0])}, expected {list(shape)}"
                )
            if found[name][1] != dtype:
                raise ValueError(f"{what}[{name!r}]: dtype {found[name][1]}, expected {dtype}")
        return self._layout

    def _accumulate(self, terms: Iterable[tuple[str, Tensor]]) -> None:
        """Add weighted terms in float64; of counters take the maximum."""
        if self._first:
            self._sums = {
                name: self._weighted(name, value, self._total)
                for name, value in self._first.items()
            }
            self._terms = {}
            self._first = {}
        for name, term in terms:
            so_far = self._sums[name]
            self._sums[name] = (
                so_far.add_(term) if term.is_floating_point() else torch.maximum(so_far, term)
            )

    def _weighted(self, name: str, tensor: Tensor, weight: float) -> Tensor:
        """Return an entry in float64 times a weight, in the memory of the one before: new memory costs as much."""
        if not tensor.is_floating_point():
            return tensor
        if name not in self._terms:
            self._terms[name] = torch.empty_like(
                tensor, dtype=torch.float64, memory_format=torch.contiguous_format
            )
        return self._terms[name].copy_(tensor).mul_(weight)

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
        dtypes = {name: dtype for name, (_, dtype) in (self._layout or {}).items()}
        return {
            name: (value / self._total if value.is_floating_point() else value.clone()).to(
                dtypes[name]
            )
            for name, value in self._sums.items()
        }


def weighted_mean(
    trees: Sequence[Mapping[str, Tensor]], weights: Tensor | Sequence[float]
) -> dict[str, Tensor]:
    """Return the weighted mean of named trees (FedAvg's aggregation); `WeightedMean` gives the same bits piecewise.

    Parameters
    ----------
    trees : sequence of K dicts of Tensor
        Equal names, shapes and dtypes; averaged in this order, in float64, then rounded to each
        tensor's dtype. Integer and boolean tensors take the elementwise maximum.
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
        raise ValueError(
            f"weights: shape {list(values.shape)}, expected [{len(trees)}], one per tree"
        )
    mean = WeightedMean()
    for tree, weight in zip(trees, values.tolist(), strict=True):
        mean.add(tree, weight)
    return mean.result()
