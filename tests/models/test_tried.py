"""A network tried before anything is trained: what it returns, and what it cannot take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flray.data.federated import federate
from flray.data.loading import load_dataset
from flray.errors import ConfigError
from flray.models.dry_run import dry_run
from flray.tasks import make_task


def test_it_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    assert list(dry_run("mine", model, (3,)).shape) == [1, 4]
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_other_samples_than_it_takes() -> None:
    with pytest.raises(
        ConfigError, match=r"experiment\.model: found mine; .*samples \[5\] .*shapes cannot be mult"
    ):
        dry_run("mine", nn.Linear(3, 4), (5,))


@pytest.mark.parametrize(("outputs", "found"), [((9,), r"\[1, 9\]"), ((10, 1), r"\[1, 10, 1\]")])
def test_a_logit_for_every_class(outputs: tuple[int, ...], found: str) -> None:
    data = federate(load_dataset("digits-sklearn", {"samples": 20}), "domains", {}, 0)
    size = int(torch.tensor(data.shape).prod())
    last = nn.Unflatten(1, outputs) if len(outputs) > 1 else nn.Identity()
    model = nn.Sequential(nn.Flatten(), nn.Linear(size, outputs[0]), last)
    with pytest.raises(
        ConfigError, match=rf"10 classes of digits-sklearn, \[1, 10\] for .*it returns {found}"
    ):
        make_task("classification", data.classes).check_network("mine", model, data)
    more = nn.Sequential(nn.Flatten(), nn.Linear(size, 12))
    make_task("classification", data.classes).check_network("mine", more, data)
