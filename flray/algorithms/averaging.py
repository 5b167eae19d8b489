"""The one routine by which all methods average trees: client order, float64 accumulation, one tree in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from flray.functional.averaging import WeightedMean

if TYPE_CHECKING:
    from flray.algorithms.server import Reply


def average(replies: Iterable[Reply], weigh: Callable[[Reply], float],
            entry: str = "weights") -> dict[str, dict[str, Tensor]]:
    """Return the weighted mean of one entry of the replies, for each architecture.

    Parameters
    ----------
    replies : iterable of Reply
        In client order; consumed one by one, so that one reply's tensors are held at a time.
    weigh : callable
        A reply's weight, on any scale; the weights are divided by their sum.
    entry : str
        The reply's entry to average; replies in which it is missing or empty are left out.

    Returns
    -------
    dict of str to tree
        By architecture; nothing for an architecture without replies.
    """
    means: dict[str, WeightedMean] = {}
    for reply in replies:
        tree = reply.get(entry)
        if tree:
            means.setdefault(reply.architecture, WeightedMean()).add(tree, weigh(reply))
    return {architecture: mean.result() for architecture, mean in sorted(means.items())}


def average_outputs(replies: Iterable[Reply], entry: str) -> dict[str, Tensor]:
    """Return the plain mean of one entry over all replies, whatever their architectures; nothing without replies."""
    mean = WeightedMean()
    some = False
    for reply in replies:
        mean.add(reply[entry], 1.0)
        some = True
    return mean.result() if some else {}
