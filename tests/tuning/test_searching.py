from __future__ import annotations

import math
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

from flray.config.loader import load
from flray.tuning.search import OptunaSearch, scheduler
from flray.tuning.space import TrialSpec, resolve_sweep, trial_specs
from tests.tuning.helpers import specs

CONTINUE, STOP = TrialScheduler.CONTINUE, TrialScheduler.STOP


class _Trial:
    def __init__(self, number: str) -> None:
        self.number, self.trial_id = number, f"id-{number}"

    def __str__(self) -> str:
        return self.number


def _rule(content: dict[str, Any], past: dict[str, Any], ended: list[str], **asha: Any) -> Any:
    content["sweep"] |= {"scheduler": {"name": "asha", "reduction_factor": 2, **asha}}
    config, made = specs(content)
    return scheduler(config, {point.number: point for point in made}, past, ended)


def _decisions(rule: Any, *reported: tuple[str, float]) -> list[str]:
    """Return the decision on each trial, given its number and its score at round 1."""
    trials = [_Trial(number) for number, _ in reported]
    for trial in trials:
        rule.on_trial_add(None, trial)
    return [
        rule.on_trial_result(None, trial, {"training_iteration": 1, "score": score})
        for trial, (_, score) in zip(trials, reported, strict=True)
    ]


def test_settings_compete_and_seeds_and_methods_do_not(content: dict[str, Any]) -> None:
    content["space"]["algorithm"] = {"grid": ["fedavg", "local"]}
    # 0001, 0002 are fedavg at (0.02, seed 0), (0.02, 1); 0003, 0004 are local; then the rate is 0.1.
    scores = [("0001", 0.5), ("0002", 0.1), ("0003", 0.1), ("0005", 0.4), ("0006", 0.2)]
    decisions = [CONTINUE, CONTINUE, CONTINUE, STOP, CONTINUE]
    assert _decisions(_rule(content, {}, []), *scores) == decisions
    rule = _rule(content, {}, [], compared="all")
    assert _decisions(rule, ("0001", 0.5), ("0002", 0.4)) == [CONTINUE, STOP]


@pytest.mark.parametrize(
    ("past", "decision"),
    [
        ({}, CONTINUE),
        ({"0001": [(1, 0.9), (2, 0.95)]}, STOP),  # what others reached before is remembered
        ({"0002": [(1, 0.9)]}, CONTINUE),  # nothing is compared with itself
    ],
)
def test_a_resumed_sweep_remembers_what_others_reached(
    content: dict[str, Any], past: dict[str, Any], decision: str
) -> None:
    content["sweep"]["seeds"] = [0]
    rule = _rule(content, past, [number for number in past if number != "0002"])
    assert _decisions(rule, ("0002", 0.1)) == [decision]


def _search(content: dict[str, Any], known: list[Any]) -> tuple[OptunaSearch, list[TrialSpec]]:
    content["space"] = {
        "local.lr": {"loguniform": [0.001, 1.0]},
        "algorithm": {"choice": ["fedavg", "local"]},
    }
    content["sweep"] = {"search": "optuna", "samples": 12, "seeds": [0, 1]}
    config = resolve_sweep(load(content))
    made: list[TrialSpec] = []

    def make(setting: dict[str, Any], position: int) -> tuple[list[TrialSpec], list[float]]:
        new = trial_specs(config, [setting], first=position)
        made.extend(new)
        return new, []

    return OptunaSearch(config, known, make, lambda point: {"number": point.number}), made


def _value(point: TrialSpec) -> float:
    return -abs(math.log10(point.setting["local.lr"]) + 1)


def _run(search: OptunaSearch, made: list[TrialSpec], trials: int) -> None:
    for i in range(trials):
        told = search.suggest(f"t{i}")
        assert isinstance(told, dict)
        point = next(p for p in made if p.number == told["number"])
        search.on_trial_complete(f"t{i}", {"score": _value(point)})


def test_suggestions_are_repeated_with_every_seed_and_once_resumed_go_on_alike(
    content: dict[str, Any],
) -> None:
    search, made = _search(content, [])
    _run(search, made, 24)
    assert [p.number for p in made] == [f"{i:04d}" for i in range(1, 25)]
    assert [p.seed for p in made] == [0, 1] * 12
    assert search.suggest("one more") == "FINISHED"
    assert search.past() == [(p.setting, _value(p)) for p in made[::2]]
    assert len({str(p.setting) for p in made}) == 12  # none comes twice
    for before in (1, 3, 11):
        known = [(p.setting, [], [_value(p)] * 2) for p in made[: 2 * before : 2]]
        resumed, again = _search(content, known)
        _run(resumed, again, 24 - 2 * before)
        assert [p.setting for p in again] == [p.setting for p in made[2 * before :]]


def test_a_resumed_search_goes_on_from_the_folders(content: dict[str, Any]) -> None:
    first, made = _search(content, [])
    _run(first, made, 6)
    left = trial_specs(resolve_sweep(load(content)), [made[4].setting], first=2)[1:]
    known = [
        (made[0].setting, [], [0.5, 0.7]),
        (made[2].setting, [], []),
        (made[4].setting, left, [0.25]),
    ]
    second, again = _search(content, known)
    assert str([score for _, score in second.past()]) == "[0.6, nan, None]"
    assert second.suggest("a") == {"number": "0006"}
    second.on_trial_complete("a", {"score": 0.75})
    assert second.past()[2] == (made[4].setting, 0.5)
    assert second.suggest("b") == {"number": "0007"} and again[0].setting != made[4].setting
    second.on_trial_complete("b", error=True)
    assert second.suggest("c") == {"number": "0008"}
    assert second.past()[3][1] is None  # one of its seeds still runs
    second.on_trial_complete("c", error=True)
    assert math.isnan(second.past()[3][1])
