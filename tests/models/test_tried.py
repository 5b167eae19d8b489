"""A network tried before anything is trained: what it returns, and what it cannot take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flray.data.federate import federate
from flray.data.tasks import task
from flray.errors import ConfigError
from flray.federation.world import load_dataset
from flray.models.tried import tried


class Counting(nn.Module):
    """Runs on real values alone, since it looks at them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(row) for row in x if float(row.sum()) == 0.0])


def test_on_shapes_or_really_and_unchanged() -> None:
    for model in (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), Counting()):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        assert list(tried("mine", model, (3,)).shape) == [2, 4]
        assert model.training
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_other_samples_than_it_takes() -> None:
    with pytest.raises(ConfigError, match=r"experiment\.model: found mine; .*samples \[5\] .*shapes cannot be mult"):
        tried("mine", nn.Linear(3, 4), (5,))


@pytest.mark.parametrize(("outputs", "found"), [((9,), r"\[2, 9\]"), ((10, 1), r"\[2, 10, 1\]")])
def test_a_logit_for_every_class(outputs: tuple[int, ...], found: str) -> None:
    data = federate(load_dataset("digits-sklearn", {"samples": 20}), "domains", {}, 0)
    size = int(torch.tensor(data.shape).prod())
    last = nn.Unflatten(1, outputs) if len(outputs) > 1 else nn.Identity()
    model = nn.Sequential(nn.Flatten(), nn.Linear(size, outputs[0]), last)
    with pytest.raises(ConfigError, match=rf"10 classes of digits-sklearn, \[2, 10\] .*it returns {found}"):
        task("classification", data.classes).check_network("mine", model, data)
    more = nn.Sequential(nn.Flatten(), nn.Linear(size, 12))
    task("classification", data.classes).check_network("mine", more, data)
