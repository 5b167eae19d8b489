"""Statistics against values that were worked out by hand or by another way, and a test per kind of sentence."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from flray.config.sweep import Until
from flray.results.choices import tuning_lines
from flray.results.conclusions import ONE_SEED, conclude, rank_sentence, sentence
from flray.results.paired import Difference, Rule, compare
from flray.results.ranks import critical_difference, elsewhere, permutation_p, rank
from flray.results.sequential import ALPHA, detectable_difference, half_width, seeds_needed
from flray.results.study import DRAWS, TUNINGS, Studies, Study, behind_best
from flray.results.variance import nested_variance, split_variance
from tests.report.conftest import of_trials, one_round, studied

A, B = {0: 70.0, 1: 72.0, 2: 75.0}, {0: 68.0, 1: 71.0, 2: 70.0}  # differences 2, 1, 5


def one(first: dict[int, float], second: dict[int, float], lower: bool = False) -> Difference:
    (found,) = compare({"a": first, "b": second}, lower)
    return found


def test_a_paired_difference_by_hand_and_by_scipy() -> None:
    found = one(A, B)
    assert (found.seeds, found.improvement) == (3, 1.0)
    assert found.mean == pytest.approx(8 / 3) and found.std == pytest.approx(math.sqrt(13 / 3))
    theirs = stats.ttest_rel(list(A.values()), list(B.values()))
    assert found.p == found.corrected == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))


def test_pairs_of_few_equal_or_missing_values() -> None:
    found = one({**A, 7: 1.0, 8: math.nan}, {**B, 9: 99.0, 8: 1.0})  # only seeds that both have
    assert found.seeds == 3 and found.mean == pytest.approx(8 / 3)
    found = one({0: 80.0, 1: 84.0}, {0: 70.0, 1: 72.0})  # 10 and 12: t = 11, one degree of freedom
    assert found.p == pytest.approx(2 * (0.5 - math.atan(11.0) / math.pi), rel=1e-9)
    found = one({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, {0: 1.0, 1: 1.0, 2: 2.0, 3: 5.0})
    assert found.improvement == pytest.approx((0.5 + 1 + 1 + 0) / 4)
    assert one({0: 1.0, 1: 2.0}, {0: 2.0, 1: 4.0}, lower=True).improvement == 1.0


def test_all_pairs_or_all_against_one() -> None:
    three = {"a": A, "b": B, "c": {0: 60.0, 1: 63.0, 2: 61.0}}
    every = compare(three)
    assert [d.first + d.second for d in every] == ["ab", "ac", "bc"]
    assert [d.corrected for d in every] == pytest.approx([min(1.0, 3 * d.p) for d in every])
    against = compare(three, reference="b")
    assert [(d.first, d.second, d.pairs) for d in against] == [("a", "b", 2), ("c", "b", 2)]
    # A pair that cannot be tested counts for the correction.
    found = compare({"a": A, "b": B, "a again": A})
    assert found[1].second == "a again" and math.isnan(found[1].corrected)
    assert found[0].corrected == pytest.approx(min(1.0, 3 * one(A, B).p)) and not found[1].decided


def test_all_intervals_hold_at_once_and_say_what_is_decided() -> None:
    """Five settings 0.4 deviations apart at five seeds."""
    levels = 0.4 * np.arange(5)
    draws = np.random.default_rng(1).normal(size=(600, 5, 5)) + levels[:, None]
    together = decided = 0
    for study in draws:
        found = compare({str(name): dict(enumerate(row)) for name, row in enumerate(study)})
        true = [levels[int(one.first)] - levels[int(one.second)] for one in found]
        limits = [(one.low_corrected, one.high_corrected) for one in found]
        together += all(low <= t <= high for (low, high), t in zip(limits, true, strict=True))
        decided += sum(one.decided for one in found)
        for one in found:
            excluded = one.low_corrected > 0 or one.high_corrected < 0
            assert one.decided == excluded == (one.corrected < 0.05)
    assert together / 600 >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / 600)
    assert decided > 0


@pytest.mark.parametrize(("seeds", "alpha"), [(2, 0.05), (3, 0.05), (5, 0.05 / 6), (20, 0.01)])
def test_the_detectable_difference_is_seen_four_times_in_five(seeds: int, alpha: float) -> None:
    least = detectable_difference(2.0, seeds, alpha)
    critical = stats.t.ppf(1 - alpha / 2, seeds - 1)
    shifted = stats.nct(seeds - 1, least / 2.0 * math.sqrt(seeds))
    assert shifted.sf(critical) == pytest.approx(0.8, abs=1e-3)
    assert math.isnan(detectable_difference(2.0, 1))


def test_the_seeds_that_are_advised_decide_four_times_in_five_though_each_is_looked_at() -> None:
    needed = seeds_needed(2.0, 2.0, 0.05)
    draws = np.random.default_rng(5).normal(2.0, 2.0, size=(2000, needed))
    count = np.arange(3, needed + 1)
    mean = draws.cumsum(1)[:, 2:] / count
    std = np.sqrt(((draws**2).cumsum(1)[:, 2:] - count * mean**2) / (count - 1))
    seen = (mean > half_width(std, count, 0.05)).any(1).mean()
    assert 0.75 < seen < 0.95
    assert seeds_needed(100.0, 0.1) is None and seeds_needed(1.0, 0.0) is None


def test_ranks_by_hand() -> None:
    values = {"w": (90.0, 80.0, 70.0), "x": (80.0, 90.0, 70.0), "y": (85.0, 80.0, 80.0)}
    values["z"] = (91.0, 80.0, 70.0)
    found = rank({place: dict(zip("abc", one, strict=True)) for place, one in values.items()})
    assert found.names == ("a", "b", "c") and found.means == (1.25, 1.875, 2.875)
    # Friedman's statistic under each of the 6^4 orders within the places.
    ranks = np.array([[1, 2, 3], [2, 1, 3], [1, 2.5, 2.5], [1, 2, 3]])
    orders = np.array([*itertools.product(itertools.permutations(range(3)), repeat=4)])
    sums = (np.take_along_axis(ranks[None], orders, 2).sum(1) ** 2).sum(1)
    exact = np.mean(sums >= (ranks.sum(0) ** 2).sum())
    assert found.p == permutation_p(ranks) == pytest.approx(exact, abs=0.006)
    assert found.swayed == ()
    orders = {"w": "acb", "x": "abc", "y": "bca"}
    places = {place: dict(zip(one, (3.0, 2.0, 1.0), strict=True)) for place, one in orders.items()}
    shaky = rank(places)
    assert shaky is not None and (shaky.names, shaky.swayed) == (("a", "b", "c"), ("w", "x"))
    assert "; a is first, but not without w or x; not decided" in rank_sentence(shaky)
    # Of a loss, and of a setting that is not everywhere.
    found = rank({"x": {"a": 1.0, "b": 2.0, "c": 0.0}, "y": {"a": 1.0, "b": 2.0}}, lower=True)
    assert found is not None and found.names == ("a", "b") and found.p == 0.5  # sign test
    assert rank({"x": {"a": 1.0, "b": 2.0}}) is None


@pytest.mark.parametrize(("settings", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_differences_are_those_of_the_printed_table(settings: int, q: float) -> None:
    by_table = q * math.sqrt(settings * (settings + 1) / (6 * 14))  # Demšar 2006, Table 5
    assert critical_difference(settings, 14) == pytest.approx(by_table, abs=1e-3)


def test_settings_that_are_not_told_apart_stand_together() -> None:
    names = {"a": 3.0, "b": 2.0, "c": 1.0}
    found = rank(dict.fromkeys("xyz", names))
    assert found is not None and found.critical == pytest.approx(1.913, abs=1e-3)
    assert found.together == [(0, 1), (1, 2)]
    many = rank_sentence(rank(dict.fromkeys("vwxyz", names)))
    mixed = rank_sentence(rank({"x": names, "y": {"a": 1.0, "b": 2.0, "c": 3.0}}))
    first = "a 1.00, b 2.00, c 3.00; a is first, also without any one of them; "
    assert many.endswith(f"{first}a ranks above c (critical difference 1.48)")
    assert mixed.endswith("not decided (Friedman p = 1.00)")


@pytest.mark.parametrize(("places", "seeds"), [(3, 3), (8, 3)])
def test_the_probabilities_of_a_further_place_come_true(places: int, seeds: int) -> None:
    draws = np.random.default_rng(0)
    said, true = [], []
    for _ in range(600):
        mean, between = draws.normal(0, 2), abs(draws.normal(0, 1.5))
        own, further = draws.normal(mean, between, places), draws.normal(mean, between)
        values = draws.normal(own[:, None], 1.0, (places, seeds))
        stds = values.std(axis=1, ddof=1).tolist()
        answer = elsewhere(values.mean(axis=1).tolist(), stds, [seeds] * places, 1.0)
        assert answer is not None and sum(answer) == pytest.approx(1)
        said.append(answer)
        true.append((further > 1, abs(further) <= 1, further < -1))
    shares, came = np.array(said), np.array(true)
    assert shares.mean(axis=0) == pytest.approx(came.mean(axis=0), abs=0.1)
    for low, high in ((0.5, 0.8), (0.8, 0.95), (0.95, 1.0)):
        chosen = (shares[:, 0] >= low) & (shares[:, 0] <= high)
        assert came[chosen, 0].mean() >= shares[chosen, 0].mean() - 0.12


def test_of_a_further_place_nobody_is_told_better_that_failed() -> None:
    values = {"a": {s: 90.0 + s for s in range(3)}, "b": {s: 80.0 - s for s in range(3)}}
    each = [studied(values, place) for place in "xyz"]
    better = "in a further place like these 3: a better than b"
    assert any(better in line for line in conclude(Studies(each)))
    for change in ({"failed": {"a": {7: "died"}}}, {"levels": {DRAWS: {0: "u", 1: "u", 2: "v"}}}):
        other = [replace(each[0], **change), *each[1:]]
        assert not any("in a further place" in line for line in conclude(Studies(other)))
    assert elsewhere([5.0, 5.1, 4.9], [0.1, math.nan, 0.1], [5, 1, 5], 1.0) is not None
    assert elsewhere([5.0, math.nan, 4.9], [0.1, math.nan, 0.1], [5, 0, 5], 1.0) is None
    assert elsewhere([1.0, 2.0], [1.0, 1.0], [3, 3], 1.0) is None  # it needs three, and a spread
    assert elsewhere([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [3, 3, 3], 1.0) is None
    assert elsewhere([5.0, 5.1, 4.9], [0.1, 0.1, 0.1], [5, 5, 5], 1.0)[0] > 0.98


FIVE = {seed: 80.0 + seed for seed in range(5)}


def shifted(*by: float) -> dict[int, float]:
    return {seed: value - less for (seed, value), less in zip(FIVE.items(), by, strict=True)}


WORSE = shifted(4.0, 6.0, 5.0, 7.0, 5.0)  # mean 5.4, deviation 1.140, t(4) = 2.776


def said(first: dict[int, float], second: dict[int, float], lower: bool = False) -> str:
    return sentence(one(first, second, lower).better_first(), "" if lower else "points")


def test_one_of_each_kind_of_sentence() -> None:
    expected = "a is better than b by 5.4 points (95 % interval 4.0 to 6.8, 5 seeds)"
    assert said(FIVE, WORSE) == expected
    assert sentence(compare({"b": WORSE, "a": FIVE})[0].better_first(), "points") == expected
    assert said({0: 0.10, 1: 0.12, 2: 0.11}, {0: 0.30, 1: 0.33, 2: 0.30}, lower=True) == (
        "a is better than b, lower by 0.2 (95 % interval 0.175 to 0.225, 3 seeds)"
    )
    assert said({0: 9.7, 1: 13.4, 2: 6.0}, {0: 0.0, 1: 0.0, 2: 0.0}) == (
        "a seems better than b by 9.7 points (95 % interval 0.5 to 18.9, 3 seeds; given the decision -25.2 to 34.9)"
    )
    assert said(A, B) == (
        "a and b: not decided, a 2.7 points above (95 % interval -2.5 to 7.8, 3 seeds); "
        "about 11 more seeds (5 to 116) for a difference of 2.7 points"
    )
    line = said(FIVE, shifted(1.0, 3.0, -4.0, 2.0, 1.0))
    assert line.endswith("more seeds (72 to 597) for a difference of 1 point")
    line = said(FIVE, shifted(0.1, -0.1, 0.2, -0.2, 0.1))
    assert line.startswith("a and b: not decided, a 0.02 points above (95 % interval -0.18 to 0.22")
    assert line.endswith("; a difference of 1 point would probably have been seen")
    line = said(FIVE, shifted(40.0, -40.0, 30.0, -35.0, 5.0))
    assert line.endswith("; more than 1,000 seeds for a difference of 1 point")
    line = said({0: 0.10, 1: 0.30, 2: 0.12}, {0: 0.11, 1: 0.20, 2: 0.32}, lower=True)
    assert line.startswith("a and b: not decided, a 0.0367 below (95 % interval -0.34 to 0.414")
    assert "for a difference of 0.0367" in line
    end = "at each of 3 seeds, which without any spread cannot be tested"
    assert said(A, A) == f"a and b: not decided, equal {end}"
    apart = {seed: value - 1 for seed, value in A.items()}
    assert said(A, apart) == f"a and b: not decided, 1.0 points apart {end}"
    assert said({0: 1.0}, {0: 2.0}) == "b and a: not decided, 1 common seed"
    assert said({0: 1.0}, {1: 2.0}) == "a and b: not decided, no common seed"


@pytest.mark.parametrize(
    ("gains", "doubt"),
    [
        ([2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 9.0], "not normal (Shapiro-Wilk, p = 8e-06)"),
        ([1.0, 2.0, 3.1, 4.2, 5.0, 6.1, 7.2], "not independent (neighbouring seeds, p = "),
        ([2.0, 2.3, 1.9, 2.1, 2.6, 1.7, 2.2], ""),
        ([2.0, 2.1, 2.0, 9.0], ""),
        ([2.0, 2.0, 2.0, 2.0, 2.5], "not normal (Shapiro-Wilk, p = 0.0001)"),
    ],
)
def test_differences_that_the_tests_do_not_suit_are_said(gains: list[float], doubt: str) -> None:
    (pair,) = compare({"a": dict(enumerate(gains)), "b": dict.fromkeys(range(len(gains)), 0.0)})
    assert pair.doubt.startswith(doubt) and bool(pair.doubt) == bool(doubt)
    text = sentence(pair, "points")
    assert (f"; look at the seeds: their differences are {doubt}" in text) == bool(doubt)


def test_the_pairs_that_are_compared() -> None:
    values = {"a": FIVE, "b": shifted(1.0, 3.0, 0.5, 2.0, 1.5)}
    assert compare(values)[0].decided
    many = compare({**values, "c": {0: 1.0}, "d": {0: 1.0}, "e": {0: 1.0}})[0]
    assert not many.decided and sentence(many, "points").startswith(
        "a and b: not decided among 10 pairs, a 1.6 points above (95 % interval for all pairs -0.8 to 4.0, "
    )


def test_who_failed_does_not_win_and_the_failures_are_said() -> None:
    (won,) = compare({"a": FIVE, "b": WORSE}, failed={"b": {5: "it diverged", 6: "it diverged"}})
    assert won.decided and sentence(won, "points") == (
        "a is better than b by 5.4 points (95 % interval 4.0 to 6.8, 5 seeds); b failed at 2 of 7 seeds "
        "(it diverged)"
    )
    (lost,) = compare({"b": WORSE, "a": FIVE}, failed={"a": {5: ""}})
    assert lost.verdict == "withheld" and not lost.decided
    assert sentence(lost.better_first(), "points") == (
        "a and b: not decided, because one that failed does not win; at the 5 seeds that both have a is "
        "5.4 points above; a failed at 1 of 6 seeds"
    )
    near = shifted(0.1, -0.1, 0.2, -0.2, 0.1)
    for failed, verdict in (({"b": {7: ""}}, "withheld"), ({}, "equivalent")):
        (equal,) = compare({"a": FIVE, "b": near}, rule=Rule(5, 0.05, 3), failed=failed)
        assert equal.verdict == verdict


def test_a_pair_was_looked_at_before_where_both_were() -> None:
    later = {3: 1, 4: 1}
    (both,) = compare({"a": FIVE, "b": WORSE}, looks={"a": later, "b": later})
    (one,) = compare({"a": FIVE, "b": WORSE}, looks={"a": {}, "b": later})
    assert both.first_look == one.first_look == 3
    assert ", 5 seeds, looked at before at 3)" in sentence(both, "points")
    # The order of the seeds is that of the looks.
    turned = {seed: FIVE[seed] for seed in (3, 4, 0, 1, 2)}
    assert compare({"a": turned, "b": WORSE}, looks={"a": later, "b": later})[0] == both
    for looks in ({}, {"b": dict.fromkeys(range(5), 1)}, {"b": dict.fromkeys(range(1, 5), 1)}):
        (fixed,) = compare({"a": FIVE, "b": WORSE}, looks=looks)
        assert fixed.first_look == 0 and fixed.decided


def test_draws_of_the_data_that_were_added_after_a_look_are_tested_so() -> None:
    means = np.array([2.0, 2.4, 1.7, 2.1, 2.6, 1.5])
    runs = {(2 * draw + run): mean + 0.3 * run for draw, mean in enumerate(means) for run in (0, 1)}
    values = {"a": runs, "b": dict.fromkeys(runs, 0.15)}
    levels = {DRAWS: {s: str(s // 2) for s in runs}}
    (fixed,) = compare(values, levels=levels)
    (looked,) = compare(values, levels=levels, looks={"a": {seed: seed > 5 for seed in runs}})
    assert fixed.first_look == 0 and looked.first_look == 6
    half = float(half_width(means.std(ddof=1), 6, ALPHA))
    assert (looked.low, looked.high) == pytest.approx((means.mean() - half, means.mean() + half))
    draws = "6 draws of the data, 12 runs, looked at before at 6"
    assert looked.p > fixed.p and draws in sentence(looked, "points")
    few = {seed: value for seed, value in runs.items() if seed < 4}
    (open_,) = compare({**values, "a": few}, levels=levels, looks={"a": {3: 1}})
    assert open_.repeated and not open_.decided and math.isnan(open_.low)
    assert ", too few for an interval)" in sentence(open_, "points")


def test_the_table_of_comparisons_has_each_share_with_its_interval_and_whether_it_is_sure() -> None:
    near = {seed: value + 2 + seed / 10 for seed, value in B.items()}
    cases = [(A, {**B, 1: 73.0}, 2, True), (FIVE, WORSE, 5, True), (WORSE, FIVE, 0, True)]
    for first, second, better, sure in (*cases, (near, B, 3, False)):
        (row,) = Studies([studied({"a": first, "b": second})]).frame().to_dict("records")
        exact = stats.binomtest(better, len(second)).proportion_ci()
        assert row["improvement"] == pytest.approx(better / len(second))
        assert (row["improvement_low"], row["improvement_high"]) == pytest.approx(exact)
        assert row["sure"] == sure
    (row,) = Studies([studied({"a": A, "b": {7: 1.0}})]).frame().to_dict("records")
    assert math.isnan(row["improvement"]) and math.isnan(row["improvement_low"])


def test_what_could_have_been_seen_is_said_where_something_is_not_decided() -> None:
    first, seen, last = conclude(Studies([studied({"a": A, "b": B})]))
    least = detectable_difference(math.sqrt(13 / 3), 3)
    assert first.startswith("a and b: not decided")
    assert seen == (
        f"with 3 seeds only differences above about {least:.1f} points would probably have been "
        "seen (4 times in 5)"
    )
    assert last == (
        "seeds that are added now have to be tested as a further look, so let a sweep add them: "
        "sweep.until: {margin: 1, alpha: 0.05, at_least: 3, at_most: 14}"
    )
    assert Until.model_validate(yaml.safe_load(last.partition("until: ")[2])).at_most == 14
    against = replace(studied({"a": A, "b": B}), reference="b")
    assert conclude(Studies([against]))[-1].endswith("at_most: 14} and sweep.reference: b")
    near = {seed: value + 2 + seed / 10 for seed, value in B.items()}
    least = detectable_difference(math.sqrt(13 / 3), 3, ALPHA / 2)
    three = replace(studied({"a": A, "b": B, "c": near}), reference="b")
    decided, _, seen, *_ = conclude(Studies([three]))  # of c, which says nothing of a and b
    assert decided.startswith("c seems better than b")
    assert f" above about {least:.1f} points" in seen
    places = [replace(studied({"a": A, "b": B}), place=place) for place in ("p", "q")]
    most = seeds_needed(math.sqrt(13 / 3), 8 / 3, ALPHA / 2)
    assert most > 14
    assert conclude(Studies(places))[-1].endswith(f"at_most: {most}}}")
    only, normal = conclude(Studies([studied({"a": FIVE, "b": WORSE})]))
    assert only.startswith("a is better than b") and normal.startswith("decisions at 5 seeds take")
    assert conclude(Studies([studied({"a": {0: 90.0}, "b": {0: 10.0}})])) == [ONE_SEED]
    assert conclude(Studies([])) == []


def test_of_many_pairs_the_best_settings_are_said_and_the_others_counted() -> None:
    jitter = np.random.default_rng(1)
    levels = {"a": 90.0, "b": 60.0, "c": 30.0, "d": 29.9, "e": 10.0}
    values = {k: {s: v + float(jitter.normal()) for s in range(5)} for k, v in levels.items()}
    *best, further = conclude(Studies([studied(values)]))[:5]
    assert [line.split(" by ")[0] for line in best] == [f"a is better than {x}" for x in "edcb"]
    assert further == "6 further pairs: 5 decided, 1 not (all are in comparisons.csv of the report)"


def test_places_and_what_was_left_out_are_named() -> None:
    two = [studied({"a": A, "b": B}, "mnist"), studied({"a": A, "b": B}, "usps")]
    lines = conclude(Studies(two, ["c: stopped early, not compared"]))
    ranks = "mean ranks over 2 places (mnist, usps): a 1.00, b 2.00; a is first, also without any "
    assert lines[0].startswith(f"{ranks}one of them; not decided")
    assert lines[1].startswith("mnist: a and b: not decided")
    assert lines[-1] == "c: stopped early, not compared"
    assert studied({"a": A, "b": B}).unit == "points"
    assert replace(studied({"a": A, "b": B}), measure="personal/local/loss").unit == ""
    assert studied({"a": {0: 3120.0}, "b": B}).unit == ""
    # A share of explained variance below zero is in points too.
    below = {"a": {0: -40.0, 1: -30.0, 2: -35.0}, "b": {0: 10.0, 1: 20.0, 2: 14.0}}
    (line, _) = conclude(Studies([replace(studied(below), measure="global/common/r2")]))
    assert line.startswith("b is better than a by 49.7 points (")


def test_shares_of_the_variance_by_hand() -> None:
    # Sums of squares, by hand: partitions 2 (2² + 0 + 2²) = 16, seeds 3 (1² + 1²) = 6, rest 4.
    found = split_variance("a", {0: {0: 9.0, 1: 7.0}, 1: {0: 10.0, 1: 10.0}, 2: {0: 14.0, 1: 10.0}})
    assert found is not None and found.design == "3 partitions x 2 seeds"
    assert [*found.parts.values()] == pytest.approx([(16 / 2 - 2) / 2, (6 / 1 - 2) / 3, 4 / 2])
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert split_variance("a", {0: {0: 1.0, 1: 2.0}}) is None
    assert split_variance("a", {0: {0: 1.0, 1: 2.0}, 1: {0: 1.0, 1: math.nan}}) is None
    same = split_variance("a", {0: {0: 1.0, 1: 1.0}, 1: {0: 1.0, 1: 1.0}})
    assert all(map(math.isnan, same.shares.values()))
    # Where the parts cancel, a component is not below zero.
    odd = split_variance("a", {0: {0: 1.0, 1: 2.0}, 1: {0: 2.0, 1: 1.0}})
    assert odd is not None and [*odd.shares.values()] == [0.0, 0.0, 1.0]


def found_again(drawn: Callable[[np.random.Generator], Any], rel: float) -> None:
    """Assert that variances of 9, 4 and 1 are found in what is drawn, and that intervals hold their shares."""
    draws = np.random.default_rng(0)
    parts, held = [], []
    for _ in range(400):
        found = drawn(draws)
        parts.append([*found.parts.values()])
        true = zip(found.intervals.values(), (9 / 14, 4 / 14, 1 / 14), strict=True)
        held.append([low <= share <= high for (low, high), share in true])
    assert np.mean(held, axis=0) == pytest.approx([0.95] * 3, abs=0.04)
    assert np.mean(parts, axis=0) == pytest.approx([9, 4, 1], rel=rel)


def test_the_components_that_were_drawn_are_found_again() -> None:
    def crossed(draws: np.random.Generator) -> Any:
        table = 3 * draws.normal(size=(5, 1)) + 2 * draws.normal(size=(1, 6))
        table = table + draws.normal(size=(5, 6))
        return split_variance("a", {i: dict(enumerate(row)) for i, row in enumerate(table)})

    levels = {name: {s: str(s % by) for s in range(24)} for name, by in ((TUNINGS, 4), (DRAWS, 12))}

    def nested(draws: np.random.Generator) -> Any:
        of_tuning, of_draw = 3 * draws.normal(size=4), 2 * draws.normal(size=12)
        values = {s: of_tuning[s % 4] + of_draw[s % 12] + draws.normal() for s in range(24)}
        return nested_variance("", values, levels)

    found_again(crossed, 0.1)
    found_again(nested, 0.15)


def test_shares_of_tunings_draws_and_runs_by_hand() -> None:
    """Two tunings, each with two draws of the data, each with two runs; draws and runs lie within those before."""
    values = {0: 1.0, 1: 5.0, 2: 4.0, 3: 9.0, 4: 3.0, 5: 5.0, 6: 4.0, 7: 7.0}
    levels = {name: {s: str(s % by) for s in values} for name, by in ((TUNINGS, 2), (DRAWS, 4))}
    found = nested_variance("a less b", values, levels)
    assert found is not None and found.design == "2 x tuning, 4 x draw of the data, 8 x run"
    # Means 3 and 6.5; of draws 2, 4 and 5, 8; squares 4 x 2 x 1.75², 2 (1 + 1 + 1.5² + 1.5²), 4.
    square = np.array([24.5 / 1, 13 / 2, 4 / 4])
    parts = [(square[0] - square[1]) / 4, (square[1] - square[2]) / 2, square[2]]
    assert [*found.parts.values()] == pytest.approx(parts)
    assert found.widest == "tuning (73 %)"  # 4.5 / 2 of it and 2.75 / 4 and 1 / 8
    one_each = {TUNINGS: levels[TUNINGS], DRAWS: {seed: str(seed) for seed in values}}
    found = nested_variance("a less b", values, one_each)
    assert found is not None and [*found.parts] == ["tuning", "draw of the data and run"]
    assert nested_variance("", values, {DRAWS: one_each[DRAWS]}) is None
    assert nested_variance("", values, {DRAWS: dict.fromkeys(values, "")}) is None
    assert nested_variance("", {s: v for s, v in values.items() if s}, levels) is None
    crossed = {**levels, DRAWS: {seed: str(seed // 2) for seed in values}}
    assert nested_variance("", values, crossed) is None and nested_variance("", {}, levels) is None


def test_profiles_by_hand() -> None:
    values = {"a": {0: 90.0, 1: 80.0}, "b": {0: 88.0, 1: 85.0}, "c": {0: 90.0, 1: math.nan}}
    first = studied({"a": values["a"], "b": values["b"]}, "x")
    found = {name: [*one] for name, one in behind_best([first, studied(values, "y")]).items()}
    # Seed 0 of y counts as well, and c, which x lacks, does not.
    assert found == {"a": [0.0, 0.0, 5.0, 5.0], "b": [0.0, 0.0, 2.0, 2.0]}
    loss = Study("x", "global/common/loss", {"a": {0: 1.0}, "b": {0: 3.0}}, lower=True)
    assert behind_best([loss])["b"] == [2.0] and behind_best([]) == {}


def test_how_sure_a_choice_is_by_hand() -> None:
    scores = {0.1: (0.80, 0.84), 0.2: (0.79, 0.85), 0.4: (0.60, 0.70)}
    own = {"phase": "tuning", "chosen_by": "global/validation/accuracy"}
    made = [
        replace(one_round("fedavg", seed, "validation", score=one), tuned={"local.lr": rate}, **own)
        for rate, of in scores.items()
        for seed, one in enumerate(of)
    ]
    compared = replace(made[0], seed=5, phase="comparison")
    (line,) = tuning_lines(of_trials([*made, compared]))
    # Differences of 1 and -1, and of 20 and 14 points: variances of 2 and 18, an error of sqrt(5).
    assert "; global/validation/accuracy 82, and 2 of 3 that ran to the end" in line
    assert "are within a standard error of it (2.2, of" in line
    for few in (made[::2], made[:2]):
        (line,) = tuning_lines(of_trials([*few, compared]))
        assert "; how sure that is takes two seeds, and two settings" in line
