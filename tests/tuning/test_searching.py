import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from flray.config.loader import load
from flray.records import directory
from flray.tuning.space import TrialSpec, resolve_sweep, trial_specs
from flray.tuning.trial_store import TrialFolder
from flray.tuning.tuner import Asha, OptunaSearch
from tests.tuning.helpers import begin, specs
from tests.tuning.test_phases import run

CONTINUE, STOP = TrialScheduler.CONTINUE, TrialScheduler.STOP


class _Trial:
    def __init__(self, number: str) -> None:
        self.number, self.trial_id = number, f"id-{number}"

    def __str__(self) -> str:
        return self.number


def _rule(content: dict[str, Any], past: dict[str, Any], **asha: Any) -> Asha:
    content["sweep"] |= {"scheduler": {"name": "asha", "reduction_factor": 2, **asha}}
    config, made = specs(content)
    return Asha(config, {point.number: point for point in made}, past)


def _decisions(rule: Asha, *reported: tuple[str, float]) -> list[str]:
    """Return the decision on each trial, given its number and its score at round 1."""
    return [
        rule.on_trial_result(None, _Trial(number), {"training_iteration": 1, "score": score})
        for number, score in reported
    ]


def test_settings_compete_and_seeds_and_methods_do_not(content: dict[str, Any]) -> None:
    content["space"]["algorithm"] = {"grid": ["fedavg", "local"]}
    # 0001, 0002 are fedavg at (0.02, seed 0), (0.02, 1); 0003, 0004 are local; then the rate is 0.1.
    scores = [("0001", 0.5), ("0002", 0.1), ("0003", 0.1), ("0005", 0.4), ("0006", 0.2)]
    decisions = [CONTINUE, CONTINUE, CONTINUE, STOP, CONTINUE]
    assert _decisions(_rule(content, {}), *scores) == decisions
    rule = _rule(content, {}, compared="all")
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
    assert _decisions(_rule(content, past), ("0002", 0.1)) == [decision]


@pytest.mark.parametrize("seed", range(6))
def test_it_decides_as_tune_s_own_rule(content: dict[str, Any], seed: int) -> None:
    chance = random.Random(seed)
    content["experiment"]["rounds"] = rounds = chance.choice([7, 9, 27])
    content["space"]["local.lr"] = {"grid": [0.01 + k / 100 for k in range(12)]}
    mode, factor, grace = chance.choice(["max", "min"]), chance.choice([2, 3, 1.5]), seed % 3 + 1
    content["sweep"] |= {"seeds": [0], "mode": mode}
    mine = _rule(content, {}, reduction_factor=factor, grace_period=grace)
    tune = ASHAScheduler("training_iteration", "score", mode, rounds, grace, factor)
    trials = {_Trial(f"{k + 1:04d}"): 0 for k in range(12)}
    for trial in trials:
        tune.on_trial_add(None, trial)
    decided = []
    while trials:
        trial = chance.choice(list(trials))
        trials[trial] += 1
        score = math.nan if chance.random() < 0.1 else chance.random()
        result = {"training_iteration": trials[trial], "score": score}
        if trials[trial] == rounds:  # done
            tune.on_trial_complete(None, trial, result)
            del trials[trial]
            continue
        decided.append(mine.on_trial_result(None, trial, result))
        assert decided[-1] == tune.on_trial_result(None, trial, result)
        if decided[-1] == STOP:
            tune.on_trial_complete(None, trial, result)
            del trials[trial]
    assert {CONTINUE, STOP} == set(decided)


Values = dict[str, Any]


class _Sweep:
    """A sweep of a search, whose trials bring scores at once."""

    def __init__(self, content: dict[str, Any], folder: Path, known: list[Values]) -> None:
        self.config = resolve_sweep(load(content))
        self.folder = folder
        begin(self.config, folder)
        given = trial_specs(self.config, known)
        self.points = {point.number: point for point in given}
        self.create(given)

    def create(self, points: Any) -> None:
        for point in points:
            TrialFolder(self.folder, point.number).create(point, self.config)

    def search(self) -> OptunaSearch:
        def describe(point: TrialSpec) -> Values:
            return {"number": point.number}

        return OptunaSearch(self.config, self.folder, self.points, self.create, describe)

    def end(self, number: str, score: float | None = None) -> None:
        """End a trial; without a score as one that failed."""
        point, folder = self.points[number], TrialFolder(self.folder, number)
        value = _value(point) if score is None else score
        run(folder, point, self.config, point.experiment.rounds, lambda point, round_: value)
        if math.isnan(value):
            directory.update(folder.path, status="failed")

    def run(self, search: OptunaSearch, trials: int) -> None:
        for i in range(trials):
            told = search.suggest(f"t{i}")
            assert isinstance(told, dict)
            self.end(told["point"]["number"])


def _value(point: TrialSpec) -> float:
    return -abs(math.log10(point.setting["local.lr"]) + 1)


@pytest.fixture
def searched(content: dict[str, Any], tmp_path: Path) -> Callable[[str, list[Values]], _Sweep]:
    content["experiment"]["rounds"] = 1
    content["space"] = {
        "local.lr": {"loguniform": [0.001, 1.0]},
        "algorithm": {"choice": ["fedavg", "local"]},
    }
    content["sweep"] = {"search": "optuna", "samples": 12, "seeds": [0, 1]}
    return lambda name, known: _Sweep(content, tmp_path / name, known)


def test_suggestions_are_repeated_with_every_seed_and_once_resumed_go_on_alike(
    searched: Callable[[str, list[Values]], _Sweep],
) -> None:
    whole = searched("whole", [])
    search = whole.search()
    whole.run(search, 24)
    made = list(whole.points.values())
    assert [p.number for p in made] == [f"{i:04d}" for i in range(1, 25)]
    assert [p.seed for p in made] == [0, 1] * 12
    assert search.suggest("one more") == "FINISHED"
    assert search.past() == [(p.setting, _value(p)) for p in made[::2]]
    settings = [p.setting for p in made[::2]]
    assert len({str(setting) for setting in settings}) == 12  # none comes twice
    for before in (1, 3, 11):
        resumed = searched(str(before), settings[:before])
        for number in list(resumed.points):
            resumed.end(number)
        resumed.run(resumed.search(), 24 - 2 * before)
        assert [p.setting for p in list(resumed.points.values())[::2]] == settings


def test_a_resumed_search_reads_folders(searched: Callable[[str, list[Values]], _Sweep]) -> None:
    known = [{"local.lr": rate, "algorithm": "fedavg"} for rate in (0.01, 0.02, 0.03)]
    sweep = searched("resumed", known)
    for number, score in (("0001", 0.5), ("0002", 0.7), ("0005", 0.25)):
        sweep.end(number, score)
    for number in ("0003", "0004"):
        sweep.end(number, math.nan)
    search = sweep.search()
    assert str([score for _, score in search.past()]) == "[0.6, nan, None]"
    assert search.suggest("a") == {"point": {"number": "0006"}}
    sweep.end("0006", 0.75)
    assert search.past()[2] == (known[2], 0.5)
    assert search.suggest("b") == {"point": {"number": "0007"}}
    assert sweep.points["0007"].setting not in known
    sweep.end("0007", math.nan)
    assert search.suggest("c") == {"point": {"number": "0008"}}
    assert search.past()[3][1] is None  # one of its seeds still runs
    sweep.end("0008", math.nan)
    assert str(search.past()[3][1]) == "nan"
