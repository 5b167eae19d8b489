"""The one routine that averages trees of tensors, for every method: fixed order, float64, counters never averaged."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor

from flray.trees import check_names

Layout: TypeAlias = dict[str, tuple[torch.Size, torch.dtype]]

PIECE = 2**16
"""Number of values to compute at a time on a CPU, so that intermediate results stay in its cache."""


class WeightedMean:
    """Weighted mean of named trees that arrive one after another; holds one tree in float64, whatever their number.

    ``sum_k weight_k tree_k / sum_k weight_k`` in the order of the calls, rounded once to each
    tensor's dtype. Integer and boolean tensors (BatchNorm's counters) take the elementwise maximum.
    A tree of weight 0 has no influence, not even through NaN. A single tree comes back unchanged to
    the bit, and so do equal float32 trees with integer weights.
    """

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._sums: dict[str, Tensor] = {}  # of a single tree its values
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
        self.add_all([(tree, weight)])

    def add_all(self, weighted: Iterable[tuple[Mapping[str, Tensor], float]]) -> None:
        """Add trees in their order, to the same bits as one by one; sums are read and written once for all of them.

        Parameters
        ----------
        weighted : iterable of (dict of Tensor, float)
            Trees and weights as for `add`.

        Raises
        ------
        ValueError
            As `add`.
        """
        counted = []
        for tree, number in weighted:
            weight = float(number)
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"weight: {weight}, expected a finite number of 0 or more")
            self._check("tree", {name: (value.shape, value.dtype) for name, value in tree.items()})
            self._seen += 1
            if weight > 0:
                counted.append((tree, weight))
        if counted and not self._counted:
            # Kept unweighted until a second one comes: w * x / w is not always x.
            self._begin(*counted.pop(0), 1, copy=not counted)
        if counted:
            self._continue(counted, [weight for _, weight in counted], len(counted))

    def partial(self) -> dict[str, Any]:
        """Return the sums so far as a plain tree, for another mean to `merge`.

        Returns
        -------
        dict
            ``sums``: the weighted sums in float64, or the values of a single tree; ``weight``: the
            sum of the weights; ``count``: trees of positive weight; ``like``: an empty tensor of
            each entry's dtype. The tensors are not copied, so add nothing afterwards.
        """
        return {
            "sums": self._sums,
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
            The result of `partial`; copied, may be changed afterwards.

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
            layout = {name: (sums[name].shape, one.dtype) for name, one in partial["like"].items()}
            self._check("partial", layout)
            self._seen += 1
            if self._counted:
                self._continue([(sums, partial["weight"])], [None], count)
            else:
                self._begin(sums, partial["weight"], count)

    def _check(self, what: str, found: Layout) -> None:
        """Check entries' shapes and dtypes: every tree must have those of the first."""
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

    def _begin(
        self, tree: Mapping[str, Tensor], weight: float, count: int, copy: bool = True
    ) -> None:
        """Take the first tree, or the sums of several, as they are."""
        values = {name: tree[name].detach() for name in self._layout or ()}
        self._sums = {name: value.clone() if copy else value for name, value in values.items()}
        self._total, self._counted = weight, count

    def _continue(
        self,
        weighted: Sequence[tuple[Mapping[str, Tensor], float]],
        factors: Sequence[float | None],
        count: int,
    ) -> None:
        """Add trees times factors, or sums of `count` trees, which have none."""
        first = self._counted == 1  # its values are to be weighted
        for name, so_far in self._sums.items():
            tensors = [tree[name].detach() for tree, _ in weighted]
            if not so_far.is_floating_point():
                self._sums[name] = reduce(torch.maximum, tensors, so_far)
                continue
            if first:
                tensors.insert(0, so_far)
                shape, device = so_far.shape, so_far.device
                self._sums[name] = torch.empty(shape, dtype=torch.float64, device=device)
            for total, *parts in _pieces(self._sums[name], *tensors):
                if first:
                    total.copy_(parts.pop(0)).mul_(self._total)
                for values, factor in zip(parts, factors, strict=True):
                    _add(total, values, factor)
        self._counted += count
        for _, weight in weighted:
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
            return {name: value.clone() for name, value in self._sums.items()}
        dtypes = {name: dtype for name, (_, dtype) in (self._layout or {}).items()}
        return {name: self._mean(value, dtypes[name]) for name, value in self._sums.items()}

    def _mean(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """Return an entry's weighted mean in its dtype; for a counter, a copy of the maximum."""
        if not value.is_floating_point():
            return value.clone()
        mean = torch.empty(value.shape, dtype=dtype, device=value.device)
        for rounded, total in _pieces(mean, value):
            torch.div(total, self._total, out=rounded)
        return mean


def _add(total: Tensor, values: Tensor, factor: float | None) -> None:
    """Add values times a factor to sums in float64."""
    if factor is None:
        total.add_(values)
    # A product and a sum rather than one fused operation, which would round differently
    # elsewhere; unless the product has no more than float64's 53 bits.
    elif values.dtype == torch.float32 and factor.is_integer() and factor < 2**29:
        total.add_(values, alpha=factor)
    else:
        total.add_(values.double() * factor)


def _pieces(written: Tensor, *read: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Return tensors of one shape piece by piece; the first is contiguous, and its pieces are views."""
    if written.device.type != "cpu" or written.numel() <= PIECE:
        return ((written, *read),)
    flat = written.view(-1), *(one.reshape(-1) for one in read)
    return zip(*(one.split(PIECE) for one in flat), strict=True)


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
        If `trees` is empty, numbers, names, shapes or dtypes differ, or the weights cannot be used.
    """
    values = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    if values.shape != (len(trees),):
        raise ValueError(
            f"weights: shape {list(values.shape)}, expected [{len(trees)}], one per tree"
        )
    mean = WeightedMean()
    mean.add_all(zip(trees, values.tolist(), strict=True))
    return mean.result()
