"""Tunings and draws of the data that are repeated: a choice is no lottery, and intervals hold for other ones."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flray
from flray.config.loader import load
from flray.records import directory
from flray.results.choices import tuning_lines
from flray.results.export import export_runs, kept_results, read_export
from flray.results.load import load_folder
from flray.results.paired import compare
from flray.results.study import TUNINGS
from flray.results.sweep import build_table
from flray.tuning.phases import Phases
from flray.tuning.space import TUNINGS as DEFAULT
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs
from flray.tuning.trial_store import trial_folders
from tests.helpers import Settings
from tests.messages import refused
from tests.tuning.helpers import left, specs
from tests.tuning.test_phases import sweep, tuned

__all__ = ["tuned"]


@pytest.fixture
def repeated(tuned: Settings) -> Settings:
    """Two methods, tuned twice on two draws of the data, compared at four seeds."""
    tuned["experiment"]["data"] = {"name": "random", "seed": 7}
    del tuned["arms"]["method"]["local"]
    tune = {"samples": 4, "seeds": [100, 101], "search": "random"}
    repeat = {"data": 2, "tuning": 2}
    tuned["sweep"] = {"seeds": [0, 1, 2, 102], "tune": tune, "repeat": repeat}
    return tuned


def test_each_tuning_draws_and_chooses_anew(repeated: Settings, tmp_path: Path) -> None:
    sweep(repeated, tmp_path)
    trials = list(trial_folders(tmp_path))
    tried: dict[int, list[Any]] = {}
    for one in trials[:32]:
        assert one.identity["phase"] == "tuning"
        number = one.identity.get("repetition", 0)
        assert one.identity["seed"] in ((100, 101), (103, 104))[number]
        assert directory.read_config(one.path)["experiment"]["data"]["seed"] == 7 + number
        tried.setdefault(number, []).append(one.identity["setting"]["local.lr"])
    default = repeated["experiment"]["local"]["lr"]
    assert len(tried[0]) == len(tried[1]) == 16 and set(tried[0]) & set(tried[1]) == {default}
    source = load_folder(tmp_path)
    compared = [(one.setting["arms.method"], one.seed, one.repetition) for one in source.trials]
    seeds = enumerate((0, 1, 2, 102))
    assert compared == [(m, seed, n % 2) for n, seed in seeds for m in ("fedavg", "fedprox")]
    of_fedavg = {one.repetition: one.tuned["local.lr"] for one in source.trials[::2]}
    assert len(set(of_fedavg.values())) == 2
    found = dict(line.removeprefix("tuning of ").split(": ", 1) for line in tuning_lines(source))
    assert set(found) == {f"{m}, tuning {n}" for m in ("fedavg", "fedprox") for n in (1, 2)}
    chosen = f"lr={of_fedavg[1]:.4g} chosen of 4 settings tried in 8 trials"
    assert found["fedavg, tuning 2"].startswith(chosen)


def test_its_report_and_kept_file_say_the_same(repeated: Settings, tmp_path: Path) -> None:
    sweep(repeated, tmp_path / "s")
    source = load_folder(tmp_path / "s")
    for trial in source.trials:
        trial.fingerprints["data"], trial.sha256 = str(trial.repetition), f"{trial.seed:064d}"
    table = build_table(source)
    assert "2 tunings, 4 runs" in table.conclusions[0] or "2 draws" in table.conclusions[0]
    assert not any("held fixed" in line for line in table.conclusions)
    export_runs(source, tmp_path / "kept.csv")
    kept = build_table(kept_results(read_export(tmp_path / "kept.csv")))
    (one,), (other,) = (found.studies.each[0].differences for found in (table, kept))
    assert one.repeated == other.repeated != ""
    assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=1e-3)
    assert list(read_export(tmp_path / "kept.csv")["tuning"]) == [*"00110011"]


@pytest.mark.parametrize("killed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_it_chooses_alike(repeated: Settings, tmp_path: Path, killed: int) -> None:
    sweep(repeated, tmp_path / "whole")
    sweep(repeated, tmp_path / "broken", killed=killed)
    folders = tmp_path / "whole", tmp_path / "broken"
    assert left(folders[0]) == left(folders[1])
    whole, broken = ([directory.read_config(f.path) for f in trial_folders(x)] for x in folders)
    assert whole == broken


def test_draws_are_dealt_over_the_seeds_of_a_plain_sweep(content: Settings) -> None:
    content["experiment"]["data"] = {"name": "random", "seed": 3}
    content["sweep"] = {"seeds": [5, 6, 7], "repeat": {"data": 3}}
    _, made = specs(content)
    draws = [(one.seed, one.experiment.data.options["seed"]) for one in made]
    assert set(draws) == {(5, 3), (6, 4), (7, 5)}
    assert [one.values["data.seed"] for one in made] == [draw for _, draw in draws]
    assert all("data.seed" not in one.setting for one in made)


def test_the_default_budget_is_spent_on_several_tunings(tuned: Settings) -> None:
    for tune, seeds, expected in (
        ({}, 4, (DEFAULT, 10, (100,))),
        ({}, 3, (1, 20, (100, 101))),
        ({"samples": 20}, 4, (1, 20, (100, 101))),
        ({"search": "random"}, 4, (DEFAULT, 10, (100,))),
    ):
        tuned["sweep"] = {"seeds": list(range(seeds)), "tune": tune}
        sweep = resolve_sweep(load(tuned)).sweep
        assert (sweep.repeat.tuning, sweep.tune.samples, sweep.tune.seeds) == expected
        assert resolve_sweep(load({**tuned, "sweep": sweep.model_dump(mode="json")})).sweep == sweep


def test_arms_that_are_the_same_method_are_rarely_told_apart(tuned: Settings) -> None:
    """Five identical arms whose accuracy depends on the rate, tuned with the default budget: 200 studies."""
    tuned["arms"]["method"] = {"only": {}}
    tuned["space"] = {"local.lr": {"loguniform": [0.01, 1.0]}}
    tuned["sweep"] = {"seeds": list(range(12)), "tune": {}}
    config = resolve_sweep(load(tuned))
    wrong, once = 0, 0
    generator = np.random.default_rng(0)
    for study in range(200):
        sweep = config.sweep.model_copy(update={"seed": study})
        config = config.model_copy(update={"sweep": sweep})
        phases, tune = Phases(config), config.sweep.tune
        assert sweep.repeat.tuning == DEFAULT
        rates: list[list[float]] = []
        for unit in phases._units:
            mine: list[dict[str, Any]] = []
            for index in range(tune.samples):
                seed = phases._draw_seed(unit.repetition)
                mine.append(unit.suggest(tune, seed, index, [], mine, "max"))
            rates.append([one["local.lr"] for one in mine])
        whole = rates[0] + rates[1]  # 20 settings, as a single tuning has
        several, single = {}, {}
        for arm in "abcde":
            chosen = [best(tried, 1, generator) for tried in rates]
            noise = generator.normal(size=12)
            several[arm] = {s: accuracy(chosen[s % DEFAULT]) + noise[s] for s in range(12)}
            rate = best(whole, 2, generator)
            single[arm] = {s: accuracy(rate) + noise[s] for s in range(12)}
        levels = {TUNINGS: {s: str(s % DEFAULT) for s in range(12)}}
        wrong += any(one.decided for one in compare(several, reference="a", levels=levels))
        once += any(one.decided for one in compare(single, reference="a"))
    assert wrong / 200 <= 0.05 and once / 200 > 0.4


def best(tried: list[float], seeds: int, generator: np.random.Generator) -> float:
    """Return the rate with the best mean validation value over some seeds, of three points' noise each."""
    scores = [accuracy(one) + 3 * float(generator.normal(size=seeds).mean()) for one in tried]
    return tried[int(np.argmax(scores))]


