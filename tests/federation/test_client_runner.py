"""What a client runner makes of raw samples."""

from typing import Any

import pytest
import torch

from flray.federation.worker import resources
from flray.federation.worker.client_runner import ClientRunner
from tests.helpers import built


@pytest.mark.parametrize("layout", ["channels_last", "contiguous"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_images_are_normalised_per_channel(
    digits: dict[str, Any], layout: str, precision: str
) -> None:
    digits["local"] |= {"memory_format": layout, "precision": precision}
    runner = ClientRunner(built(digits), torch.device("cpu"), 1)
    data, dtype = runner.spec.data, getattr(torch, precision)
    rows = data.clients[1].train[:7]
    x, y = runner._resources.samples(rows).take(torch.arange(7))
    raw = torch.from_numpy(data.x[rows]).to(torch.float64)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (data.mean, data.std))
    torch.testing.assert_close(x, ((raw / 255 - mean) / std).to(dtype))
    assert x.is_contiguous(
        memory_format=getattr(torch, f"{layout}_format" if layout == "contiguous" else layout)
    )
    assert y.tolist() == data.y[rows].tolist()
    # Public samples may have another size than private ones.
    small = runner._resources._prepare(torch.from_numpy(data.x[rows][:, :, :5, :9]))
    assert torch.equal(small, x[:, :, :5, :9])


@pytest.mark.parametrize("layout", ["channels_last", "contiguous"])
@pytest.mark.parametrize("shape", [[3, 8, 8], [1, 8, 8], [3, 1, 8], [5]])
def test_few_samples_are_prepared_at_once_and_give_the_same_batches(
    digits: dict[str, Any], layout: str, shape: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    digits["local"] |= {"memory_format": layout}
    digits |= {"data": {"name": "random", "samples": 40, "shape": shape}, "model": "linear"}
    found = []
    for limit in (0, 2**20):
        monkeypatch.setattr(resources, "FEW_BYTES", limit)
        runner = ClientRunner(built(digits), torch.device("cpu"), 1)
        samples = runner._resources.samples(runner.spec.data.clients[0].train)
        assert (samples._ready is None) == (limit == 0)
        found.append([samples.take(torch.tensor(one)) for one in ([3, 1, 4], [5], [0, 0])])
    for (x, y), (a, b) in zip(*found, strict=True):
        assert torch.equal(x, a) and torch.equal(y, b) and x.stride() == a.stride()


@pytest.mark.parametrize("limit", [0, 2**24])
def test_samples_of_small_clients_stay_prepared_up_to_a_limit(
    digits: dict[str, Any], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "KEPT_BYTES", limit)
    monkeypatch.setattr(resources, "FEW_BYTES", 2**22)
    runner = ClientRunner(built(digits), torch.device("cpu"), 1)
    rows = runner.spec.data.clients
    for client in (0, 1, 0):
        (train, validation), again = (runner._resources.samples_of(client) for _ in range(2))
        assert (again[0] is train and again[1] is validation) == (limit > 0)
        assert train.rows.tolist() == rows[client].train.tolist()
        assert validation.rows.tolist() == rows[client].val.tolist()
    monkeypatch.setattr(resources, "FEW_BYTES", 0)  # large clients
    assert runner._resources.samples_of(2)[0] is not runner._resources.samples_of(2)[0]
