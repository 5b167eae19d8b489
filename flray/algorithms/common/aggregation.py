"""All methods average trees here: in client order, with sums in float64 and one tree in memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from flray import devices, trees
from flray.algorithms.types import Reply, Weighting
from flray.functional.averaging import WeightedMean
from flray.trees import FlatLayout, Packed, Tree

_VALUES = "/"
"""Name of the one tensor that stands for all of an entry; no entry's own tensor can have it."""
WAITING_BYTES = 2**23
"""Bytes of replies that wait to be added together; training between two pushes the sums out of the CPU's cache."""


def weight_of(weighting: Weighting, num_samples: int) -> float:
    """Return a client's weight in the mean, before the weights are divided by their sum."""
    return float(num_samples) if weighting == "samples" else 1.0


class InBlocks(ABC):
    """Replies that are added up in blocks, near the clients, once all have arrived."""

    @abstractmethod
    def block_sums(self, weigh: Callable[[Reply], float], entry: str) -> Iterator[Tree]:
        """Yield each block's `BlockSum.tree`, the sums of its replies."""


def average(
    replies: Iterable[Reply], weigh: Callable[[Reply], float], entry: str = "weights"
) -> dict[str, dict[str, Tensor]]:
    """Return, by architecture, the weighted mean of one entry of the replies.

    Parameters
    ----------
    replies : iterable of Reply
        In client order; read one by one, so that only one reply's tensors, or a few small ones', are
        in memory. Replies in blocks are summed near the clients, and the server gets the sums.
    weigh : callable
        A reply's weight, on any scale; the weights are divided by their sum.
    entry : str
        The reply's entry to average; replies without it, or with an empty one, do not count.

    Returns
    -------
    dict of str to tree
        By architecture; an architecture without replies has no entry.
    """
    if isinstance(replies, InBlocks):
        return average_blocks(replies.block_sums(weigh, entry))
    means: dict[str, _EntryMean] = {}
    last = _EntryMean()
    for reply in replies:
        mean = means.get(reply.architecture) or _EntryMean()
        if mean is not last:  # of one network alone replies wait
            last.add_waiting()
        last = mean
        if mean.add(reply, entry, weigh):
            means[reply.architecture] = mean
    return {architecture: mean.result() for architecture, mean in sorted(means.items())}


class _EntryMean:
    """The mean of one entry; large ones are added as one tensor each, which has the same bits."""

    def __init__(self) -> None:
        self._mean = WeightedMean()
        self._layout: FlatLayout | None = None
        self._flat: bool | None = None
        self._waiting: list[tuple[dict[str, Tensor], float]] = []
        self._held = 0

    def add(self, reply: Reply, entry: str, weigh: Callable[[Reply], float]) -> bool:
        """Add a reply; return whether it has the entry."""
        flat = reply.flat(entry) if self._flat is not False else None
        if flat is not None and (self._flat is None or flat.layout == self._layout):
            self._flat, self._layout = True, flat.layout
            self._waiting.append(({_VALUES: flat.values, **flat.counters}, weigh(reply)))
            self._held += flat.held
            if self._held > WAITING_BYTES:
                self.add_waiting()
            return True
        tree = reply.get(entry)
        if not tree:
            return False
        if self._layout is not None:  # this one is laid out differently: from now on by tensors
            self._mean, self._layout = self._by_tensors(self._layout), None
        self._flat = False
        self._mean.add(tree, weigh(reply))
        return True

    def add_waiting(self) -> None:
        """Add the replies that wait."""
        self._mean.add_all(self._waiting)
        self._waiting, self._held = [], 0

    def _by_tensors(self, layout: FlatLayout) -> WeightedMean:
        """Return the mean so far, split by tensor so that trees can be added to it."""
        self.add_waiting()
        so_far = self._mean.partial()
        if so_far["count"]:
            like = torch.empty(0, dtype=layout.dtype)
            so_far["sums"] = _split(layout, so_far["sums"])
            so_far["like"] = {name: so_far["like"].get(name, like) for name in layout.names}
        mean = WeightedMean()
        mean.merge(so_far)
        return mean

    def result(self) -> dict[str, Tensor]:
        """Return the mean."""
        self.add_waiting()
        mean = self._mean.result()
        return mean if self._layout is None else trees.clone(_split(self._layout, mean))


def _split(layout: FlatLayout, entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
    counters = {leaf.path: entries[leaf.path] for leaf in layout.counters}
    return layout.split(entries[_VALUES], counters)


def average_outputs(replies: Iterable[Reply], entry: str) -> dict[str, Tensor]:
    """Return the plain mean of one entry over all replies, whatever their architectures; nothing if none has it."""
    mean = WeightedMean()
    for reply in replies:
        mean.add(reply.get(entry, {}), 1.0)
    return mean.result() if mean.partial()["count"] else {}


class BlockSum:
    """One entry of a block's clients on its way to the mean, added up outside the server."""

    def __init__(self) -> None:
        self._sums: dict[str, WeightedMean] = {}

    def add(self, architecture: str, tree: Tree, weight: float) -> None:
        """Add a client's entry, in client order; an empty one adds nothing, as in `average`."""
        if tree:
            on_cpu = dict(zip(tree, devices.to_host(list(tree.values())), strict=True))
            self._sums.setdefault(architecture, WeightedMean()).add(on_cpu, weight)

    def tree(self) -> dict[str, Tree]:
        """Return the sums so far, by architecture; empty if no client sent the entry."""
        return {architecture: sums.partial() for architecture, sums in self._sums.items()}


def add_up(entry: str, parts: Iterable[tuple[str, float, Packed]]) -> Packed:
    """Return the packed sums of one entry of a block's replies.

    Parameters
    ----------
    entry : str
        Its name.
    parts : iterable of (str, float, Packed)
        In client order: architecture, weight, and a packed tree that has the entry.
    """
    sums = BlockSum()
    for architecture, weight, packed in parts:
        sums.add(architecture, trees.unpack(packed)[entry], weight)
    return trees.pack(sums.tree())


def average_blocks(blocks: Iterable[Tree]) -> dict[str, dict[str, Tensor]]:
    """Return, by architecture, the weighted mean of the clients' weights, computed from their blocks' sums.

    Parameters
    ----------
    blocks : iterable of tree
        Results of `BlockSum.tree` in the blocks' order, read one by one.

    Returns
    -------
    dict of str to tree
        Equal to `average` up to rounding in float64, and to the bit if every block has one client.
    """
    means: dict[str, WeightedMean] = {}
    for block in blocks:
        for architecture, partial in block.items():
            means.setdefault(architecture, WeightedMean()).merge(partial)
    return {architecture: mean.result() for architecture, mean in sorted(means.items())}
