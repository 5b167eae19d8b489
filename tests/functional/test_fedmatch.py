import numpy as np
import pytest
import torch

from flray.functional import (
    confident,
    decomposition_penalty,
    helper_consistency_loss,
    pseudo_label_loss,
    vote,
)
from tests.functional.helpers import normal


def test_confidence_and_votes() -> None:
    logits = torch.tensor([[0.0, 2.0], [0.0, 1.0]])  # largest probabilities 0.881 and 0.731
    assert confident(logits, 0.75).tolist() == [True, False] and not confident(logits, 1.01).any()
    # The second sample is tied three ways.
    picks = torch.tensor([[2, 2, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]])
    assert vote(torch.nn.functional.one_hot(picks, 3).double()).tolist() == [1, 2, 1, 1]
    own = normal(1, 5, 3)
    assert torch.equal(vote(own.expand(3, 5, 3)), own[0].argmax(1))


def test_pseudo_labels_count_kept_samples_only() -> None:
    logits, labels = normal(3, 4).requires_grad_(), torch.tensor([0, 1, 2])
    shares = torch.softmax(logits.detach(), 1).numpy()
    loss = pseudo_label_loss(logits, labels, torch.tensor([True, False, True]))
    assert loss.item() == pytest.approx(
        -(np.log(shares[0, 0]) + np.log(shares[2, 2])) / 2, rel=1e-12
    )
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0].any() and not gradient[1].any()
    assert pseudo_label_loss(logits, labels, torch.zeros(3).bool()).item() == 0.0


def test_consistency_equals_loops() -> None:
    logits, helpers, keep = (
        normal(3, 4).requires_grad_(),
        normal(2, 3, 4, seed=1),
        torch.tensor([True, True, False]),
    )
    own = torch.softmax(logits.detach(), 1).numpy()
    expected = 0.0
    for helper in torch.softmax(helpers, 2).numpy():
        expected += (
            sum(float((helper[b] * np.log(helper[b] / own[b])).sum()) for b in (0, 1)) / 2 / 2
        )
    assert helper_consistency_loss(logits, helpers, keep).item() == pytest.approx(
        expected, rel=1e-12
    )
    assert torch.autograd.gradcheck(lambda x: helper_consistency_loss(x, helpers, keep), logits)
    none = helper_consistency_loss(logits, helpers[:0], keep)
    assert none.item() == 0.0 and not torch.autograd.grad(none, logits)[0].any()


def test_decomposition_penalty_moves_psi_only() -> None:
    psi = {"w": torch.tensor([1.0, -2.0], requires_grad=True)}
    sigma = {"w": torch.tensor([3.0, 0.0], requires_grad=True)}
    loss = decomposition_penalty(psi, sigma, l1=0.5, l2=2.0)
    assert loss.item() == 0.5 * 3 + 2 * 8
    gradients = torch.autograd.grad(loss, (psi["w"], sigma["w"]), allow_unused=True)
    assert gradients[1] is None and gradients[0].tolist() == [0.5 - 8.0, -0.5 - 8.0]
