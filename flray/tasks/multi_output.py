"""Tasks with several targets for each sample: masks of structures, numbers (regression), labels beside each other.

Dice coefficient and Hausdorff distance of masks equal MONAI's (tested). They are written out here because importing
MONAI takes seconds in every process that evaluates.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flray import functional
from flray.data.types import Array, FederatedData, Floats, Rows
from flray.errors import ConfigError, DataError
from flray.models import dry_run
from flray.registry import register_task
from flray.tasks.base import Predictions, Task, mean_of_known
from flray.tasks.classification import binary_metrics


@register_task("segmentation")
class Segmentation(Task):
    """Masks of structures that may overlap: Dice loss; Dice and Hausdorff distance at a probability above 1/2.

    Parameters
    ----------
    structures : sequence of str
        Names of the masks' channels.
    """

    target = "masks"

    def __init__(self, structures: Sequence[str]) -> None:
        self.structures = tuple(structures)
        distances = ("dice", "hausdorff", "hausdorff95")
        single = [f"{measure}_{s}" for measure in distances for s in structures]
        self.measures = (*distances, *(single if len(structures) > 1 else ()), "loss")

    def check(self, data: FederatedData) -> None:
        """Refuse anything but masks of the images' size, one per structure."""
        wanted, y = (len(self.structures), *data.shape[1:]), data.y
        fits = y.dtype == np.uint8 and (y.shape[1:] == wanted or not y.size)
        if not fits or y.max(initial=0) > 1:
            highest = f" up to {y.max()}" if fits else ""
            raise DataError(
                f"data set {data.dataset}: segmentation needs masks, uint8 {list(wanted)} per "
                f"sample, 0 or 1, found {y.dtype} {list(y.shape[1:])}{highest}"
            )

    def check_network(self, name: str, model: nn.Module, data: FederatedData) -> None:
        """Refuse a network that does not return one map per structure."""
        wanted = [len(self.structures), *data.shape[1:]]
        found = list(dry_run(name, model, data.shape).shape[1:])
        if found != wanted:
            raise ConfigError(
                "experiment.model",
                name,
                f"segmentation needs a network with one map per structure, {wanted}, and it "
                f"returns {found}; for example unet",
            )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the Dice loss of logits and masks [B, K, H, W]."""
        return functional.dice_loss(outputs, targets)

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return Dice loss [B]; Dice, Hausdorff distance and its 95th percentile [B, K], in pixels.

        Where only one of the two masks is empty, the distance counts as the image's diagonal, the
        largest there is.
        """
        predicted, truth = (outputs > 0).cpu().numpy(), targets.cpu().numpy() != 0
        distances = np.array(
            [
                [hausdorff_distance(p, t, (100.0, 95.0)) for p, t in zip(*pair, strict=True)]
                for pair in zip(predicted, truth, strict=True)
            ]
        ).reshape(*truth.shape[:2], 2)
        distances[np.isinf(distances)] = np.hypot(*truth.shape[2:])
        return {
            "loss": functional.dice_loss(outputs, targets, reduction="none").to(torch.float64),
            "dice": torch.from_numpy(dice_coefficient(predicted, truth)),
            "hausdorff": torch.from_numpy(distances[..., 0]),
            "hausdorff95": torch.from_numpy(distances[..., 1]),
        }

    def summarise(self, predictions: Predictions) -> dict[str, float]:
        """Return each measure as mean over structures and, called ``dice_cup``, of each structure; and the loss."""
        metrics = {}
        for measure in ("dice", "hausdorff", "hausdorff95"):
            means = [mean_of_known(values) for values in predictions[measure].T]
            metrics[measure] = mean_of_known(np.array(means))
            if len(means) > 1:
                metrics.update(
                    {f"{measure}_{s}": v for s, v in zip(self.structures, means, strict=True)}
                )
        loss = np.nan_to_num(predictions["loss"], nan=np.inf)  # NaN: training has diverged
        return {**metrics, "loss": mean_of_known(loss)}


def dice_coefficient(predicted: Array, truth: Array) -> Floats:
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
    return np.where(sizes > 0, 2 * both / np.maximum(sizes, 1), 1.0)


def hausdorff_distance(
    predicted: Array, truth: Array, percentiles: tuple[float, ...] = (100.0,)
) -> Floats:
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
    larger: Floats = np.maximum(*directed)
    return larger


_BINS = 10


@register_task("regression")
class Regression(Task):
    """Regression of one or several numbers by least squares: share of explained variance, and mean errors."""

    target = "numbers"
    measures = ("r2", "rmse", "mae", "loss")

    @staticmethod
    def partition_labels(targets: Array) -> Rows:
        """Return which tenth of all samples the first number is in."""
        order = np.argsort(np.argsort(targets[:, 0], kind="stable"), kind="stable")
        return order * _BINS // max(len(order), 1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of outputs and targets [B, k]."""
        return F.mse_loss(outputs, targets.to(outputs.dtype))

    def measure(self, targets: Array, outputs: Array) -> dict[str, float]:
        """Return R^2 (of several numbers their mean; NaN if a number does not vary), RMSE and MAE."""
        wanted, errors = targets.astype(np.float64), outputs.astype(np.float64) - targets
        errors[np.isnan(errors)] = np.inf
        spread = np.square(wanted - wanted.mean(0)).sum(0)
        left = np.square(errors).sum(0)
        r2 = float((1 - left / spread).mean()) if spread.all() else float("nan")
        return {
            "r2": r2,
            "rmse": float(np.sqrt(np.square(errors).mean())),
            "mae": float(abs(errors).mean()),
        }


@register_task("multi-label")
class MultiLabel(Task):
    """Labels that do not exclude each other, any number for a sample: means over them of AUC, F1 and so on."""

    target = "flags"
    measures = ("auc", "sensitivity", "specificity", "f1", "accuracy", "loss")

    @staticmethod
    def partition_labels(targets: Array) -> Rows:
        """Return the rarest label that a sample has; of one without labels the number after the last."""
        order = np.argsort(targets.sum(0, dtype=np.int64), kind="stable")
        first = targets[:, order].argmax(1)
        rarest: Rows = np.where(targets.any(1), order[first], targets.shape[1])
        return rarest

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean binary cross-entropy of logits and labels [B, k]."""
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))

    def measure(self, targets: Array, outputs: Array) -> dict[str, float]:
        """Return the mean over labels of each measure of two classes, if defined, and the share of right labels."""
        scores = torch.sigmoid(torch.from_numpy(outputs).double()).numpy()
        each = [binary_metrics(*pair) for pair in zip(scores.T, targets.T, strict=True)]
        found = {name: [one[name] for one in each] for name in each[0]}
        means = {name: mean_of_known(np.array(values)) for name, values in found.items()}
        return {**means, "accuracy": float(((scores > 0.5) == (targets == 1)).mean())}
