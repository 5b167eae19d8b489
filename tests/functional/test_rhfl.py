import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flray.functional import confidence_weights, peer_distillation_loss, symmetric_cross_entropy
from tests.functional.helpers import F64, normal

LABELS = torch.tensor([0, 2, 1])


def test_symmetric_cross_entropy_equals_loops() -> None:
    logits, expected = normal(3, 4).requires_grad_(), 0.0
    for z, y in zip(logits.detach().numpy(), LABELS.tolist(), strict=True):
        p = np.exp(z) / np.exp(z).sum()
        reverse = -sum(max(p[c], 1e-7) * math.log(1.0 if c == y else 1e-4) for c in range(4))
        expected += (0.1 * -math.log(p[y]) + 1.0 * reverse) / 3
    assert symmetric_cross_entropy(logits, LABELS).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: symmetric_cross_entropy(x, LABELS), logits)


def test_symmetric_cross_entropy_parts() -> None:
    logits = normal(3, 4).float()
    assert torch.equal(
        symmetric_cross_entropy(logits, LABELS, a=1.0, b=0.0), F.cross_entropy(logits, LABELS)
    )
    sure = torch.tensor([[50.0, -50.0]], dtype=torch.float64)
    assert symmetric_cross_entropy(sure, torch.tensor([0]), 0.0).item() == pytest.approx(
        1e-7 * 9.2103, rel=1e-4
    )
    assert symmetric_cross_entropy(sure, torch.tensor([1]), 0.0).item() == pytest.approx(
        -math.log(1e-4), rel=1e-12
    )
    assert symmetric_cross_entropy(torch.zeros(0, 3), torch.zeros(0).long()).item() == 0.0


def test_confidence_by_hand() -> None:
    now = torch.tensor([1.0, 2.0, 4.0], dtype=F64)
    before = torch.tensor([2.0, 3.0, 4.0], dtype=F64)
    q = np.array([1.0, 0.5, 0.0])
    expected = np.exp(0.5 + 0.5 * q / 1.5)
    np.testing.assert_allclose(
        confidence_weights(now, before), expected / expected.sum(), rtol=1e-12
    )


def test_confidence_neutral_cases() -> None:
    losses = torch.tensor([1.0, 2.0, 4.0])
    assert confidence_weights(losses).tolist() == [0.5] * 3
    uniform = pytest.approx([1 / 3] * 3)
    assert confidence_weights(losses, losses * 2, eta=0.0).tolist() == uniform
    assert confidence_weights(losses, losses).tolist() == uniform
    rising = confidence_weights(losses, torch.tensor([0.9, 1.0, 1.0]))
    assert rising.tolist() == uniform  # a negative sum of efficiencies would reverse the ranking
    for one in ((losses[:1],), (losses[:1], losses[:1])):
        assert confidence_weights(*one).tolist() == [0.0]
    perfect = confidence_weights(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    assert perfect[0] > perfect[1] and perfect.sum().item() == pytest.approx(1.0)


def test_peer_distillation_equals_loops_and_skips_itself() -> None:
    logits, weights = (
        normal(2, 3).requires_grad_(),
        torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64),
    )
    peers = torch.softmax(normal(3, 2, 3, seed=1), dim=2)
    peers[2, 0] = torch.tensor([1.0, 0.0, 0.0])  # a zero probability contributes nothing
    own = torch.softmax(logits.detach(), dim=1)
    expected = sum(
        weights[j].item()
        * sum(float(p * math.log(p / q)) for p, q in zip(peers[j, b], own[b], strict=True) if p)
        / 2
        for j in (0, 2)
        for b in range(2)
    )
    peers[1] = float("nan")
    loss = peer_distillation_loss(logits, peers, weights, 1)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: peer_distillation_loss(x, peers, weights, 1), logits)


def test_peer_distillation_neutral_cases() -> None:
    logits = normal(2, 3).requires_grad_()
    same = torch.softmax(logits.detach(), dim=1).expand(3, 2, 3)
    assert peer_distillation_loss(logits, same, torch.ones(3).double(), 0).item() == pytest.approx(
        0.0, abs=1e-15
    )
    alone = peer_distillation_loss(logits, same[:1], torch.ones(1).double(), 0)
    assert alone.item() == 0.0 and not torch.autograd.grad(alone, logits)[0].any()
