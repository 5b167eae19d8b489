"""Classification of fixed classes: cross-entropy, accuracy; of two also AUC, sensitivity, specificity and F1.

Which class of two is the positive one the data set says: `flray.data.types.FederatedData.positive`.

In few-shot learning by episodes a client learns to tell a few of its classes apart, and is tested on unseen ones.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flray import functional, rng
from flray.data.types import Array, FederatedData, Floats, Rows
from flray.errors import ConfigError, DataError
from flray.models import dry_run
from flray.registry import register_task
from flray.tasks.base import Predictions, Task, finite_or_infinite


@register_task("classification")
class Classification(Task):
    """Cross-entropy; accuracy in [0, 1] and mean loss.

    Parameters
    ----------
    top_k : int, optional
        Also measure top-k accuracy, called ``top5`` for 5.
    """

    logits = True
    base_measures: tuple[str, ...] = ("accuracy", "loss")

    def __init__(self, top_k: int | None = None) -> None:
        self.top_k = top_k
        self._top = f"top{top_k}"
        self.measures = (*self.base_measures, *((self._top,) if top_k is not None else ()))

    def check(self, data: FederatedData) -> None:
        """Refuse targets that are not classes, and top-k accuracy of k classes or fewer."""
        super().check(data)
        if self.top_k is not None and self.top_k >= data.num_classes:
            raise ConfigError(
                "experiment.evaluation.top_k",
                str(self.top_k),
                f"{data.dataset} has {data.num_classes} classes, so that every label is among the "
                f"{self.top_k} largest logits; "
                + (
                    f"at most {data.num_classes - 1}, or null"
                    if data.num_classes > 2
                    else "leave it out"
                ),
            )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits [B, C] and labels [B]."""
        return F.cross_entropy(outputs, targets)

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return per sample whether the largest logit, or one of k, is the label's, and the cross-entropy."""
        loss = F.cross_entropy(outputs, targets, reduction="none")
        found = {"correct": outputs.argmax(1) == targets, "loss": loss.to(torch.float64)}
        if self.top_k is not None:
            found[self._top] = among_largest(outputs, targets, self.top_k)
        return found

    def summarise(self, predictions: Predictions) -> dict[str, float]:
        """Return accuracies and mean loss; NaN for no samples."""
        correct, loss = predictions["correct"], predictions["loss"]
        if not len(correct):
            return dict.fromkeys(self.measures, float("nan"))
        shares = {"accuracy": correct}
        if self.top_k is not None:
            shares[self._top] = predictions[self._top]
        return {
            **{name: float(np.count_nonzero(hit)) / len(hit) for name, hit in shares.items()},
            "loss": finite_or_infinite(float(loss.sum()) / len(loss)),
        }


def summarise_parts(
    task: Task, predictions: Predictions, sizes: Sequence[int]
) -> dict[str, Floats]:
    """Return by metric the values of a task's `summarise` for each of consecutive parts of some samples.

    Parameters
    ----------
    task : Task
        For `Classification` alone all parts are added up at once, to the same bits: the losses of parts of one size
        are the rows of one table.
    predictions : mapping
        Of all samples.
    sizes : sequence of int
        Samples of each part.
    """
    counts, ends = np.asarray(sizes), np.cumsum([0, *sizes])
    if type(task) is not Classification:
        places = [slice(*place) for place in pairwise(ends)]
        each = [task.summarise({n: v[place] for n, v in predictions.items()}) for place in places]
        return {name: np.array([one[name] for one in each]) for name in each[0]}
    sums: dict[str, Array] = {
        "accuracy" if name == "correct" else name: np.diff(np.cumsum(np.append(0, hits))[ends])
        for name, hits in predictions.items()
        if name != "loss"
    }
    losses = sums["loss"] = np.zeros(len(counts))
    for size in np.unique(counts):
        alike = np.flatnonzero(counts == size)
        losses[alike] = predictions["loss"][ends[alike, None] + np.arange(size)].sum(axis=1)
    losses[np.isnan(losses)] = np.inf
    with np.errstate(invalid="ignore"):  # an empty part has no mean
        return {name: values / counts for name, values in sums.items()}


