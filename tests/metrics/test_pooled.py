"""Accuracy of personal models pooled over all clients' samples, and where reports find it."""

from typing import Any

import pytest

from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.evaluation import available_metrics
from tests.algorithms.helpers import gaussian_clients, run
from tests.end_to_end.test_tasks import GLYPHS
from tests.messages import refused

CLIENTS = gaussian_clients((5, 9, 40))
SETTINGS: dict[str, Any] = {"local": {"epochs": 1, "lr": 0.02}}


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_each_client_counts_by_its_samples(others: bool, measure: str) -> None:
    federation = run("local", CLIENTS, **SETTINGS, evaluation={"pooled": True, "others": others})
    found = federation.evaluate()
    clients = federation.spec.data.clients
    single = [found[f"personal/local/{measure}/client/{c.name}"] for c in clients]
    sizes = [len(c.test) for c in clients]
    assert sizes == [5, 9, 40]
    by_hand = sum(n * one for n, one in zip(sizes, single, strict=True)) / sum(sizes)
    assert found[f"personal/pooled/{measure}"] == pytest.approx(by_hand, rel=1e-12)
    assert found[f"personal/pooled/{measure}"] != found[f"personal/local/{measure}"]
    assert f"personal/pooled/{measure}" in available_metrics(federation.spec)
    plain = run("local", CLIENTS, **SETTINGS).spec
    assert f"personal/pooled/{measure}" not in available_metrics(plain)


def test_one_model_for_all_has_it_on_the_common_test_set() -> None:
    """Whose models are all the same need no measure of their own: that is what global/common is."""
    federation = run("fedavg", CLIENTS, **SETTINGS, evaluation={"pooled": True})
    found = federation.evaluate()
    clients = federation.spec.data.clients
    by_hand = sum(
        len(c.test) * found[f"global/local/accuracy/client/{c.name}"] for c in clients
    ) / len(federation.spec.data.test)
    assert found["global/common/accuracy"] == pytest.approx(by_hand, rel=1e-12)
    assert not any("pooled" in name for name in found)


def test_episodes_are_refused() -> None:
    config = load({"experiment": {**GLYPHS, "algorithm": "local", "evaluation": {"pooled": True}}})
    refused(build_spec, config.experiment)
