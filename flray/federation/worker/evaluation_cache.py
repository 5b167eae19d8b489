"""Prepared batches, and the features of a body that many clients share: kept in a process from one test to the next."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flray.algorithms.common.samples import Samples
from flray.data.types import Rows

BYTES = 64 * 2**20
"""The most that a process keeps of batches, and of features."""
BODIES = 2
"""Of so many bodies: a client may be tested by two networks in turn."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Body:
    """The values of a network's body, and the features that it gives for batches, by the batches' rows."""

    def __init__(self, architecture: str, part: nn.Module) -> None:
        self._architecture = architecture
        self._values = [value.clone() for value in _values(part)]
        self.bytes = sum(value.nbytes for value in self._values)
        self.features: dict[bytes, tuple[Tensor, int]] = {}

    def is_of(self, architecture: str, part: nn.Module) -> bool:
        """Tell whether a network's body has the same bits."""
        other = _values(part)
        return (architecture, len(other)) == (self._architecture, len(self._values)) and all(
            mine.dtype == its.dtype and torch.equal(_bits(mine), _bits(its))
            for mine, its in zip(self._values, other, strict=True)
        )


class EvaluationCache:
    """Batches and features that the next test in this process may need again.

    Parameters
    ----------
    limit : float
        Bytes to keep of either.
    """

    def __init__(self, limit: float = BYTES) -> None:
        self._limit = self._room = min(BYTES, limit)
        self._inputs: dict[bytes, tuple[Tensor, Tensor]] = {}
        self._bodies: list[_Body] = []
        self._batch: tuple[bytes, Tensor] | None = None

    def batches(self, rows: Rows, samples: Samples, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield samples in their order, in batches; one that its user writes to is made anew the next time."""
        device = samples.rows.device
        for start in range(0, max(1, len(rows)), size):  # no samples: one batch, of none
            key = rows[start : start + size].tobytes()
            known = self._inputs.pop(key, None)
            stop = min(start + size, len(rows))
            x, y = known or samples.take(torch.arange(start, stop, device=device))
            version, self._batch = x._version, (key, x)
            yield x, y
            self._batch = None
            if x._version == version and (known or x.nbytes <= self._room):
                self._inputs[key] = x, y
                self._room -= 0 if known else x.nbytes

    @contextmanager
    def sharing(self, networks: Iterable[tuple[str, nn.Module]]) -> Iterator[None]:
        """Compute the features of a batch once for all networks of one architecture whose bodies have the same bits.

        Only bodies whose values are all that they are: in eval mode, and observed by no hook.
        """
        with ExitStack() as stack:
            for architecture, network in networks:
                body = getattr(network, "features", None)
                if isinstance(body, nn.Module) and not any(
                    inner.training or inner._forward_hooks for inner in body.modules()
                ):
                    stack.enter_context(self._remembering(architecture, body))
            yield

    @contextmanager
    def _remembering(self, architecture: str, part: nn.Module) -> Iterator[None]:
        own, plain = vars(part).get("forward"), part.forward
        part.forward = lambda x: self._features(architecture, part, plain, x)
        try:
            yield
        finally:
            del part.forward
            if own is not None:
                part.forward = own

    def _features(
        self, architecture: str, part: nn.Module, plain: Callable[[Tensor], Any], x: Tensor
    ) -> Any:
        if self._batch is None or x is not self._batch[1]:
            return plain(x)
        body = next((one for one in self._bodies if one.is_of(architecture, part)), None)
        body = body or _Body(architecture, part)
        self._bodies = [body, *(one for one in self._bodies if one is not body)][:BODIES]
        features, version = body.features.get(self._batch[0], (None, 0))
        if features is None or features._version != version:
            features = plain(x)
            if isinstance(features, Tensor) and body.bytes + features.nbytes <= self._limit:
                body.bytes += features.nbytes
                body.features[self._batch[0]] = features, features._version
        return features


def _values(part: nn.Module) -> list[Tensor]:
    return [*part.parameters(), *part.buffers()]


def _bits(values: Tensor) -> Tensor:
    plain = torch.view_as_real(values) if values.is_complex() else values
    return plain.detach().view(_BITS[plain.element_size()])
