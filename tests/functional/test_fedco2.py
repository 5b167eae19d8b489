import numpy as np
import pytest
import torch
from torch import nn

from flray.functional import fuse_predictions, peer_classifier_loss


def linear_heads(number: int) -> list[nn.Module]:
    rng = np.random.default_rng(0)
    heads: list[nn.Module] = []
    for _ in range(number):
        head = nn.Linear(3, 4).double()
        head.load_state_dict(
            {
                "weight": torch.from_numpy(rng.normal(size=(4, 3))),
                "bias": torch.from_numpy(rng.normal(size=4)),
            }
        )
        heads.append(head)
    return heads


FEATURES = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 3)))
LABELS = torch.tensor([0, 1, 2, 3, 0])


def test_sum_over_the_other_heads_equals_loops() -> None:
    heads, expected = linear_heads(4), 0.0
    for j in (0, 2, 3):
        logits = (
            FEATURES.numpy() @ heads[j].weight.detach().numpy().T + heads[j].bias.detach().numpy()
        )
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        expected += float(-np.log(shares[np.arange(5), LABELS.numpy()]).mean())
    assert peer_classifier_loss(FEATURES, LABELS, heads, 1).item() == pytest.approx(
        expected, rel=1e-12
    )
    features = FEATURES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: peer_classifier_loss(x, LABELS, heads, 1), features)


def test_heads_stay_frozen_and_as_they_were() -> None:
    heads: list[nn.Module] = [
        nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4)).double()
        for _ in range(3)
    ]
    heads[2][1].eval()
    before = [{name: value.clone() for name, value in head.state_dict().items()} for head in heads]
    features = FEATURES.clone().requires_grad_()
    first, second = (peer_classifier_loss(features, LABELS, heads, 0) for _ in range(2))
    first.backward()
    assert first.item() == second.item()  # eval mode: no dropout
    assert features.grad is not None and features.grad.any()
    for head, state in zip(heads, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in head.state_dict().items())
        assert all(p.grad is None and p.requires_grad for p in head.parameters()) and head.training
    assert not heads[2][1].training and heads[1][1].training


def test_single_participant_and_poisoned_own_head() -> None:
    features = torch.full((2, 3), float("inf"), dtype=torch.float64, requires_grad=True)
    loss = peer_classifier_loss(features, LABELS[:2], linear_heads(1), 0)
    loss.backward()
    assert loss.item() == 0.0 and features.grad is not None and not features.grad.any()
    heads = linear_heads(2)
    nn.init.constant_(heads[0].weight, float("nan"))  # type: ignore[arg-type]
    assert torch.isfinite(peer_classifier_loss(FEATURES[:1], LABELS[:1], heads, 0))


def test_fusion_is_the_sum_of_raw_logits() -> None:
    fused = fuse_predictions(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, -4.0]]))
    assert fused.tolist() == [[1.5, -2.0]]
