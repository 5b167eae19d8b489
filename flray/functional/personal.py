"""Personal models as mixtures: APFL, L2SGD's pull towards the mean, FedFomo's choice of peers.

Trees are tensors or dicts of tensors. Integer tensors do not change; mixtures are computed in
float64.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flray.devices import transfers
from flray.functional import checks


def apfl_mix(
    personal: checks.TensorOrTree, shared: checks.TensorOrTree, alpha: float
) -> checks.TensorOrTree:
    """Return APFL's personal model ``alpha v + (1 - alpha) w``; at exactly 0 and 1 the other has no influence.

    Parameters
    ----------
    personal, shared : Tensor or dict of Tensor
        v and w.
    alpha : float
        In [0, 1].

    Returns
    -------
    Tensor or dict of Tensor
        Like `personal`.

    Raises
    ------
    ValueError
        If names or shapes differ or `alpha` is outside [0, 1].
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha: {alpha}, expected 0 to 1")

    def mix(v: Tensor, w: Tensor) -> Tensor:
        return (v if alpha else w).clone() if alpha in (0.0, 1.0) else alpha * v + (1 - alpha) * w

    return checks.map_floating(mix, personal, shared=shared)


def apfl_alpha_gradient(
    personal: checks.TensorOrTree, shared: checks.TensorOrTree, gradient: checks.TensorOrTree
) -> float:
    """Return the derivative of the loss at APFL's mixture by alpha, ``<v - w, g>``.

    Parameters
    ----------
    personal, shared : Tensor or dict of Tensor
        v and w, parameters only.
    gradient : Tensor or dict of Tensor
        g, the loss's gradient at ``alpha v + (1 - alpha) w``.

    Returns
    -------
    float
        Accumulated in float64.

    Raises
    ------
    ValueError
        If names or shapes differ.
    """
    products: list[Tensor] = []

    def add(v: Tensor, w: Tensor, g: Tensor) -> Tensor:
        products.append(((v - w) * g).sum())
        return v

    checks.map_floating(add, personal, shared=shared, gradient=gradient)
    return sum(map(float, transfers.to_host(products)), 0.0)


def apfl_alpha_step(alpha: float, gradient: float, lr: float) -> float:
    """Return APFL's new alpha, ``alpha - lr gradient`` clipped to [0, 1].

    Parameters
    ----------
    alpha : float
        Share of the personal model in the mixture.
    gradient : float
        The loss's derivative by alpha, of `apfl_alpha_gradient`.
    lr : float
        Learning rate.
    """
    return min(max(alpha - lr * gradient, 0.0), 1.0)


def pull_to_mean(
    own: checks.TensorOrTree, mean: checks.TensorOrTree, strength: float
) -> checks.TensorOrTree:
    """Return L2SGD's aggregation step ``(1 - a) x + a mean``; a = 0 leaves x, a = 1 gives the mean, bit for bit.

    Parameters
    ----------
    own, mean : Tensor or dict of Tensor
    strength : float
        a in [0, 1].

    Returns
    -------
    Tensor or dict of Tensor
        Like `own`.

    Raises
    ------
    ValueError
        If names or shapes differ or `strength` is outside [0, 1].
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength: {strength}, expected 0 to 1")

    def pull(x: Tensor, target: Tensor) -> Tensor:
        return (
            (target if strength else x).clone()
            if strength in (0.0, 1.0)
            else (1 - strength) * x + strength * target
        )

    return checks.map_floating(pull, own, mean=mean)


def fomo_affinities(
    reference_loss: float, losses: Tensor, distances: Tensor, epsilon: float = 1e-12
) -> Tensor:
    """Return how much each candidate model helps per distance, ``(L_ref - L_n) / (||theta_n - theta_ref|| + eps)``.

    Parameters
    ----------
    reference_loss : float
        Validation loss of the client's model before this round's training.
    losses : Tensor [M]
        Validation losses of the candidates (the client's new model included).
    distances : Tensor [M]
        Euclidean distances of their parameters to the reference's.
    epsilon : float
        Positive.

    Returns
    -------
    Tensor [M]
        FedFomo's weights before clipping. 0 if a loss or a distance is not finite: a broken model
        helps nobody.

    Raises
    ------
    ValueError
        If shapes differ from the above or `epsilon` is not positive.
    """
    checks.check_shapes(losses=(losses, "M"), distances=(distances, "M"))
    checks.check_positive("epsilon", epsilon)
    gains = (reference_loss - losses.double()) / (distances.double() + epsilon)
    return torch.where(torch.isfinite(gains), gains, 0).to(losses.dtype)


def fomo_weights(affinities: Tensor) -> Tensor:
    """Return FedFomo's mixing weights: the positive affinities, normalised.

    Parameters
    ----------
    affinities : Tensor [M]
        Of `fomo_affinities`, finite.

    Returns
    -------
    Tensor [M]
        Sums to 1, or all 0 if no candidate helps (`fomo_mix` then returns the reference).

    Raises
    ------
    ValueError
        If the shape differs from the above.
    """
    checks.check_shapes(affinities=(affinities, "M"))
    positive = affinities.double().clamp(min=0)
    total = positive.sum()
    return (positive / torch.where(total > 0, total, 1)).to(affinities.dtype)


def fomo_mix(
    reference: Mapping[str, Tensor], candidates: Sequence[Mapping[str, Tensor]], weights: Tensor
) -> dict[str, Tensor]:
    """Return ``theta_ref + sum_n w_n (theta_n - theta_ref)``; a candidate of weight 0 has no influence.

    Parameters
    ----------
    reference : dict of Tensor
    candidates : sequence of M dicts of Tensor
        Names and shapes of `reference`.
    weights : Tensor [M]
        Of `fomo_weights`.

    Returns
    -------
    dict of Tensor
        Like `reference`, with its integer tensors.

    Raises
    ------
    ValueError
        If numbers, names or shapes differ.
    """
    if tuple(weights.shape) != (len(candidates),):
        raise ValueError(
            f"weights: shape {list(weights.shape)}, expected [{len(candidates)}], one per candidate"
        )
    chosen = [
        (tree, weight) for tree, weight in zip(candidates, weights.tolist(), strict=True) if weight
    ]
    for number, tree in enumerate(candidates):
        checks.check_names(f"candidates[{number}]", tree, reference)

    def mix(base: Tensor, *others: Tensor) -> Tensor:
        total = base.clone()
        for other, (_, weight) in zip(others, chosen, strict=True):
            total += weight * (other - base)
        return total

    trees = {
        f"candidates with weight, number {number}": tree for number, (tree, _) in enumerate(chosen)
    }
    return dict(checks.map_floating(mix, reference, **trees))
