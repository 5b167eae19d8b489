"""What a sweep runs next, on folders that trials left: the numbers are given, so that everything is known."""

import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray import api
from flray.cli.comparison import show_comparison
from flray.config.experiment import Config, idle_line
from flray.config.loader import load
from flray.records import directory
from flray.reporting.build import make
from flray.results.choices import tuning_lines
from flray.results.load import load_folder
from flray.results.sweep import build_table
from flray.tuning.phases import Batch, Phases, has_reached
from flray.tuning.space import TrialSpec, enumerate_settings, resolve_sweep
from flray.tuning.trial_store import TrialFolder, retry_failed, trial_folders
from flray.tuning.units import units
from tests.helpers import Settings, cases
from tests.messages import refused
from tests.tuning.helpers import begin, leave, left

Score = Callable[[TrialSpec, int], float]
METHODS = {
    "fedavg": {},
    "local": {"algorithm": "local", "space": {"local.lr": {"grid": [0.05, 0.1]}}},
    "fedprox": {"algorithm": "fedprox", "space": {"algorithm.mu": {"loguniform": [1e-3, 1]}}},
}
FEDAVG = {"arms.method": "fedavg"}
GAIN = {"fedavg": 0.0, "local": -0.2, "fedprox": 0.02}


@pytest.fixture
def tuned(content: Settings) -> Settings:
    content["experiment"]["rounds"] = 9
    tune = {"samples": 12, "seeds": [100, 101], "scheduler": "asha"}
    content |= {"arms": {"method": dict(METHODS)}, "sweep": {"seeds": [0, 1], "tune": tune}}
    return content | {"space": {"local.lr": {"loguniform": [0.01, 0.5]}}}


@pytest.fixture
def decided(tuned: Settings) -> Settings:
    """The same methods, untuned, with seeds until they are decided."""
    for arm in METHODS:
        tuned["arms"]["method"][arm] = {k: v for k, v in METHODS[arm].items() if k != "space"}
    tuned["sweep"] = {"until": {"margin": 0.5, "at_least": 3, "at_most": 8}, "seeds": [5]}
    return {**tuned, "space": {}}


def quality(point: TrialSpec, round_: int) -> float:
    """Rise to a peak at a learning rate of 0.1, with a little noise of the seed."""
    distance = abs(math.log(point.experiment.local.lr / 0.1))
    noise = np.random.default_rng([point.seed, len(point.setting["arms.method"])]).normal() / 500
    return float(0.6 + GAIN[point.setting["arms.method"]] - 0.05 * distance + noise + 0.01 * round_)


def run(folder: Path, point: TrialSpec, config: Config, rounds: int, score: Score) -> None:
    """Leave what a trial leaves that has run up to a round."""
    scope = "validation" if point.phase == "tuning" else "common"
    names = {"score", "global/common/accuracy", f"global/{scope}/accuracy"}
    values = [score(point, round_) for round_ in range(1, rounds + 1)]
    metrics = [{**dict.fromkeys(names, value), "time/round": 1.0} for value in values]
    ended: dict[str, Any] = {"metric": f"global/{scope}/accuracy"}
    if rounds == point.experiment.rounds:
        ended |= {"sha256": "ab", "rounds": rounds}
    status = "finished" if "rounds" in ended else "interrupted"
    leave(folder, point, config, metrics, status=status, **ended)


def work(config: Config, folder: Path, score: Score = quality, count: int | None = None) -> Batch:
    """Run the trials that come next, or so many of them."""
    settings = () if config.sweep.tune else enumerate_settings(config)
    batch: Any = Phases(config, settings).next(folder)
    for point in batch.points[:count]:
        run(folder, point, config, batch.until or point.experiment.rounds, score)
    return batch


def started(content: Settings, folder: Path) -> Config:
    config = resolve_sweep(load(content))
    begin(config, folder)
    return config


def sweep(
    content: Settings, folder: Path, score: Score = quality, killed: int | None = None
) -> list[str]:
    """Run a sweep to its end, and return what was run; `killed`: as one that is killed at random, by seed."""
    return go(started(content, folder), folder, score, killed)


