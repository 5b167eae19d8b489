"""The Dice loss against its closed form and MONAI's."""

from __future__ import annotations

import warnings

import pytest
import torch

from flray.functional import dice_loss


def test_closed_form() -> None:
    logits = torch.tensor([[[[0.0, 0.0]]]], dtype=torch.float64)  # p = 1/2 twice
    masks = torch.tensor([[[[1, 0]]]], dtype=torch.uint8)
    assert float(dice_loss(logits, masks, smooth=0.0)) == pytest.approx(1 - 1 / 1.5, abs=1e-15)
    perfect = torch.tensor([[[[40.0, -40.0]]]], dtype=torch.float64)
    assert float(dice_loss(perfect, masks)) == pytest.approx(0, abs=1e-12)
    assert float(dice_loss(-40 * torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))) == pytest.approx(
        0, abs=1e-6
    )


def test_a_mean_over_samples_and_structures() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 5, 4, generator=generator, dtype=torch.float64)
    masks = torch.randint(2, (3, 2, 5, 4), generator=generator)
    single = torch.stack(
        [
            dice_loss(logits[i : i + 1, k : k + 1], masks[i : i + 1, k : k + 1])
            for i in range(3)
            for k in range(2)
        ]
    ).reshape(3, 2)
    torch.testing.assert_close(dice_loss(logits, masks), single.mean(), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        dice_loss(logits, masks, reduction="none"), single.mean(1), rtol=1e-12, atol=0
    )


def test_gradient() -> None:
    logits = torch.randn(2, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    masks = torch.randint(2, (2, 1, 3, 3))
    assert torch.autograd.gradcheck(lambda z: dice_loss(z, masks), logits)


def test_equals_monai() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from monai.losses import DiceLoss

        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(4, 2, 8, 8, generator=generator, dtype=torch.float64)
        masks = (torch.rand(4, 2, 8, 8, generator=generator) < 0.3).double()
        masks[0, 1] = 0
        expected = DiceLoss(sigmoid=True, squared_pred=True)(logits, masks)
    torch.testing.assert_close(dice_loss(logits, masks), expected, rtol=1e-9, atol=0)
