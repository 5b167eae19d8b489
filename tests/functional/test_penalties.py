import numpy as np
import pytest
import torch

from flray.functional import ewc_penalty, proximal_penalty


def tree(seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return {
        "w": torch.from_numpy(rng.normal(size=(2, 3))),
        "b": torch.from_numpy(rng.normal(size=2)),
    }


def test_proximal_value_and_gradient() -> None:
    parameters, reference = {k: v.requires_grad_() for k, v in tree(0).items()}, tree(1)
    loss = proximal_penalty(parameters, reference, 0.3)
    squares = sum(((parameters[k] - reference[k]) ** 2).sum().item() for k in parameters)
    assert loss.item() == pytest.approx(0.15 * squares, rel=1e-13)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    for name, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(
            gradient, 0.3 * (parameters[name] - reference[name]).detach(), rtol=1e-13, atol=0
        )


def test_no_gradient_at_the_reference_and_none_into_it() -> None:
    parameters = {k: v.requires_grad_() for k, v in tree(0).items()}
    for loss in (
        proximal_penalty(parameters, parameters, 5.0),
        ewc_penalty(parameters, parameters, tree(1), 5.0),
    ):
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        assert loss.item() == 0.0 and not any(gradient.any() for gradient in gradients)


def test_ewc_value_gradient_and_reduction_to_proximal() -> None:
    parameters, anchor = {k: v.requires_grad_() for k, v in tree(0).items()}, tree(1)
    fisher = {k: v.square() for k, v in tree(2).items()}
    loss = ewc_penalty(parameters, anchor, fisher, 0.7)
    expected = sum((fisher[k] * (parameters[k] - anchor[k]) ** 2).sum().item() for k in parameters)
    assert loss.item() == pytest.approx(0.35 * expected, rel=1e-13)
    (gradient,) = torch.autograd.grad(loss, parameters["w"])
    torch.testing.assert_close(
        gradient, (0.7 * fisher["w"] * (parameters["w"] - anchor["w"])).detach()
    )
    ones = {k: torch.ones_like(v) for k, v in anchor.items()}
    assert torch.equal(
        ewc_penalty(parameters, anchor, ones, 0.7), proximal_penalty(parameters, anchor, 0.7)
    )