def go(config: Config, folder: Path, score: Score, killed: int | None = None) -> list[str]:
    """Run what is left of a sweep; see `sweep`."""
    settings = [] if config.sweep.tune else enumerate_settings(config)
    chance, lines = random.Random(killed), []
    phases = Phases(config, settings)
    while (batch := phases.next(folder)) is not None:
        lines.append(batch.line)
        points = list(batch.points)
        # Killed: trials end in any order, some got no folder, some stopped on the way.
        if killed is not None:
            phases = Phases(config, settings)
            points = points[: chance.randint(1, len(points))]
            for point in points:
                TrialFolder(folder, point.number).create(point, config)
            chance.shuffle(points)
            points = points[: chance.randint(1, len(points))]
        for point in points:
            run(folder, point, config, batch.until or point.experiment.rounds, score)
            assert has_reached(folder, point, batch.until)
    assert len(lines) < 1000
    return lines


def test_arms_have_one_budget_and_the_best_goes_on(tuned: Settings, tmp_path: Path) -> None:
    lines = sweep(tuned, tmp_path)
    source = load_folder(tmp_path)
    fedavg, local, fedprox = tuning_lines(source)
    # 12 settings in generations of 10 and 2: of each the best third goes on at rounds 1 and 3.
    of_ten, of_two = 10 * 1 + 4 * 2 + 2 * 6, 2 * 1 + 1 * 2 + 1 * 6
    assert 2 * (of_ten + of_two) == 80
    assert all(
        " of 12 settings tried in 24 trials, 80 rounds, 80 s" in o for o in (fedavg, fedprox)
    )
    assert " of 2 settings tried in 4 trials" in local and "; how sure that is takes two" in local
    chosen = {one.setting["arms.method"]: one.tuned for one in source.trials}
    assert chosen["local"] == {"local.lr": 0.1}
    assert abs(math.log(chosen["fedavg"]["local.lr"] / 0.1)) < 0.7
    assert set(chosen["fedprox"]) == {"local.lr", "algorithm.mu"}
    assert sum(line.startswith("tuning") for line in lines) == 6
    compared = list(source.trials)
    found = [(t.seed, t.setting["arms.method"]) for t in compared]
    assert found == [*itertools.product((0, 1), METHODS)]
    assert all(trial.tuned == chosen[trial.setting["arms.method"]] for trial in compared)
    table = build_table(source)
    assert list(table.rows) == ["fedprox", "fedavg", "local"]
    assert [one for one in table.notes if one.startswith("tuning of fedprox: mu=")]
    assert {f.status for f in trial_folders(tmp_path)} == {"finished", "stopped"}


