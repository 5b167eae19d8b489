"""Metrics besides the task's: the same samples, views and names, and other libraries' values."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score

from flray import register_metric, registry
from flray.metrics.names import lower_is_better
from tests.algorithms import helpers as tiny
from tests.helpers import printed
from tests.messages import refused


@register_metric("hits")
def hits(targets: Any, outputs: Any, *, times: float = 1.0) -> float:
    return times * float((outputs.argmax(1) == targets).mean())


@register_metric("wrong-result")
def wrong_result(targets: Any, outputs: Any) -> str:
    return "much"


@register_metric("spoils")
def spoils(targets: Any, outputs: Any) -> float:
    outputs[:], targets[:] = 0, 0
    return 0.0


@register_metric("raises")
def raises(targets: Any, outputs: Any) -> float:
    raise ValueError("no such luck")


@register_metric("takes-nothing")
def takes_nothing() -> float:
    return 1.0


def test_builtin_metrics_are_those_of_other_libraries() -> None:
    generator = np.random.default_rng(0)
    targets, outputs = generator.integers(0, 4, 200), generator.normal(size=(200, 4))
    found = outputs.argmax(1)
    call = registry.metrics.call
    assert call("balanced-accuracy", targets, outputs) == balanced_accuracy_score(targets, found)
    assert call("macro-f1", targets, outputs) == f1_score(targets, found, average="macro")
    # By hand: confidences 0.9 (right), 0.9 (wrong) and 0.6 (right) in bins (0.8, 1] and (0.5, 0.6].
    shares = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    gap = (2 * abs(0.5 - 0.9) + 1 * abs(1.0 - 0.6)) / 3
    got = call("calibration-error", np.array([0, 1, 0]), np.log(shares), bins=10)
    assert got == pytest.approx(gap, abs=1e-12)
    assert lower_is_better("personal/local/calibration-error/worst")
    assert not lower_is_better("global/common/macro-f1")


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedco2"])
def test_a_metric_has_every_view_that_accuracy_has_and_the_bits_stay(method: str) -> None:
    views = {"others": True, "validation": 0.25}
    measured = {**views, "pooled": True, "metrics": [{"name": "hits", "times": 2}], "top_k": 2}
    clients = tiny.gaussian_clients(classes=4)
    plain, federation = (
        tiny.fresh(method, clients, classes=4, evaluation=one) for one in (views, measured)
    )
    plain.step()
    federation.step()
    before, metrics = plain.evaluate(), federation.evaluate()
    assert {name: metrics[name] for name in before} == before
    twice = {name: 2 * value for name, value in metrics.items() if "/accuracy" in name}
    assert len(twice) > 12
    found = {name: metrics[name.replace("accuracy", "hits")] for name in twice}
    assert found == pytest.approx(twice, rel=1e-12)
    top = {name: metrics[name.replace("accuracy", "top2")] for name in twice if "/std" not in name}
    assert all(twice[name] / 2 <= value <= 1 for name, value in top.items())
    assert any(twice[name] / 2 < value for name, value in top.items())
    added = {name for name in metrics if "/pooled/" in name}
    added |= {name.replace("accuracy", other) for name in twice for other in ("hits", "top2")}
    assert metrics.keys() - before.keys() == added
    assert bool({name for name in added if "/pooled/" in name}) == (method != "fedavg")
    assert plain.sha256() == federation.sha256()


def test_a_metric_that_writes_into_its_arrays_changes_no_other() -> None:
    plain, spoilt = (
        tiny.fresh("fedavg", evaluation={"metrics": [*first, "calibration-error"]})
        for first in ([], ["spoils"])
    )
    plain.step()
    spoilt.step()
    before, metrics = plain.evaluate(), spoilt.evaluate()
    assert {name: metrics[name] for name in before} == before


@pytest.mark.parametrize(
    "names", [["accuracy"], ["hits", "hits"], ["takes-nothing"], [{"name": "hits", "time": 2}]]
)
def test_what_cannot_be_measured_is_refused(names: list[Any]) -> None:
    refused(tiny.spec_of, "fedavg", evaluation={"metrics": names})


@pytest.mark.parametrize("name", ["wrong-result", "raises"])
def test_a_metric_that_fails_is_named(name: str) -> None:
    federation = tiny.fresh("fedavg", evaluation={"metrics": [name]})
    refused(federation.step)


def test_metrics_are_listed() -> None:
    shown = printed("list", "metrics")
    assert "balanced-accuracy" in shown and "calibration-error" in shown and "hits" in shown
