"""Few-shot learning by episodes: a client learns to tell a few of its classes apart, and is tested on unseen ones."""

import sys
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flray import functional, rng
from flray.data.types import Array, FederatedData, Rows
from flray.errors import DataError
from flray.models.base import dry_run
from flray.registry import register_task
from flray.tasks.base import Predictions, Task

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

    name = "few-shot"
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
        """Refuse a network that cannot take the samples."""
        dry_run(name, model, data.shape)

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
        return {"accuracy": right / count, "loss": loss / count}

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
