from __future__ import annotations

import pytest
import torch
from torch import nn

from flray.errors import FlrayError
from flray.models import SplitModel, as_split, feature_dim, linear_classifier


class Users(nn.Module):
    """What a user may bring: split children and a forward of their own."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


def test_split_model_applies_the_classifier_to_the_features() -> None:
    model = SplitModel(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    model.eval()
    x = torch.rand(5, 3)
    assert torch.equal(model(x), model.classifier(model.features(x)))
    assert model.feature_dim == 4
    assert model.taps == ()


def test_a_users_module_is_returned_unchanged() -> None:
    model = Users(features=nn.Linear(3, 4), classifier=nn.Linear(4, 2))
    assert as_split(model) is model
    assert feature_dim(model) == 4


def test_a_missing_part_is_named() -> None:
    with pytest.raises(
        FlrayError,
        match=r"model Users: .*no child called classifier \(its children: features, head\)",
    ):
        as_split(Users(features=nn.Linear(3, 4), head=nn.Linear(4, 2)))
    with pytest.raises(
        FlrayError, match=r"no child called features or classifier \(its children: none\)"
    ):
        as_split(nn.Linear(2, 2))


def test_state_outside_the_two_parts_is_refused() -> None:
    with pytest.raises(
        FlrayError, match=r"'projector\.weight' lies outside features and classifier"
    ):
        as_split(
            Users(features=nn.Linear(3, 4), projector=nn.Linear(4, 4), classifier=nn.Linear(4, 2))
        )


def test_an_unknown_feature_size_is_an_error() -> None:
    with pytest.raises(FlrayError, match=r"its classifier has no nn\.Linear"):
        feature_dim(Users(features=nn.Linear(3, 4), classifier=nn.Identity()))


def test_a_single_linear_layer_as_classifier_is_returned_and_anything_else_refused() -> None:
    model = SplitModel(nn.Flatten(), nn.Linear(4, 3))
    assert linear_classifier(model) is model.classifier
    with pytest.raises(FlrayError, match="one linear layer as classifier, found Sequential"):
        linear_classifier(SplitModel(nn.Flatten(), nn.Sequential(nn.Linear(4, 3))))
