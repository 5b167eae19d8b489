"""Chosen means and deviations of 8-bit images: what reaches a network, and what is refused."""

from typing import Any

import pytest
import torch

from flray.federation.spec import FederationSpec
from flray.federation.worker.resources import WorkerResources
from tests.algorithms.helpers import spec_of
from tests.helpers import built, small
from tests.messages import refused

EXPERIMENT: dict[str, Any] = small(
    data={"name": "digits-sklearn", "samples": 8},
    public={"name": "photos", "samples": 6, "crops": 20},
    model="lenet",
)
COLOURED = {"data": {"name": "photos", "crops": 20}, "public": None}


def spec_with(**changes: Any) -> FederationSpec:
    return built(EXPERIMENT, **changes)


def first(spec: FederationSpec, public: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first sample as stored, scaled to [0, 1], and as a network sees it."""
    resources = WorkerResources(spec, torch.device("cpu"))
    rows = spec.data.clients[0].train[:1]
    samples = resources.public if public else resources.samples(rows)
    stored = spec.data.public[:1] if public else spec.data.x[rows]
    assert samples is not None
    x, _ = samples.take(torch.arange(1))
    return torch.from_numpy(stored).double() / 255, x.double()


@pytest.mark.parametrize(
    ("changes", "mean", "std"),
    [
        ({"normalisation": "none"}, (0.0,), (1.0,)),
        ({"normalisation": {"mean": [0.5], "std": [0.25]}}, (0.5,), (0.25,)),
        # the numbers that are printed everywhere, by channel
        ({**COLOURED, "normalisation": "imagenet"}, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ({}, None, None),  # by default the data set's own
    ],
)
def test_what_a_network_sees(changes: dict[str, Any], mean: Any, std: Any) -> None:
    spec = spec_with(**changes)
    m, s = (
        torch.tensor(given or own).double().view(-1, 1, 1)
        for given, own in ((mean, spec.data.mean), (std, spec.data.std))
    )
    for public in (False, True) if spec.data.public is not None else (False,):
        stored, seen = first(spec, public)
        torch.testing.assert_close(seen, (stored - m) / s, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        "imagnet",
        {"mean": [0.5, 0.5], "std": [0.5]},
        {"mean": [0.5], "std": [0.0]},
        {"mean": [0.5]},
        {"mean": [0.5] * 2, "std": [1.0] * 2},
    ],
)
def test_wrong_values_are_refused(how: Any) -> None:
    refused(spec_with, normalisation=how)


def test_what_does_not_fit_the_data_is_refused() -> None:
    refused(spec_of, "fedavg", normalisation="none")
    refused(spec_with, normalisation="none", algorithm={"name": "lgmix", "inputs": "unit"})
