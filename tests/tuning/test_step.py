"""What one step of a trial plays and reports."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from flray import registry
from flray.algorithms.base import Algorithm
from flray.loading import load
from flray.tuning import trainable
from flray.tuning.trainable import FederationTrial, Shared


def trial_of(content: dict[str, Any], folder: str) -> FederationTrial:
    class Trial(FederationTrial):
        def setup(self, config: dict[str, Any], shared: Shared | None = None) -> None:
            super().setup(config, Shared(load(content), {}, {}, folder))

    return Trial(config={"point": {"number": "0001", "values": {"seed": 0}, "bundles": [{"CPU": 1.0}]}})


@pytest.fixture(autouse=True)
def long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # a trial puts its own in its place
    monkeypatch.setattr(trainable, "STEP_SECONDS", 600.0)


def test_short_rounds_share_a_step(content: dict[str, Any], here: Any) -> None:
    result = trial_of(content, str(here)).step()
    report = json.loads(result["report"])
    assert [sorted(metrics)[0] for metrics in report["rounds"]] == ["bytes/down"] * 3
    assert (result["training_iteration"], result["done"]) == (3, True)
    assert result["score"] == report["rounds"][-1]["score"] != report["rounds"][0]["score"]
    assert len(report["sha256"]) == 64


@pytest.mark.parametrize("changes", [
    {"sweep": {"scheduler": "asha"}},  # which compares rounds
    {"experiment": {"checkpoint": {"min_seconds": 0}}},  # which Tune writes between steps
])
def test_a_round_that_others_wait_for_ends_the_step(content: dict[str, Any], here: Any,
                                                    changes: dict[str, Any]) -> None:
    for part, settings in changes.items():
        content[part] |= settings
    trial = trial_of(content, str(here))
    results = [trial.step() for _ in range(3)]
    assert [len(json.loads(result["report"])["rounds"]) for result in results] == [1, 1, 1]
    assert [result["done"] for result in results] == [False, False, True]


def test_rounds_before_a_failure_are_kept(content: dict[str, Any], here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(Algorithm):
        """Raises in round 3."""

        def loss(self, client: Any, batch: Any) -> Any:
            if client.round == 2:
                raise ValueError("no such luck")
            return super().loss(client, batch)

    registry.algorithms.names()
    monkeypatch.setitem(registry.algorithms._entries, "fails", Fails)
    content["experiment"]["algorithm"] = "fails"
    result = trial_of(content, str(here)).step()
    report = json.loads(result["report"])
    assert len(report["rounds"]) == 2 and result["training_iteration"] == 2 and result["done"]
    assert "no such luck" in report["failure"] and "sha256" not in report


class Goodbye:
    """An object that raises when it is let go of."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def test_the_end_of_the_process_is_not_printed(content: dict[str, Any], here: Any,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: seen.append(str(found.exc_value)))
    trial_of(content, str(here))
    for error in (SystemExit(1), ValueError("to be seen")):
        thing = Goodbye(error)
        del thing
    assert seen == ["to be seen"]