def accuracy(rate: float) -> float:
    """Return the mean accuracy at a learning rate, of the slope that LG-Mix has on five domains of digits."""
    return 65.4 - 2.7 * math.log(rate / 0.2) ** 2


def test_repetitions_that_cannot_be_dealt(tuned: Settings) -> None:
    def refuse(**sweep: Any) -> None:
        tuned["sweep"] = {"seeds": [0, 1, 2, 3], **sweep}
        refused(lambda: resolve_sweep(load(tuned)))

    tuned["experiment"]["data"] = "random"
    refuse(repeat={"data": 3, "tuning": 2}, tune={"seeds": [9]})
    refuse(repeat={"tuning": 2}, tune={"seeds": [9]}, until={})
    tuned["arms"]["method"] = {"fedavg": {}}
    refuse(repeat={"tuning": 2})
    refuse(repeat={"data": 5})
    refuse(repeat={"data": 2}, until={})


def test_seeds_that_repeat_and_data_without_a_seed_are_refused(content: Settings) -> None:
    content["space"] = {"partition.seed": {"grid": [0, 1]}}
    content["sweep"] = {"seeds": [0], "until": {}}
    for accepted in (None, ["partition.seed"]):
        content["sweep"]["places"] = accepted
        resolve_sweep(load(content))
    for places in ([], ["data.seed"]):
        content["sweep"]["places"] = places
        refused(resolve_sweep, load(content))

    @flray.register_dataset("fixed-for-a-test")
    def fixed(root: Path) -> None:
        raise AssertionError("nothing is read")

    content["experiment"]["data"] = "fixed-for-a-test"
    content |= {"space": {}, "sweep": {"seeds": [0, 1], "repeat": {"data": 2}}}
    config = resolve_sweep(load(content))
    refused(trial_specs, config, enumerate_settings(config))
