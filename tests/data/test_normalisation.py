"""Chosen means and deviations of 8-bit images: what reaches a network, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flray.config.loader import load
from flray.errors import ConfigError, FlrayError
from flray.federation.building import build_spec
from flray.federation.executor import InlineExecutor
from flray.federation.federation import Federation
from flray.federation.spec import FederationSpec
from flray.federation.worker.resources import WorkerResources
from tests.algorithms.helpers import spec_of

EXPERIMENT: dict[str, Any] = {
    "data": {"name": "digits-sklearn", "samples": 8},
    "public": {"name": "photos", "samples": 6},
    "model": "lenet",
    "rounds": 1,
    "tracking": {"uri": None},
    "algorithm": "fedavg",
}
COLOURED = {"data": {"name": "photos", "crops": 40}, "public": None}


def spec_with(**changes: Any) -> FederationSpec:
    return build_spec(load({"experiment": {**EXPERIMENT, **changes}}).experiment)


def first(spec: FederationSpec, public: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first sample as stored, scaled to [0, 1], and as a network sees it."""
    resources = WorkerResources(spec, torch.device("cpu"))
    rows = spec.data.clients[0].train[:1]
    samples = resources.public if public else resources.samples(rows)
    stored = spec.data.public[:1] if public else spec.data.x[rows]
    assert samples is not None
    x, _ = samples.take(torch.arange(1))
    return torch.from_numpy(stored).double() / 255, x.double()


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize(
    ("changes", "mean", "std"),
    [
        ({"normalisation": "none"}, (0.0,), (1.0,)),
        ({"normalisation": {"mean": [0.5], "std": [0.25]}}, (0.5,), (0.25,)),
    ],
)
def test_what_a_network_sees(
    public: bool, changes: dict[str, Any], mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    stored, seen = first(spec_with(**changes), public)
    wanted = (stored - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    torch.testing.assert_close(seen, wanted, rtol=1e-5, atol=1e-6)


def test_imagenet() -> None:
    """The numbers that are printed everywhere, by channel."""
    stored, seen = first(spec_with(**COLOURED, normalisation="imagenet"))
    mean = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64).view(-1, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64).view(-1, 1, 1)
    torch.testing.assert_close(seen, (stored - mean) / std, rtol=1e-5, atol=1e-5)


def test_by_default_it_is_the_data_sets_own() -> None:
    spec = spec_with()
    stored, seen = first(spec)
    mean, std = (
        torch.tensor(part).double().view(-1, 1, 1) for part in (spec.data.mean, spec.data.std)
    )
    torch.testing.assert_close(seen, (stored - mean) / std, rtol=1e-5, atol=1e-5)
    assert spec.data.mean == spec_with(normalisation="data").data.mean


def test_it_changes_what_is_learnt_and_no_sample() -> None:
    specs = [spec_with(normalisation=how) for how in ("data", "none")]
    federations = [Federation(spec, InlineExecutor(spec)) for spec in specs]
    for federation in federations:
        federation.step()
    assert federations[0].sha256() != federations[1].sha256()
    assert specs[0].data.fingerprint == specs[1].data.fingerprint
    assert specs[0].data.partition_fingerprint == specs[1].data.partition_fingerprint


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("imagnet", r"normalisation.*imagenet"),
        ({"mean": [0.5, 0.5], "std": [0.5]}, r"normalisation.*mean has 2 values and std 1"),
        ({"mean": [0.5], "std": [0.0]}, r"normalisation.*std"),
        ({"mean": [0.5]}, r"normalisation.*give mean and std"),
    ],
)
def test_wrong_values_are_refused(how: Any, said: str) -> None:
    with pytest.raises(FlrayError, match=said):
        spec_with(normalisation=how)


def test_what_does_not_fit_the_data_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"normalisation: found mean of 2.* 3 channels; .* 1 or 3"
    ):
        spec_with(normalisation={"mean": [0.5, 0.5], "std": [1.0, 1.0]})
    with pytest.raises(ConfigError, match=r"normalisation: found none.*no 8-bit images"):
        spec_of("fedavg", normalisation="none")
    with pytest.raises(ConfigError, match=r"normalisation: found none.*algorithm\.inputs"):
        spec_with(normalisation="none", algorithm={"name": "lgmix", "inputs": "unit"})
