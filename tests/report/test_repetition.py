"""Values that share a draw of the data, a partition or a tuning: intervals hold for other ones of these."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flray.results import ResultSet
from flray.results.build_studies import build_studies
from flray.results.conclusions import conclude, rank_sentence
from flray.results.paired import compare
from flray.results.ranks import rank
from flray.results.study import DRAWS, TUNINGS, Studies
from tests.helpers import Settings
from tests.report.conftest import Edited, kept_copy, studied

STUDIES = 400


def covered(sizes: dict[str, int], effects: dict[str, float], nested: bool) -> float:
    """Return how often the interval holds the true difference of zero.

    By level: the number of its members, all combinations of which have one value, and the deviation between members,
    that of single values being 1. Levels are nested, each within those before it, or crossed.
    """
    generator, found = np.random.default_rng(0), 0
    keys = list(itertools.product(*map(range, sizes.values())))
    part = [slice(i + 1) if nested else i for i in range(len(sizes))]
    named = [[str(key[at]) for key in keys] for at in part]
    levels = {n: dict(zip(keys, of, strict=True)) for n, of in zip(sizes, named, strict=True)}
    for _ in range(STUDIES):
        values = dict(zip(keys, generator.standard_normal(len(keys)).tolist(), strict=True))
        for name, deviation in effects.items():
            members = sorted(set(levels[name].values()))
            draws = deviation * generator.standard_normal(len(members))
            drawn = dict(zip(members, draws, strict=True))
            values = {key: one + drawn[levels[name][key]] for key, one in values.items()}
        (one,) = compare({"a": values, "b": dict.fromkeys(keys, 0.0)}, levels=levels)
        found += one.low <= 0 <= one.high
    return found / STUDIES


@pytest.mark.parametrize(
    ("sizes", "nested"),
    [
        *(({DRAWS: 5, "seeds": 2}, True), ({DRAWS: 3, TUNINGS: 3, "seeds": 2}, True)),
        *(({DRAWS: 3, "partitions": 3}, False), ({DRAWS: 3, "partitions": 3, "seeds": 3}, False)),
    ],
)
def test_the_interval_covers_draws_that_differ_too(sizes: dict[str, int], nested: bool) -> None:
    effects = dict.fromkeys(list(sizes)[: len(sizes) - nested], 1.0)
    assert covered(sizes, effects, nested) >= 0.93


def test_levels_that_do_not_differ_cost_little_and_levels_by_hand() -> None:
    assert 0.93 <= covered({DRAWS: 5, "seeds": 4}, {}, True) <= 0.99
    values = {"a": {0: 1.0, 1: 2.0, 2: 5.0, 3: 6.0, 4: 3.0, 5: 4.0}}
    values["b"] = dict.fromkeys(range(6), 0.0)
    pairs = {seed: str(seed // 2) for seed in range(6)}
    (one,) = compare(values, levels={DRAWS: pairs, "seeds": {s: str(s) for s in range(6)}})
    means = [1.5, 5.5, 3.5]  # by draw: standard error 2 / sqrt(3), Student's t with two degrees
    assert (one.seeds, one.mean, one.repeated) == (6, pytest.approx(3.5), "3 draws of the data")
    assert one.high - one.mean == pytest.approx(4.302653 * np.std(means, ddof=1) / np.sqrt(3))
    for constant in ({DRAWS: dict.fromkeys(range(6), "x")}, {DRAWS: {s: str(s) for s in range(6)}}):
        assert compare(values, levels=constant) == compare(values)
    within = {DRAWS: pairs, TUNINGS: {seed: str(seed // 4) for seed in range(6)}}
    assert compare(values, levels=within)[0].repeated == "2 tunings"


def test_seeds_of_partition_and_data_in_a_space_are_repetitions(edited: Edited) -> None:
    """36 runs of 4 settings: nine values of each are compared together, not three in each of three places."""
    made = edited(lambda config: config.update(paper=None, arms={}))
    noise = np.random.default_rng(0).normal(0, 0.5, size=(3, 3, 4))
    trials = []
    for (partition, draw, number), one in np.ndenumerate(noise):
        setting = {"partition.seed": partition, "data.seed": draw, "local.lr": 0.1 * (number + 1)}
        history = made.trials[0].history.copy()
        history["global/common/accuracy"] = (60 + 3 * number + one + partition + draw) / 100
        trials.append(replace(made.trials[0], setting=setting, seed=0, history=history))
    source = ResultSet(made.name, trials, made.config)
    (study,) = build_studies(source).each
    assert (study.place, {len(values) for values in study.values.values()}) == ("", {9})
    assert all(pair.decided for pair in study.differences)
    assert {pair.repeated for pair in study.differences} == {"3 draws of the data x 3 partitions"}
    source.config["sweep"]["places"] = ["partition.seed", "data.seed"]
    assert len(build_studies(source).each) == 9
    # A sweep of an earlier flray, which had no such key: the tests of until need independent seeds.
    source.config["sweep"] = {"until": {"margin": 1.0, "alpha": 0.05, "at_least": 3, "at_most": 9}}
    assert len(build_studies(source).each) == 9


def test_what_was_held_fixed_is_said(source: ResultSet) -> None:
    source.config["paper"], fixed = None, "held fixed throughout: one draw of the data"
    for draws, tuned, line in (
        (("x", "x"), {"local.lr": 0.1}, f"{fixed} and one tuning"),
        (("x", "x"), {}, fixed),
        (("x", ""), {}, fixed),  # a run that has not begun
        (("x", "y"), {}, None),
    ):
        own = {"tuned": tuned}
        trials = [replace(t, fingerprints={"data": draws[t.seed]}, **own) for t in source.trials]
        said = conclude(build_studies(replace(source, trials=trials)))
        assert [one for one in said if one.startswith("held fixed")] == ([line] if line else [])


def test_a_partition_that_the_file_fixes_is_said(source: ResultSet, tmp_path: Path) -> None:
    source.config["paper"] = None
    source.config["experiment"]["partition"]["seed"] = 7
    for found in map(build_studies, (source, kept_copy(source, tmp_path))):
        assert "held fixed throughout: one partition" in conclude(found)


@pytest.mark.parametrize("step", [1, -1])
def test_an_arm_that_is_not_tuned_hides_no_tuning(source: ResultSet, step: int) -> None:
    source.config["paper"] = None
    for one in source.trials:
        one.repetition = one.seed
        one.tuned = {"local.lr": 0.1} if one.setting["arms.modules"] == "full" else {}
    found = build_studies(replace(source, trials=source.trials[::step]))
    assert [one.levels[TUNINGS] for one in found.each] == [{0: "0", 1: "1"}] * 2


def test_places_with_the_same_data_are_not_ranked_as_data_sets(source: ResultSet) -> None:
    source.config["paper"] = None
    found = build_studies(source)
    for trial in source.trials:
        trial.fingerprints["data"] = "x"
    same = build_studies(replace(source))
    (own,), (of_one,) = found.ranks.values(), same.ranks.values()
    assert "not tested" not in rank_sentence(own)
    assert rank_sentence(of_one).endswith("not tested, because places have the same data")
    # Several draws, and the same ones in both places.
    for trial in source.trials:
        trial.fingerprints["data"] = str(trial.seed)
    (of_two,) = build_studies(replace(source)).ranks.values()
    assert "not tested" in rank_sentence(of_two)


def test_no_setting_ranks_above_another_by_the_seeds_that_it_survived() -> None:
    """Equal methods: one fails at the hard seed, at which the other reaches half."""
    whole, lost = {0: 90.0, 1: 92.0, 2: 45.0}, {"shaky": {2: "no memory"}}
    studies = [
        replace(studied({"whole": whole, "shaky": shaky}, f"data {number}"), failed=lost)
        for number in range(8)
        for shaky in [{0: 91.0 - number % 2, 1: 93.0 - number % 2}]
    ]
    (ranks,) = Studies(studies).ranks.values()
    assert ranks.names == ("shaky", "whole") and ranks.means == (1.25, 1.75)  # four ties
    above = [replace(one, values={**one.values, "whole": {0: 1.0, 1: 2.0}}) for one in studies]
    (ranks,) = Studies(above).ranks.values()
    assert ranks.p < 0.05 and "ranks above" not in rank_sentence(ranks)
    assert "shaky failed at some seeds and cannot rank above others" in rank_sentence(ranks)
    (whole,) = Studies([replace(one, failed={}) for one in above]).ranks.values()
    assert "shaky ranks above whole" in rank_sentence(whole)


def test_a_first_axis_of_data_is_a_place_and_not_compared(edited: Edited, tmp_path: Path) -> None:
    def first(config: Settings) -> None:
        config["paper"] = None
        config["arms"] = {name: config["arms"][name] for name in ("data", "modules")}

    source = edited(first)
    for found in map(build_studies, (source, kept_copy(source, tmp_path))):
        assert [study.place for study in found.each] == ["CIFAR-10", "CIFAR-100"]
        assert all({*study.values} == {"none", "full"} for study in found.each)


def test_settings_whose_clients_hold_other_samples_are_not_compared(source: ResultSet) -> None:
    source.config["paper"] = None
    for trial in source.trials:
        other = trial.setting["arms.modules"] == "full" and trial.setting["arms.data"] == "CIFAR-10"
        trial.fingerprints["partition"] = f"{trial.seed}{other}"
    found = build_studies(source)
    other = "CIFAR-10 full: other samples or clients than the others, not compared"
    assert ([one.place for one in found.each], found.left_out) == (["CIFAR-100"], [other])


@pytest.mark.parametrize(("places", "decided"), [("wxyz", False), ("uvwxyz", True)])
def test_two_settings_are_ranked_by_the_sign_test(places: str, decided: bool) -> None:
    found = rank({place: {"a": 1.0, "b": 0.5} for place in places})
    assert found.p == pytest.approx(2 / 2 ** len(places))
    assert ("ranks above" in rank_sentence(found)) == decided
