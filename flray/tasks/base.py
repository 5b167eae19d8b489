"""Tasks: which loss is minimised and which numbers describe how well it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from flray import functional
from flray.data.types import FederatedData
from flray.errors import ConfigError, DataError, FlrayError
from flray.models.dry_run import dry_run
from flray.tasks.binary import binary_metrics
from flray.tasks.few_shot import FewShot
from flray.tasks.segmentation import dice_coefficient, hausdorff_distance

Predictions = dict[str, NDArray[Any]]


class Task(Protocol):
    """Loss and metrics of one kind of learning problem.

    Attributes
    ----------
    name : str
        As in `DataSet.task`.
    metric : str
        The measure by which methods are compared.
    logits : bool
        Whether outputs are the logits [B, C] of fixed classes.
    measures : tuple of str
        Names of everything that `summarise` returns.
    """

    name: str
    metric: str
    logits: bool
    measures: tuple[str, ...]

    def check(self, data: FederatedData) -> None:
        """Refuse data that are not of this kind.

        Raises
        ------
        DataError
            Saying what is wrong with them.
        """

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network as this task uses it."""

    def check_network(self, name: str, model: nn.Module, data: FederatedData) -> None:
        """Refuse a network that cannot learn this.

        Raises
        ------
        ConfigError
            Naming what it returns.
        """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar training loss (batch mean)."""

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return, per sample, what the metrics are computed from; each tensor [B, ...]."""

    def summarise(self, predictions: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return the metrics of a set of samples; NaN where they are not defined."""


class Classification:
    """Cross-entropy; accuracy in [0, 1] and mean loss."""

    name = "classification"
    measures: tuple[str, ...] = ("accuracy", "loss")
    metric = "accuracy"
    logits = True

    def check(self, data: FederatedData) -> None:
        """Refuse masks."""
        if not data.has_classes:
            raise DataError(
                f"data set {data.dataset}: {self.name} needs class labels [n], found masks"
            )

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network unchanged."""
        return model

    def check_network(self, name: str, model: nn.Module, data: FederatedData) -> None:
        """Refuse a network without a logit for every class."""
        outputs = dry_run(name, model, data.shape)
        if isinstance(outputs, Tensor) and (
            outputs.dim() != 2 or outputs.shape[1] < data.num_classes
        ):
            raise ConfigError(
                "experiment.model",
                name,
                f"classification needs one logit for each of the "
                f"{data.num_classes} classes of {data.dataset}, [1, {data.num_classes}] for one "
                f"sample, "
                f"and it returns {list(outputs.shape)}",
            )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits [B, C] and labels [B]."""
        return F.cross_entropy(outputs, targets)

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return per sample whether the largest logit is the label's, and the cross-entropy."""
        loss = F.cross_entropy(outputs, targets, reduction="none")
        return {"correct": outputs.argmax(1) == targets, "loss": loss.to(torch.float64)}

    def summarise(self, predictions: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return accuracy and mean loss; NaN for no samples."""
        correct, loss = predictions["correct"], predictions["loss"]
        if not len(correct):
            return {"accuracy": float("nan"), "loss": float("nan")}
        return {
            "accuracy": float(np.count_nonzero(correct)) / len(correct),
            "loss": float(loss.sum()) / len(loss),
        }


class Binary(Classification):
    """Classification of two classes, the second one positive: besides accuracy and loss AUC, sensitivity and so on.

    The networks have two logits, as for any classes, so that every method for classification runs;
    the score is the positive class's probability, which is the sigmoid of the logits' difference.
    """

    name = "binary"
    measures: tuple[str, ...] = ("accuracy", "loss", "auc", "sensitivity", "specificity", "f1")

    def check(self, data: FederatedData) -> None:
        """Refuse masks and more or fewer than two classes."""
        super().check(data)
        if data.num_classes != 2:
            raise DataError(
                f"data set {data.dataset}: a binary task has 2 classes, found {data.num_classes}"
            )

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return per sample also the score of class 1 and the label."""
        score = torch.sigmoid((outputs[:, 1] - outputs[:, 0]).to(torch.float64))
        return {**super().predictions(outputs, targets), "score": score, "label": targets}

    def summarise(self, predictions: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return accuracy, loss, AUC, sensitivity, specificity and F1."""
        return {
            **super().summarise(predictions),
            **binary_metrics(predictions["score"], predictions["label"]),
        }


class Segmentation:
    """Masks of structures that may overlap: Dice loss; Dice and Hausdorff distance of what has a probability above 1/2.

    Parameters
    ----------
    structures : sequence of str
        Names of the masks' channels.
    """

    name = "segmentation"
    metric = "dice"
    logits = False

    def __init__(self, structures: Sequence[str]) -> None:
        self.structures = tuple(structures)
        distances = ("dice", "hausdorff", "hausdorff95")
        single = (
            tuple(f"{measure}_{s}" for measure in distances for s in structures)
            if len(structures) > 1
            else ()
        )
        self.measures: tuple[str, ...] = (*distances, *single, "loss")

    def check(self, data: FederatedData) -> None:
        """Refuse anything but masks of the images' size, one per structure."""
        wanted = (len(self.structures), *data.shape[1:])
        if data.y.dtype != np.uint8 or (data.y.shape[1:] != wanted and data.y.size):
            raise DataError(
                f"data set {data.dataset}: segmentation needs masks, uint8 {list(wanted)} per "
                f"sample, found"
                f" {data.y.dtype} {list(data.y.shape[1:])}"
            )

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network unchanged."""
        return model

    def check_network(self, name: str, model: nn.Module, data: FederatedData) -> None:
        """Refuse a network that does not return one map per structure."""
        wanted = [len(self.structures), *data.shape[1:]]
        found = list(dry_run(name, model, data.shape).shape[1:])
        if found != wanted:
            raise ConfigError(
                "experiment.model",
                name,
                f"segmentation needs a network with one map per structure, "
                f"{wanted}, and it returns {found}; for example unet",
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

    def summarise(self, predictions: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return each measure as mean over structures and, called ``dice_cup``, of each structure; and the loss."""
        metrics = {}
        for measure in ("dice", "hausdorff", "hausdorff95"):
            means = [_mean(values) for values in predictions[measure].T]
            metrics[measure] = _mean(np.array(means))
            if len(means) > 1:
                metrics.update(
                    {f"{measure}_{s}": v for s, v in zip(self.structures, means, strict=True)}
                )
        return {**metrics, "loss": _mean(predictions["loss"])}


def _mean(values: NDArray[Any]) -> float:
    """Return the mean of the values that are defined."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


NAMES = ("classification", "binary", "segmentation", "few-shot")


def make_task(
    name: str, classes: Sequence[str] = (), few_shot: Mapping[str, int] | None = None
) -> Task:
    """Return the task called `name`.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    classes : sequence of str
        Class names, for segmentation the structures'.
    few_shot : mapping, optional
        The settings of `FewShot`.

    Raises
    ------
    FlrayError
        If there is none.
    """
    if name == "segmentation":
        return Segmentation(classes)
    if name == "few-shot":
        return FewShot(**(few_shot or {}))
    if name not in NAMES:
        raise FlrayError(f"unknown task {name!r}; one of {', '.join(NAMES)}")
    return Binary() if name == "binary" else Classification()
