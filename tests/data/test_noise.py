import numpy as np
import pytest
import torch

from flray.config.experiment import Config
from flray.data.sample_noise import sample_noise
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation
from flray.federation.worker.resources import WorkerResources


def test_the_numbers_are_standard_normal_and_independent() -> None:
    z = sample_noise(torch.arange(1000), 1001, 7).double()
    n = z.numel()
    assert abs(float(z.mean())) < 4 / n**0.5
    assert float(z.var()) == pytest.approx(1, abs=4 * (2 / n) ** 0.5)
    assert float((z**4).mean()) == pytest.approx(3, abs=4 * (96 / n) ** 0.5)
    assert float((z.abs() > 1.959964).double().mean()) == pytest.approx(
        0.05, abs=4 * (0.05 * 0.95 / n) ** 0.5
    )
    for other in (z.roll(1, 0), z.roll(1, 1), z.roll(500, 1)):
        assert abs(float((z * other).mean())) < 4 / n**0.5
        assert float((z**2 * other**2).mean()) == pytest.approx(1, abs=4 * (8 / n) ** 0.5)


def test_a_row_has_its_noise_in_any_batch() -> None:
    whole = sample_noise(torch.arange(20), 12, 3)
    assert torch.equal(sample_noise(torch.tensor([7, 2, 7]), 12, 3), whole[[7, 2, 7]])
    assert not torch.equal(sample_noise(torch.arange(20), 12, 4), whole)


def settings(noise: float) -> dict[str, object]:
    return {
        "data": {"name": "digits-sklearn", "samples": 40},
        "model": "linear",
        "algorithm": "fedavg",
        "rounds": 1,
        "shift": {"noise": noise},
        "resources": {"executor": "inline"},
        "tracking": {"uri": None},
    }


def test_a_client_sees_its_samples_with_its_noise() -> None:
    specs = [
        build_spec(Config.model_validate({"experiment": settings(noise)}).experiment)
        for noise in (0.0, 0.6)
    ]
    clean, noisy = (WorkerResources(spec, torch.device("cpu")) for spec in specs)
    spreads = []
    for client in specs[0].data.clients:
        for rows in (client.train, client.test):
            positions = torch.arange(len(rows))
            (before, y), (after, labels) = (p.samples(rows).take(positions) for p in (clean, noisy))
            assert torch.equal(y, labels)
            assert after.stride() == before.stride()
            again, _ = noisy.samples(rows).take(positions.flip(0))
            assert torch.equal(again.flip(0), after)
            spreads.append(float((after - before).std()))
    assert spreads == pytest.approx([0, 0, 0.2, 0.2, 0.4, 0.4, 0.6, 0.6], abs=0.01)
    assert specs[0].data.noise is None
    assert specs[0].data.partition_fingerprint != specs[1].data.partition_fingerprint
    assert all(
        np.array_equal(a.train, b.train) and np.array_equal(a.test, b.test)
        for a, b in zip(specs[0].data.clients, specs[1].data.clients, strict=True)
    )


def test_noise_changes_what_is_learnt_at_noisy_clients() -> None:
    digests = []
    for noise in (0.0, 0.6, 0.6):
        federation = inline_federation(
            build_spec(Config.model_validate({"experiment": settings(noise)}).experiment),
            lambda line: None,
        )
        federation.step()
        digests.append(federation.sha256())
    assert digests[0] != digests[1] == digests[2]
