from __future__ import annotations

import math
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

from flray.config.loader import load
from flray.tuning.search import OptunaSearch, scheduler
from flray.tuning.space import TrialSpec, enumerate_settings, resolve_sweep, trial_specs


class _Trial:
    def __init__(self, number: str) -> None:
        self.number, self.trial_id = number, f"id-{number}"

    def __str__(self) -> str:
        return self.number


def _made(content: dict[str, Any], **sweep: Any) -> tuple[Any, dict[str, TrialSpec]]:
    content["sweep"] = sweep
    config = resolve_sweep(load(content))
    return config, {
        point.number: point for point in trial_specs(config, enumerate_settings(config))
    }


def _report(rule: Any, trial: _Trial, round_: int, score: float) -> str:
    return str(rule.on_trial_result(None, trial, {"training_iteration": round_, "score": score}))


def test_settings_compete_and_seeds_and_methods_do_not(content: dict[str, Any]) -> None:
    content["space"] = {
        "algorithm": {"grid": ["fedavg", "local"]},
        "local.lr": {"grid": [0.02, 0.1]},
    }
    config, known = _made(content, seeds=[0, 1], scheduler={"name": "asha", "reduction_factor": 2})
    rule = scheduler(config, known, {}, [])
    trials = {number: _Trial(number) for number in known}
    for trial in trials.values():
        rule.on_trial_add(None, trial)
    # 0001 to 0004 are fedavg at (0.02, seed 0), (0.02, 1), (0.1, 0), (0.1, 1); 0005 to 0008 local.
    assert _report(rule, trials["0001"], 1, 0.5) == TrialScheduler.CONTINUE
    assert _report(rule, trials["0002"], 1, 0.1) == TrialScheduler.CONTINUE
    assert _report(rule, trials["0005"], 1, 0.1) == TrialScheduler.CONTINUE
    assert _report(rule, trials["0003"], 1, 0.4) == TrialScheduler.STOP
    assert _report(rule, trials["0004"], 1, 0.2) == TrialScheduler.CONTINUE


def test_all_trials_compete_if_asked_to(content: dict[str, Any]) -> None:
    config, known = _made(
        content, seeds=[0, 1], scheduler={"name": "asha", "reduction_factor": 2, "compared": "all"}
    )
    rule = scheduler(config, known, {}, [])
    for number, score, decision in (("0001", 0.5, "CONTINUE"), ("0002", 0.4, "STOP")):
        trial = _Trial(number)
        rule.on_trial_add(None, trial)
        assert _report(rule, trial, 1, score) == getattr(TrialScheduler, decision)


def test_a_resumed_sweep_remembers_what_others_reached(content: dict[str, Any]) -> None:
    config, known = _made(content, seeds=[0], scheduler={"name": "asha", "reduction_factor": 2})
    for past, decision in (
        ({}, TrialScheduler.CONTINUE),
        ({"0001": [(1, 0.9), (2, 0.95)]}, TrialScheduler.STOP),
    ):
        rule = scheduler(config, known, past, list(past))
        trial = _Trial("0002")
        rule.on_trial_add(None, trial)
        assert _report(rule, trial, 1, 0.1) == decision


def test_a_resumed_trial_is_not_compared_with_itself(content: dict[str, Any]) -> None:
    config, known = _made(content, seeds=[0], scheduler={"name": "asha", "reduction_factor": 2})
    rule = scheduler(config, known, {"0001": [(1, 0.9)]}, [])
    trial = _Trial("0001")
    rule.on_trial_add(None, trial)
    assert _report(rule, trial, 1, 0.1) == TrialScheduler.CONTINUE


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


def _run(search: OptunaSearch, made: list[TrialSpec], trials: int) -> None:
    for i in range(trials):
        told = search.suggest(f"t{i}")
        assert isinstance(told, dict)
        point = next(p for p in made if p.number == told["number"])
        search.on_trial_complete(
            f"t{i}", {"score": -abs(math.log10(point.setting["local.lr"]) + 1)}
        )


def test_suggestions_are_repeated_with_every_seed_and_get_better(content: dict[str, Any]) -> None:
    search, made = _search(content, [])
    _run(search, made, 24)
    assert [p.number for p in made] == [f"{i:04d}" for i in range(1, 25)]
    assert [p.seed for p in made] == [0, 1] * 12
    assert search.suggest("one more") == "FINISHED"
    values = [t.value for t in search._study.trials]
    assert values == [-abs(math.log10(p.setting["local.lr"]) + 1) for p in made[::2]]


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
    assert [t.value for t in second._study.trials] == [0.6, None, None]
    assert second.suggest("a") == {"number": "0006"}
    second.on_trial_complete("a", {"score": 0.75})
    assert second._study.trials[2].value == 0.5
    assert second.suggest("b") == {"number": "0007"} and again[0].setting != made[4].setting
    second.on_trial_complete("b", error=True)
    assert second.suggest("c") == {"number": "0008"}
    second.on_trial_complete("c", error=True)
    assert second._study.trials[3].state.name == "FAIL"


@pytest.mark.parametrize("before", [1, 3, 11])
def test_a_resumed_search_suggests_what_an_unbroken_one_would(
    content: dict[str, Any], before: int
) -> None:
    whole, made = _search(content, [])
    _run(whole, made, 24)
    values = [t.value for t in whole._study.trials]
    known = [(made[2 * i].setting, [], [values[i]] * 2) for i in range(before)]
    resumed, again = _search(content, known)
    _run(resumed, again, 24 - 2 * before)
    assert [p.setting for p in again] == [p.setting for p in made[2 * before :]]
    assert len({str(p.setting) for p in made}) == 12  # and none comes twice
