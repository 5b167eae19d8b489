"""Shared by the formulas: checks of shapes, directions of zero vectors, means of nothing, masked rows.

Errors of the checks name the argument, its form and the required form. Settings are trusted to be in their ranges.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from flray.trees import Weights, check_like


def unit(vectors: Tensor, dim: int = -1) -> Tensor:
    """Return vectors of length 1 along `dim`; a zero vector stays zero and gets a zero gradient; NaN stays NaN.

    The largest entry is divided out first, so that squares neither overflow nor underflow. The
    direction does not depend on that scale, which is why it is a constant for the gradient.

    Parameters
    ----------
    vectors : Tensor
        Any floating dtype and shape.
    dim : int
        The dimension that holds a vector's entries.
    """
    scale = vectors.detach().abs().amax(dim, keepdim=True)
    scaled = vectors / torch.where(scale == 0, 1, scale)
    norm = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return torch.where(norm == 0, 0, scaled / torch.where(norm == 0, 1, norm))


def batch_mean(values: Tensor) -> Tensor:
    """Return the mean of values[n]; of an empty batch a zero that still has a gradient."""
    return values.sum() / max(values.numel(), 1)


def masked_mean(values: Tensor, counted: Tensor) -> Tensor:
    """Return the mean of values[n] where counted[n] is true; if all are false, a zero that still has a gradient."""
    return torch.where(counted, values, 0).sum() / counted.sum().clamp(min=1)


def keep_rows(rows: Tensor, present: Tensor) -> Tensor:
    """Return rows[..., D] with the rows that are not present[...] set to zero, whatever they hold, NaN included.

    Selected before anything is computed: multiplying by a mask would let a NaN or an infinity
    through, in the value or in the gradient.
    """
    return torch.where(present.unsqueeze(-1), rows, 0)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return PyTorch's batch mean of the cross-entropy of logits[B, C] and labels[B]; zero for an empty batch."""
    return F.cross_entropy(logits, labels) if len(labels) else logits.sum()


def masked_cross_entropy(scores: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """Return the cross-entropy over the present classes, mean over the samples whose class is present.

    Parameters
    ----------
    scores : Tensor [n, C]
        Columns of absent classes must be finite; they get no share and no gradient.
    labels : Tensor [n] of int64
    present : Tensor [C] of bool
        No sample of a present class: a zero that still has a gradient.
    """
    # With no class present every sample is skipped; all classes stay candidates only to keep the
    # softmax finite.
    candidates = present | ~present.any()
    log_shares = torch.log_softmax(scores.masked_fill(~candidates, float("-inf")), dim=1)
    return masked_mean(-log_shares.gather(1, labels.unsqueeze(1)).squeeze(1), present[labels])


def check_shapes(**arguments: tuple[Tensor, str]) -> dict[str, int]:
    """Check that tensors have the shapes that their symbols say, and return the size of each symbol.

    Parameters
    ----------
    **arguments : (Tensor, str)
        Argument name to ``(tensor, "K C D")``. The first tensor with a symbol fixes its size.
        An empty string is a scalar. ``"C of bool"`` is a mask.

    Raises
    ------
    ValueError
        If a tensor has another shape, or a mask another type; the message names the argument, its
        form and the expected one.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, symbols) in arguments.items():
        given: object = tensor
        if isinstance(given, fx.Proxy):  # an export records a forward pass, without sizes
            continue
        shape, _, kind = symbols.partition(" of ")
        wanted, known = shape.split(), dict(sizes)
        if len(wanted) != tensor.dim() or not all(
            sizes.setdefault(symbol, size) == size
            for symbol, size in zip(wanted, tensor.shape, strict=True)
        ):
            where = ", ".join(
                f"{symbol}={known[symbol]}" for symbol in dict.fromkeys(wanted) if symbol in known
            )
            expected = f"[{', '.join(wanted)}]" + (f" with {where}" if where else "")
            raise ValueError(f"{name}: shape {list(tensor.shape)}, expected {expected}")
        if kind and tensor.dtype != torch.bool:  # an integer mask would be read as indices
            raise ValueError(f"{name}: dtype {tensor.dtype}, expected torch.bool")
    return sizes


def check_labels(labels: Tensor) -> Tensor:
    """Return class labels as int64.

    Raises
    ------
    ValueError
        If they are not integers: rounding a float to a class would hide a mistake.
    """
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels: dtype {labels.dtype}, expected integers")
    return labels.long()


def map_floating(
    function: Callable[..., Tensor], first: Mapping[str, Tensor], **others: Mapping[str, Tensor]
) -> Weights:
    """Apply an elementwise formula to every floating tensor of named trees, in float64.

    Parameters
    ----------
    function : callable
        Called with the float64 tensors of `first` and `others`, in that order; returns a tensor of
        their shape.
    first : dict of Tensor
        Decides names, shapes and the dtypes of the result. Its integer and boolean tensors
        (counters) are returned as they are.
    **others : dict of Tensor
        Named for the error messages.

    Raises
    ------
    ValueError
        If names or shapes differ.
    """
    check_like("parameters", first, **others)
    return {
        name: function(value.double(), *(other[name].double() for other in others.values())).to(
            value.dtype
        )
        if value.is_floating_point()
        else value
        for name, value in first.items()
    }
