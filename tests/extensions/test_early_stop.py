"""Early stopping: the round at which a run ends, the same in a run, in a sweep, on actors and after a kill."""

from pathlib import Path
from typing import Any

import pytest

from flray.config.experiment import Stop
from flray.federation.state import EarlyStop
from flray.interrupts import InterruptedRunError
from flray.runs import runner
from tests.algorithms import helpers as tiny
from tests.helpers import StopAfter, inline
from tests.messages import refused

STOP = {"metric": "train/loss", "patience": 2, "min_delta": 0.5}


def decided(metric: str, values: list[float], **settings: Any) -> int:
    """Return after how many values it ends; 0: never."""
    stop = EarlyStop(Stop.model_validate({"metric": metric, **settings}), metric)
    for number, value in enumerate(values, start=1):
        stop.add({metric: value, "other": 1.0})
        stop.add({"other": 1.0})  # a round without an evaluation
        again = EarlyStop(Stop.model_validate({"metric": metric, **settings}), metric)
        again.restore(stop.state())
        stop = again
        if stop.reason:
            return number
    return 0


ACCURACY, LOSS = "global/common/accuracy", "train/loss"


@pytest.mark.parametrize(
    ("metric", "values", "settings", "ends"),
    [
        (ACCURACY, [0.1, 0.2, 0.2, 0.1, 0.3], {"patience": 2}, 4),
        (ACCURACY, [0.1, 0.2, 0.2, 0.3, 0.1], {"patience": 2}, 0),
        (ACCURACY, [0.1, 0.2, 0.24, 0.26, 0.3], {"patience": 2, "min_delta": 0.05}, 0),
        (ACCURACY, [0.1, 0.2, 0.24, 0.25, 0.3], {"patience": 2, "min_delta": 0.05}, 4),
        (ACCURACY, [0.1, 0.5, 0.9], {"target": 0.5}, 2),
        (LOSS, [3.0, 2.0, 1.0], {"target": 1.5}, 3),
        (LOSS, [3.0, 2.0, 2.5, 2.1], {"patience": 2}, 4),
    ],
)
def test_when_it_ends(metric: str, values: list[float], settings: Any, ends: int) -> None:
    assert decided(metric, values, **settings) == ends


def stopping(digits: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return inline(digits, **{"rounds": 12, "stop": STOP, **changes})


def test_a_run_that_is_interrupted_and_resumed_ends_at_the_same_round(
    tmp_cwd: Path, digits: dict[str, Any]
) -> None:
    whole = runner.run(stopping(digits))
    ended = len(whole.history)
    assert 3 <= ended < 12
    loss = whole.history["train/loss"].tolist()
    assert min(loss[:-2]) - min(loss[-2:]) <= 0.5
    short = runner.run(stopping(digits, stop=None, rounds=ended))
    assert short.sha256 == whole.sha256

    for at in (2, ended):
        with pytest.raises(InterruptedRunError):
            runner.run(stopping(digits), progress=StopAfter(at))
        folder = sorted((tmp_cwd / "runs" / "digits").iterdir())[-1]
        resumed = runner.resume(folder)
        assert resumed.sha256 == whole.sha256 and len(resumed.history) == ended


@pytest.mark.slow
def test_a_run_on_actors_ends_at_the_same_round(
    tmp_cwd: Path, digits: dict[str, Any], ray_here: dict[str, float]
) -> None:
    """Of trials: test_together.py."""
    whole = runner.run(stopping(digits))
    on_ray = runner.run(stopping(digits, resources={"executor": "ray", "actors": 1}))
    assert on_ray.sha256 == whole.sha256 and len(on_ray.history) == len(whole.history)


def test_what_cannot_be_decided_by_is_refused() -> None:
    refused(tiny.spec_of, "fedavg", stop={"metric": "acuracy", "patience": 2})
    refused(tiny.spec_of, "fedavg", stop={})