@pytest.mark.parametrize("killed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_it_decides_alike(tuned: Settings, tmp_path: Path, killed: int) -> None:
    tuned["sweep"]["until"] = {"margin": 1.0, "at_least": 3, "at_most": 6}
    folders = [tmp_path / "whole", tmp_path / "broken"]
    sweep(tuned, folders[0])
    sweep(tuned, folders[1], killed=killed)
    assert left(folders[0]) == left(folders[1])
    tables = [build_table(load_folder(folder)) for folder in folders]
    assert tables[0].conclusions == tables[1].conclusions
    assert {one.verdict for one in tables[0].studies.each[0].differences} & {"better", "worse"}


@cases(
    "compared, chosen_by, best",
    """[{metric: global/common/loss}, validation, 0.1], [{metric: auto}, global/validation/loss, 0.01],
    [{metric: global/common/loss}, global/validation/accuracy, 0.1],
    [{metric: global/common/gap, mode: min}, validation, 0.1],
    [{metric: global/common/gap, mode: min}, global/validation/gap, 0.01]""",
)
def test_a_setting_is_chosen_by_the_direction_of_its_own_metric(
    tuned: Settings, tmp_path: Path, compared: dict[str, str], chosen_by: str, best: float
) -> None:
    tuned["space"] = {"local.lr": {"grid": [0.01, 0.1, 0.05]}}
    tune = {"samples": 3, "seeds": [100], "metric": chosen_by}
    tuned["sweep"] = {"seeds": [0], "tune": tune, **compared}
    sweep(tuned, tmp_path)
    assert load_folder(tmp_path).trials[0].tuned == {"local.lr": best}


def test_a_failed_setting_takes_no_place_at_a_rung(tuned: Settings, tmp_path: Path) -> None:
    tuned["arms"]["method"] = {"fedavg": {}}
    tuned["space"] = {"local.lr": {"grid": [0.02, 0.1, 0.5]}}
    tuned["sweep"]["tune"] |= {"samples": 3, "seeds": [100]}
    config = started(tuned, tmp_path)
    assert work(config, tmp_path).until == 1
    failed = TrialFolder(tmp_path, "0002")  # the best so far
    directory.update(failed.path, status="failed", failure="ValueError: no")
    assert go(config, tmp_path, quality)[0].endswith("1 trials to round 3")
    source = load_folder(tmp_path)
    assert source.trials[0].tuned in ({"local.lr": 0.02}, {"local.lr": 0.5})
    assert ", 1 failed; " in tuning_lines(source)[0] and failed.status == "failed"


def test_a_decided_rung_stays_so_if_a_setting_fails(tuned: Settings, tmp_path: Path) -> None:
    tuned["arms"]["method"] = {"fedavg": {}}
    tuned["space"] = {"local.lr": {"grid": [0.1, 0.2, 0.3, 0.4]}}
    tuned["sweep"]["tune"] |= {"samples": 4, "seeds": [100]}
    config = started(tuned, tmp_path)

    def falling(point: TrialSpec, round_: int) -> float:
        return 0.9 - point.experiment.local.lr - round_ / 10

    for rung, count in ((1, 4), (3, 2)):
        batch: Any = Phases(config).next(tmp_path)
        assert (batch.until, len(batch.points)) == (rung, count)
        for point in batch.points:
            run(tmp_path, point, config, rung if point.number != "0001" else 1, falling)
    directory.update(tmp_path / "trials" / "0001", status="failed", failure="ValueError: no")
    go(config, tmp_path, falling)
    assert load_folder(tmp_path).trials[0].tuned == {"local.lr": 0.2}
    ends = {f.number: (f.status, f.rounds_recorded()) for f in trial_folders(tmp_path)}
    assert ends["0001"] == ("failed", 1) and ends["0002"] == ("finished", 9)
    assert ends["0003"] == ends["0004"] == ("stopped", 1)


def test_nothing_is_stopped_before_an_evaluation(tuned: Settings, tmp_path: Path) -> None:
    def late(point: TrialSpec, round_: int) -> float:
        return quality(point, round_) if round_ >= 3 else math.nan

    sweep(tuned, tmp_path, late)
    fedavg, local, _ = tuning_lines(load_folder(tmp_path))
    # All go on at round 1, the best third of 10 and of 2 at round 3.
    assert f" {2 * (12 * 3 + 4 * 6 + 1 * 6)} rounds" in fedavg and ": lr=0.1 chosen" in local


def test_seeds_are_added_where_a_pair_is_open(decided: Settings, tmp_path: Path) -> None:
    def score(point: TrialSpec, round_: int) -> float:
        method = point.setting["arms.method"]
        noise = np.random.default_rng([point.seed, len(method)]).normal() / 100
        return 0.2 + noise / 5 if method == "local" else 0.6 + noise

    sweep(decided, tmp_path, score)
    source = load_folder(tmp_path)
    seeds = {m: [t.seed for t in source.trials if t.setting["arms.method"] == m] for m in METHODS}
    # The seeds of the file, then the numbers from 0; local is decided soon, the others never.
    assert seeds["fedavg"] == seeds["fedprox"] == [5, 0, 1, 2, 3, 4, 6, 7]
    assert 3 <= len(seeds["local"]) < 8 and seeds["local"] == seeds["fedavg"][: len(seeds["local"])]
    differences = build_table(source).studies.each[0].differences
    verdicts = {(one.first, one.second): one.verdict for one in differences}
    assert verdicts["fedavg", "local"] == "better" and verdicts["local", "fedprox"] == "worse"
    assert verdicts["fedavg", "fedprox"] == ""


def test_the_first_look_is_when_the_rule_says(decided: Settings, tmp_path: Path) -> None:
    """Some of those that are listed may never run, which is said."""
    decided["sweep"]["seeds"] = [11, 12, 13, 14, 15]
    config = started(decided, tmp_path)
    first = work(config, tmp_path)
    assert {point.seed for point in first.points} == {11, 12, 13}
    assert first.line.startswith("comparison: 9 trials at 3 seeds (sweep.until.at_least), ")
    assert {point.seed for point in work(config, tmp_path).points} == {14}


def test_a_pair_left_open_by_a_failure_ends_early(decided: Settings, tmp_path: Path) -> None:
    decided["sweep"]["until"] = {"margin": 0.5, "at_least": 5, "at_most": 9}
    del decided["arms"]["method"]["fedprox"]
    config = started(decided, tmp_path)

    def score(point: TrialSpec, round_: int) -> float:
        method = point.setting["arms.method"]
        level = 0.6 if method == "fedavg" else 0.2
        return level + np.random.default_rng([point.seed, len(method)]).normal() / 500

    first = work(config, tmp_path, score)
    failed = next(p for p in first.points if p.setting["arms.method"] == "fedavg")
    folder = TrialFolder(tmp_path, failed.number).path
    directory.update(folder, status="failed", failure="ValueError: no")
    assert len(go(config, tmp_path, score)) == 1  # in place of the one that failed
    (pair,) = build_table(load_folder(tmp_path)).studies.each[0].differences
    assert (pair.verdict, pair.seeds) == ("withheld", 5)


def test_a_failed_trial_of_a_tuning_changes_no_arm(tuned: Settings, tmp_path: Path) -> None:
    tuned["space"] = {"local.lr": {"grid": [0.01, 0.1, 0.5]}}
    tuned["sweep"]["tune"] = {"samples": 3, "seeds": [100]}
    del tuned["arms"]["method"]["fedprox"]
    config = started(tuned, tmp_path)
    work(config, tmp_path, count=5)
    fedavg = [f for f in trial_folders(tmp_path) if f.identity["compared"] == FEDAVG]
    local = [f for f in trial_folders(tmp_path) if f.identity["compared"] != FEDAVG]
    for folder in (fedavg[1], *local):
        directory.update(folder.path, status="failed", failure="OSError: no")
    # Nothing of local ran to the end, so fedavg alone is compared, and the sweep is killed.
    work(config, tmp_path, count=1)
    assert retry_failed(tmp_path) == 1
    assert fedavg[1].status == "failed" and {one.status for one in local} == {"waiting"}
    go(config, tmp_path, quality)
    tuned_to = [(t.setting["arms.method"], t.tuned) for t in load_folder(tmp_path).trials]
    assert [one for name, one in tuned_to if name == "fedavg"] == [{"local.lr": 0.5}] * 2
    assert [one for name, one in tuned_to if name == "local"] == [{"local.lr": 0.1}] * 2


def test_with_a_reference_only_its_pairs_are_decided(tuned: Settings, tmp_path: Path) -> None:
    tuned["sweep"] |= {"until": {"margin": 0.5, "at_most": 6}, "reference": "local"}
    sweep(tuned, tmp_path)
    table = build_table(load_folder(tmp_path))
    differences = table.studies.each[0].differences
    assert {one.second for one in differences} == {"local"}
    assert all(one.decided for one in differences)
    assert all("fedavg and fedprox" not in line for line in table.conclusions)


def test_a_method_more_leaves_the_others_settings_as_they_were(tuned: Settings) -> None:
    def first(content: Settings) -> dict[str, list[Any]]:
        batch: Any = Phases(resolve_sweep(load(content))).next(Path("/dev/null"))
        found: dict[str, list[Any]] = {}
        for point in batch.points:
            found.setdefault(point.setting["arms.method"], []).append(point.values)
        return found

    before = first(tuned)
    tuned["arms"] = {"method": {"fedbn": {"algorithm": "fedbn"}, **METHODS}}
    after = first(tuned)
    assert {name: after[name] for name in before} == before and len(after["fedbn"]) == 20


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_arms_of_one_space_try_the_same_values(tuned: Settings, search: str) -> None:
    tuned["arms"]["method"] = {
        "fedavg": {},
        "fedbn": {"algorithm": "fedbn", "local.lr": 0.3},
        "fedprox": METHODS["fedprox"],
        "wide": {"space": {"local.lr": {"loguniform": [0.01, 5.0]}}},
        "whole": {"space": {"local.lr": None, "local.batch_size": {"randint": [1, 9]}}},
    }
    tuned["sweep"]["tune"] = {"samples": 10, "seeds": [100], "search": search}
    config = resolve_sweep(load(tuned))
    tried: dict[str, list[dict[str, Any]]] = {}
    for one in units(config):
        mine = tried.setdefault(one.name, [])
        tune: Any = config.sweep.tune
        for index in range(one.budget(tune)):
            mine.append(one.suggest(tune, config.sweep.seed, index, [], mine, "max"))
    whole = tried.pop("whole")
    rates = {name: [one["local.lr"] for one in found] for name, found in tried.items()}
    own = config.experiment.local.lr
    assert rates["fedavg"][0] == rates["fedprox"][0] == rates["wide"][0] == own
    assert rates["fedbn"][0] == 0.3
    assert set(rates["fedavg"]) == set(rates["fedbn"]) == set(rates["fedprox"])
    assert len(set(rates["fedavg"])) == 10 and {own, 0.3} < set(rates["fedavg"])
    assert tried["fedprox"][0]["algorithm.mu"] == 0.01  # its own default, with the other's rate too
    assert len({one["local.batch_size"] for one in whole}) == 8  # all that there are


def test_a_value_at_the_edge_of_those_tried_is_said(tuned: Settings, tmp_path: Path) -> None:
    tuned["sweep"]["tune"] = {"samples": 4, "seeds": [100], "search": "random"}
    edge, inside = tmp_path / "edge", tmp_path / "inside"
    sweep(tuned, edge, lambda point, round_: math.log(point.experiment.local.lr))
    source = load_folder(edge)
    fedavg, local, _ = tuning_lines(source)
    assert f"lr={source.trials[0].tuned['local.lr']:.4g} is the highest tried, so" in fedavg
    assert "; lr=0.1 is the highest tried, so" in local
    sweep(tuned, inside)
    assert "beyond" not in tuning_lines(load_folder(inside))[0]


def test_a_sweep_that_is_tuning_has_a_report(tuned: Settings, tmp_path: Path) -> None:
    tmp_path = tmp_path / "small" / "001"
    tmp_path.parent.mkdir()
    work(started(tuned, tmp_path), tmp_path)
    report = make(load_folder(tmp_path), tmp_path / "report")
    assert report.table.rows == {} and len(report.files) == 3
    assert sum(line.endswith("; nothing is chosen yet") for line in report.table.notes) == 3
    pilot = load({"experiment": {**tuned["experiment"], "output": str(tmp_path.parents[1])}})
    refused(api.detect, pilot, tmp_path / "x.yaml", 1.0)
    refused(show_comparison, tmp_path, tmp_path, as_json=True)


def test_lists_are_tuned_over(tuned: Settings, tmp_path: Path) -> None:
    tuned["experiment"]["model"] = "mlp"
    tuned["space"] = {"model.hidden": {"grid": [[64], [128, 64]]}}
    tuned["sweep"]["tune"] = {"seeds": [100], "search": "random"}
    sweep(tuned, tmp_path, lambda point, round_: -0.001 * len(point.setting["model.hidden"]))
    notes = build_table(load_folder(tmp_path)).notes
    assert any(line.startswith("tuning of fedavg: hidden=[64] chosen of 2") for line in notes)


def test_values_of_a_grid_over_methods_are_tuned_each(content: Settings) -> None:
    content["space"] = {"algorithm": {"grid": ["fedavg", "fedprox"]}}
    content["space"] |= {"local.lr": {"grid": [0.01, 0.1]}, "algorithm.mu": {"grid": [0.1, 1.0]}}
    content["sweep"] = {"seeds": [0], "tune": {"seeds": [9], "search": "random"}}
    found = [(one.name, *one.space, one.size) for one in units(resolve_sweep(load(content)))]
    assert found == [("fedavg", "local.lr", 2), ("fedprox", "local.lr", "algorithm.mu", 4)]


def test_what_does_not_go_together_is_refused(tuned: Settings) -> None:
    def refuse(**sweep: Any) -> None:
        tuned["sweep"] = {"seeds": [0], **sweep}
        refused(lambda: Phases(resolve_sweep(load(tuned))))

    refuse(tune={"seeds": [0]})
    refuse(tune={"seeds": [9, 9]})
    refuse(tune={"seeds": [9]}, samples=3)
    refuse(tune={"seeds": [9]}, search="optuna")
    refuse(tune={"seeds": [9], "search": "grid"})
    tuned["arms"]["method"] = {"fedavg": {}}  # a space of an arm's own is another mistake here
    refuse(until={"margin": 1}, scheduler="asha")
    refuse(until={"margin": 1, "at_least": 5, "at_most": 4})
    refuse(until={"at_least": 2, "at_most": 2}, seeds=[0, 1, 2])
    refuse(places=["data.seed"])


@cases(
    "sweep, space, line",
    """[{scheduler: {name: asha, grace_period: 3}}, {}, "sweep.scheduler.grace_period: 3 of 3"],
    [{tune: {scheduler: {name: asha, grace_period: 5}}}, {}, "sweep.tune.scheduler.grace_period: 5"],
    [{scheduler: {name: asha, grace_period: 2}}, {}, ""], [{tune: {}}, {}, ""],
    [{scheduler: {name: asha, grace_period: 3}}, {rounds: {grid: [2, 4]}}, ""]""",
)
def test_a_scheduler_that_ends_no_trial(
    content: Settings, sweep: Any, space: Any, line: str
) -> None:
    said = idle_line(load({**content, "sweep": sweep, "space": {**content["space"], **space}}))
    assert said.startswith(line) and bool(said) == bool(line)


def test_a_value_that_comes_twice_is_one(content: Settings) -> None:
    """A repetition would be compared as further seeds of its setting, and take a place of a tuning's budget."""
    content["space"] = {"algorithm": {"grid": ["fedavg", "local", {"name": "fedavg"}]}}
    assert len(enumerate_settings(resolve_sweep(load(content)))) == 2
    content["space"] |= {"local.lr": {"grid": [0.01, 0.1, 0.01]}}
    content["sweep"] = {"seeds": [0], "tune": {"seeds": [9], "samples": 4}}
    found = [(one.name, one.size) for one in units(resolve_sweep(load(content)))]
    assert found == [("fedavg", 2), ("local", 2)]


def test_every_value_of_an_arms_own_space_is_checked_at_once(tuned: Settings) -> None:
    spaces: list[Settings] = [{"local.momentum": {"uniform": [0, 1.5]}}]
    spaces += [{"local.lr": {"grid": [0.1, 0.2, -1]}}, {"local.momentun": {"uniform": [0, 0.9]}}]
    for space in (*spaces, {"algorithm.mu": {"grid": [1]}}):
        tuned["arms"] = {"method": {"local": {"algorithm": "local", "space": space}}}
        refused(Phases, resolve_sweep(load(tuned)))
    tuned["arms"]["method"]["local"] = {"algorithm": "local", "local.lr": -1}
    refused(Phases, resolve_sweep(load(tuned)))
    prox = {"algorithm": "fedprox", "space": {"algorithm.mu": {"grid": [1]}}}
    tuned["arms"]["method"] = {"local": {"algorithm": "local"}, "prox": prox}
    tuned["sweep"]["only"] = {"method": ["local"]}  # the other arm's space is of no matter
    assert [one.name for one in units(resolve_sweep(load(tuned)))] == ["local"]
