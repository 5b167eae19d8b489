"""An episode's loss against its formula, written out."""

from __future__ import annotations

import math

import pytest
import torch

from flray.functional import prototypical_logits, prototypical_loss


def test_logits_are_negative_squared_distances() -> None:
    queries, prototypes = (
        torch.tensor([[0.0, 0.0], [3.0, 4.0]]),
        torch.tensor([[0.0, 1.0], [3.0, 0.0]]),
    )
    assert prototypical_logits(queries, prototypes).tolist() == [[-1.0, -9.0], [-18.0, -16.0]]
    stacked = prototypical_logits(queries.expand(5, 2, 2), prototypes.expand(5, 2, 2))
    assert stacked.shape == (5, 2, 2)


def test_loss_by_hand() -> None:
    """Prototypes 1 (class 7: samples 0 and 2) and 5 (class 3), one query of each class; order is as it comes."""
    embeddings = torch.tensor([[0.0], [4.0], [2.0], [6.0], [2.5], [5.5]], dtype=torch.float64)
    labels = torch.tensor([7, 3, 7, 3, 7, 3])
    first, second = (math.log(1 + math.exp(a - b)) for a, b in ((1.5**2, 2.5**2), (0.5**2, 4.5**2)))
    assert float(prototypical_loss(embeddings, labels, 2)) == pytest.approx(
        (first + second) / 2, abs=1e-14
    )


def test_support_and_queries_both_learn() -> None:
    embeddings = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    prototypical_loss(embeddings, labels, 2).backward()
    assert embeddings.grad is not None and bool((embeddings.grad.abs().sum(1) > 1e-6).all())


def test_without_queries_there_is_nothing_to_learn() -> None:
    embeddings = torch.randn(4, 3, requires_grad=True)
    loss = prototypical_loss(embeddings, torch.tensor([0, 0, 1, 1]), 2)
    loss.backward()
    assert loss.item() == 0 and embeddings.grad is not None and not embeddings.grad.any()