def among_largest(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return whether each label's logit is among the k largest; of equal ones the first count, NaN is the largest.

    Parameters
    ----------
    logits : Tensor [B, C]
    labels : Tensor of int64 [B]
    k : int

    Returns
    -------
    Tensor of bool [B]
    """
    own, classes = logits.gather(1, labels.unsqueeze(1)), torch.arange(logits.shape[1])
    earlier = classes.to(labels.device) < labels.unsqueeze(1)
    ahead = ~(logits <= own) | ((logits == own) & earlier)
    return ahead.sum(1) < k


@register_task("binary")
class Binary(Classification):
    """Classification of two classes, the second one positive: besides accuracy and loss AUC, sensitivity and so on.

    The networks have two logits, as for any classes, so that every method for classification runs;
    the score is the positive class's probability, which is the sigmoid of the logits' difference.
    """

    base_measures = ("accuracy", "loss", "auc", "sensitivity", "specificity", "f1")

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

    def summarise(self, predictions: Predictions) -> dict[str, float]:
        """Return accuracy, loss, AUC, sensitivity, specificity and F1."""
        return {
            **super().summarise(predictions),
            **binary_metrics(predictions["score"], predictions["label"]),
        }


def binary_metrics(scores: Array, labels: Array, threshold: float = 0.5) -> dict[str, float]:
    """Return the metrics of a two-class prediction.

    Parameters
    ----------
    scores : ndarray [n]
        Score of class 1; the higher the likelier.
    labels : ndarray of int [n]
        0 or 1.
    threshold : float
        A score above it is a prediction of class 1.

    Returns
    -------
    dict
        ``auc``, ``sensitivity`` (share of class 1 found), ``specificity`` (share of class 0 left
        alone) and ``f1``, each in [0, 1]. A metric is NaN if its classes do not occur, F1 if
        neither a sample nor a prediction is 1.
    """
    positive, found = np.asarray(labels) == 1, np.asarray(scores) > threshold
    true, false, ones, zeros = (
        int(np.count_nonzero(which))
        for which in (found & positive, found & ~positive, positive, ~positive)
    )
    auc = float("nan")
    if ones and zeros:
        from sklearn.metrics import roc_auc_score  # takes a second to import, so only on use

        auc = float(roc_auc_score(positive, np.nan_to_num(scores)))  # NaN is not found either
    return {
        "auc": auc,
        "sensitivity": _share(true, ones),
        "specificity": _share(zeros - false, zeros),
        "f1": _share(2 * true, true + false + ones),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


_CHUNK = 2**22  # values of the embeddings that an evaluation works on at a time


@register_task("few-shot")
class FewShot(Task):
    """Prototypical networks: outputs are embeddings, an episode's queries go to the nearest class mean of its support.

    Parameters
    ----------
    way, shot, queries : int
        Classes of an episode, support samples and queries of each. If fewer than `way` classes have
        ``shot + queries`` samples, classes with more than `shot` count too, and the smallest one
        sets the number of queries. If these are still too few, the episode has fewer classes.
    test : int
        Episodes of an evaluation. They depend on the seed and the test samples alone, so that every
        round and method is tested on the same.
    seed : int
        The experiment's seed.
    """

    target = "episodes"
    measures = ("accuracy", "loss")

    def __init__(
        self, way: int = 5, shot: int = 5, queries: int = 15, test: int = 600, seed: int = 0
    ) -> None:
        self.way, self.shot, self.queries, self.test, self.seed = way, shot, queries, test, seed

    def check(self, data: FederatedData) -> None:
        """Refuse a client or a test set without two classes for an episode.

        Raises
        ------
        DataError
            Naming the client.
        """
        super().check(data)
        parts = [(f"client {c.name}: training", c.train) for c in data.everyone] + [
            ("the common test set:", data.test)
        ]
        for where, rows in parts:
            enough = int((np.bincount(data.y[rows]) > self.shot).sum())
            if enough < 2:
                raise DataError(
                    f"{where} samples of {enough} classes with more than episodes.shot={self.shot} of them, and an "
                    "episode needs 2; take fewer clients, a less skewed partition, a smaller shot"
                )

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network without its classifier: its features are the embedding."""
        if isinstance(getattr(model, "features", None), nn.Module):
            model.classifier = nn.Identity()
            taps: tuple[str, ...] = tuple(getattr(model, "taps", ()))
            setattr(model, "taps", tuple(tap for tap in taps if tap.startswith("features.")))  # noqa: B010
        return model

    def check_network(self, name: str, model: nn.Module, data: FederatedData) -> None:
        """Refuse a network whose features are not flat."""
        found = list(dry_run(name, model, data.shape).shape)
        if len(found) != 2:
            why = f"episodes compare flat features, [1, d] for one sample, and its are {found}"
            raise ConfigError("experiment.model", name, f"{why}; choose another, such as protonet")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of an episode: embeddings [B, d] and labels [B], of each class the support first."""
        return functional.prototypical_loss(outputs, targets, self.shot)

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return embedding and label of each sample."""
        return {"embedding": outputs, "label": targets}

    def summarise(self, predictions: Predictions) -> dict[str, float]:
        """Return mean accuracy and loss over the test episodes; NaN if too few classes have enough samples."""
        generator = rng.numpy_generator(self.seed, "batches", extra="test episodes")
        episodes = list(self.episodes(predictions["label"], generator, self.test))
        if not episodes:
            return {"accuracy": float("nan"), "loss": float("nan")}
        embeddings = torch.from_numpy(predictions["embedding"])
        rows = torch.from_numpy(np.stack(episodes))  # [episodes, way, shot + queries]
        right = loss = 0.0
        for part in rows.split(max(1, _CHUNK // (rows[0].numel() * embeddings.shape[1]))):
            chosen = embeddings[part].double()
            queries = chosen[:, :, self.shot :].flatten(1, 2)
            logits = functional.prototypical_logits(
                queries, chosen[:, :, : self.shot].mean(2)
            ).flatten(0, 1)
            of_episode = torch.arange(part.shape[1]).repeat_interleave(part.shape[2] - self.shot)
            targets = of_episode.repeat(len(part))
            right += float((logits.argmax(1) == targets).sum())
            loss += float(F.cross_entropy(logits, targets, reduction="sum"))
        count = len(rows) * rows.shape[1] * (rows.shape[2] - self.shot)
        return {"accuracy": right / count, "loss": finite_or_infinite(loss / count)}

    def episodes(
        self, labels: Array, generator: np.random.Generator, number: int
    ) -> Iterator[Rows]:
        """Yield episodes: positions [way, shot + queries], each class's support first; none if samples are too few.

        Parameters
        ----------
        labels : ndarray of int64 [n]
            Of the samples to choose from.
        generator : numpy.random.Generator
            Draws classes and samples without replacement.
        number : int
            How many.
        """
        classes, counts = np.unique(labels, return_counts=True)
        fit = counts >= self.shot + self.queries
        if fit.sum() < self.way:
            fit = counts > self.shot
        if fit.sum() < 2:
            return
        members = [np.flatnonzero(labels == label) for label in classes[fit]]
        size = self.shot + min(self.queries, int(counts[fit].min()) - self.shot)
        for _ in range(number):
            chosen = generator.permutation(len(members))[: self.way]
            yield np.stack([generator.permutation(members[c])[:size] for c in chosen])

    def episodes_per_epoch(self, labels: Tensor) -> int:
        """Return the number of episodes that show as many samples as there are; 0 if the samples do not suffice."""
        one = next(self.episodes(labels.cpu().numpy(), np.random.default_rng(0), 1), None)
        return 0 if one is None else -(-len(labels) // one.size)

    def batches(self, labels: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield episodes without end: positions [B], each class's support before its queries.

        Parameters
        ----------
        labels : Tensor of int64 [n]
            Of the samples to choose from.
        generator : torch.Generator
            Keyed by seed, round and client.
        """
        seed = int(torch.randint(2**62, (), generator=generator))
        draws = np.random.Generator(np.random.Philox(seed))
        for positions in self.episodes(labels.cpu().numpy(), draws, sys.maxsize):
            yield torch.from_numpy(positions.reshape(-1))
