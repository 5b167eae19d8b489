"""Pairs that are looked at after every seed: the error rate is held, where repeated t-tests break it."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from flray.results import sequential
from flray.results.conclusions import conclude, sentence
from flray.results.paired import Rule, compare
from flray.results.sequential import Looks, decide, half_width, p_value, sign_flip_p
from flray.results.study import Studies
from tests.report.conftest import studied

STUDIES, SETTINGS, SEEDS, ALPHA = 2000, 5, 20, 0.05
OPEN, PLANNED = Looks(3), Looks(3, SEEDS)
PAIRS = list(itertools.combinations(range(SETTINGS), 2))


def running(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return count, mean and deviation of the first n of the last axis, for n from 2."""
    count = np.arange(1, values.shape[-1] + 1)
    mean = values.cumsum(-1) / count
    square = (values**2).cumsum(-1) / count - mean**2
    std = np.sqrt(np.maximum(square, 0) * count / np.maximum(count - 1, 1))
    return count[1:], mean[..., 1:], std[..., 1:]


@pytest.fixture(scope="module")
def null() -> np.ndarray:
    """Differences of all pairs in studies of settings that do not differ: study x pair x seed."""
    values = np.random.default_rng(0).normal(size=(STUDIES, SETTINGS, SEEDS))
    # Seeds have an effect that all settings share, and settings vary by different amounts.
    values = values * np.array([0.5, 1, 1, 2, 3])[:, None] + 3 * values.mean(1, keepdims=True)
    return np.stack([values[:, a] - values[:, b] for a, b in PAIRS], axis=1)


@pytest.mark.parametrize("looks", [OPEN, PLANNED])
def test_if_nothing_differs_a_wrong_decision_is_rare(looks: Looks, null: np.ndarray) -> None:
    count, mean, std = running(null)
    looked = count >= 3
    wrong = (np.abs(mean) > half_width(std, count, ALPHA / len(PAIRS), looks))[..., looked]
    rate = wrong.any((1, 2)).mean()
    assert rate <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / STUDIES)


def test_a_planned_end_decides_sooner_and_more_often() -> None:
    """One of ten pairs, with differences of one deviation on average, and with none."""
    generator, level = np.random.default_rng(5), ALPHA / 10
    count, mean, std = running(generator.normal(size=(STUDIES, SEEDS)))
    looked = count >= 3
    for looks, power, seeds in ((PLANNED, (0.78, 1), (0, 16)), (OPEN, (0, 0.6), (16.5, SEEDS))):
        half = half_width(std, count, level, looks)
        found = (np.abs(mean + 1) > half)[:, looked]
        stop = np.where(found.any(1), 3 + found.argmax(1), SEEDS)
        assert power[0] <= found.any(1).mean() <= power[1] and seeds[0] <= stop.mean() <= seeds[1]
    half = half_width(std, count, 2 * level, PLANNED)
    within = (np.abs(mean) + half < 1)[:, looked]
    assert within.any(1).mean() >= 0.75
    beyond = (np.abs(mean + 1) + half < 1)[:, looked]  # one deviation apart, as much as the margin
    assert beyond.any(1).mean() <= level + 2 * math.sqrt(level / STUDIES)


def test_a_boundary_of_one_look_is_that_of_the_t_test() -> None:
    for count in (4, 12):
        half = float(half_width(1.0, count, ALPHA, Looks(count, count)))
        assert half == pytest.approx(stats.t.isf(ALPHA / 2, count - 1) / math.sqrt(count), rel=0.02)
    assert math.isinf(half_width(1.0, 2, ALPHA, PLANNED))
    assert half_width(1.0, 8, 1e-5, PLANNED) == half_width(1.0, 8, 1e-5, OPEN)


def test_more_seeds_than_planned_are_tested_as_without_an_end() -> None:
    values = list(np.random.default_rng(1).normal(1, 1, size=12))
    assert decide(values, 0.5, ALPHA, Looks(3, 11)) == decide(values, 0.5, ALPHA, OPEN)
    assert decide(values, 0.5, ALPHA, Looks(3, 12)) != decide(values, 0.5, ALPHA, OPEN)
    named = {"a": dict(enumerate(values)), "b": dict.fromkeys(range(12), 0.0)}
    looks = [{"a": {seed: seed > early for seed in range(12)}} for early in (20, 4)]
    rule = Rule(0.5, ALPHA, 3, 12)
    (planned,), (looked,) = (compare(named, rule=rule, looks=one) for one in looks)
    assert (planned.last_look, looked.last_look) == (12, 0)
    assert planned.high - planned.low < looked.high - looked.low


def test_decisions_are_those_of_the_simulation(null: np.ndarray) -> None:
    count, mean, std = running(null[:40, 0] * 0.2)
    looked, verdicts = count >= 3, set()
    ends = []
    for level in (ALPHA, 2 * ALPHA):  # only one end of an equivalence can be wrong
        half = half_width(std, count, level)
        ends.append(((mean - half)[:, looked].max(1), (mean + half)[:, looked].min(1)))
    for differences, *four in zip(null[:40, 0] * 0.2, *itertools.chain(*ends), strict=True):
        found = decide(list(differences), 0.2, ALPHA, OPEN)
        inside = -0.2 <= four[2] <= four[3] <= 0.2
        assert (found.low, found.high) == pytest.approx(four[2:] if inside else four[:2])
        decided = "better" if four[0] > 0 else "worse" if four[1] < 0 else ""
        assert found.verdict == ("equivalent" if inside else decided)
        verdicts.add(found.verdict)
    assert {"equivalent", ""} <= verdicts


def test_the_interval_and_the_p_value_are_two_sides_of_one_test() -> None:
    for count, std, alpha in itertools.product((4, 7, 20, 200), (0.3, 4.0), (0.05, 0.005)):
        half = float(half_width(std, count, alpha))
        if math.isfinite(half):
            assert p_value(half, std, count) == pytest.approx(alpha)


def test_the_p_value_is_the_inverse_of_the_evidence_integrated_numerically() -> None:
    """The Bayes factor of effect sizes of variance `sequential.PRIOR` against none, after noncentral t."""
    count, t = 6, 4.5
    effects = np.linspace(-30, 30, 20001)
    weights = stats.norm.pdf(effects, scale=math.sqrt(sequential.PRIOR))
    likelihood = stats.nct.pdf(t, count - 1, effects * math.sqrt(count))
    evidence = np.trapezoid(np.nan_to_num(likelihood) * weights, effects)
    evidence /= stats.t.pdf(t, count - 1)
    assert p_value(t / math.sqrt(count), 1.0, count) == pytest.approx(1 / evidence, rel=1e-3)


def test_all_seeds_count_and_none_takes_a_decision_back() -> None:
    few = [8.0, 8.4, 7.9, 8.2]
    more = [*few, 3.0, 3.5, 2.9, 3.2, 3.1, 3.3, 2.8, 3.4]
    first, last = decide(few, 0.5, 0.05, OPEN), decide(more, 0.5, 0.05, OPEN)
    assert first.verdict == last.verdict == "better"
    assert first.low <= last.low and last.high < first.high
    assert decide([-one for one in more], 0.5, 0.05, OPEN).verdict == "worse"
    values = {"a": dict(enumerate(more)), "b": dict.fromkeys(range(len(more)), 0.0)}
    (pair,) = compare(values, rule=Rule(0.5, 0.05, 3))
    assert pair.seeds == 12 and pair.mean == pytest.approx(np.mean(more))


def test_intervals_that_exclude_each_other_are_an_alarm() -> None:
    noise = np.random.default_rng(3).normal(0, 0.1, size=220)
    drift = [(5 if seed < 8 else 25) + float(one) for seed, one in enumerate(noise)]
    assert decide(drift[:8], 0.5, 0.05, OPEN).verdict == "better"
    found = decide(drift, 0.5, 0.05, OPEN)
    assert found.verdict == "contradictory" and found.low > found.high
    values = {"a": dict(enumerate(drift)), "b": dict.fromkeys(range(len(drift)), 0.0)}
    (pair,) = compare(values, rule=Rule(0.5, 0.05, 3))
    assert not pair.decided and math.isnan(pair.low)
    assert "after some of the seeds excludes that after others" in sentence(pair, "points")


def test_without_spread_nothing_is_decided() -> None:
    for differences in ([0.0] * 3, [0.0] * 20, [1.0] * 20, [-2.5] * 3):
        found = decide(differences, 0.5, 0.05, OPEN)
        assert (found.verdict, found.p) == ("", 1.0) and math.isinf(found.high - found.low)
    values = {"a": {0: 3.0, 1: 4.0, 2: 5.0}, "b": {0: 1.0, 1: 2.0, 2: 3.0}}
    for one in (compare(values)[0], compare(values, rule=Rule(1.0, 0.05, 3))[0]):
        assert not one.decided and math.isnan(one.low) and not one.p < 1
        assert "not decided, 2.0 points apart at each of 3 seeds" in sentence(one, "points")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("margin", "gap", "looks", "seeds"),
    [(0.5, 1, OPEN, 10), (1, 1, PLANNED, SEEDS), (2, 2, PLANNED, SEEDS)],
)
def test_ties_do_not_say_equivalent(margin: float, gap: float, looks: Looks, seeds: int) -> None:
    """Two settings a gap apart, no less than the margin, which answer most of 40 test samples alike."""
    answers = np.random.default_rng(0).random(size=(STUDIES // 5, seeds, 40))
    differences = 2.5 * ((answers < 0.002 + gap / 100).sum(2) - (answers > 0.998).sum(2))
    verdicts = [decide(list(one), margin, ALPHA, looks).verdict for one in differences]
    wrong = np.mean([one in ("equivalent", "worse") for one in verdicts])
    assert wrong <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / len(verdicts))
    moved = [0.0, 0.0, 2.5, 0.0, 0.0, -2.5] * 5
    low, high = decide(moved, 1.5, ALPHA, Looks(3, 30))[1:3]
    alone = half_width(np.std(moved, ddof=1), 30, 2 * ALPHA, Looks(3, 30))
    assert -1.5 <= low < -alone and alone < high <= 1.5


def test_sentences() -> None:
    noise = dict(enumerate([0.1, -0.2, 0.15, -0.1, 0.05, 0.2, -0.15, 0.0, 0.1, -0.05]))
    lines = {"a": (70, 1), "b": (60, -1), "c": (70.0, -0.2)}
    values = {
        name: {s: at + by * one for s, one in noise.items()} for name, (at, by) in lines.items()
    }
    rule = Rule(margin=1.0, alpha=0.05, at_least=3)
    ab, ac, bc = compare(values, rule=rule)
    assert (ab.verdict, ac.verdict, bc.verdict) == ("better", "equivalent", "worse")
    assert ab.decided and not ac.decided and bc.better_first().verdict == "better"
    line = sentence(ab, "points")
    assert line.startswith("a is better than b by ") and "95 % interval for all pairs" in line
    within = " and c: equivalent within 1 point (90 % interval for all pairs "
    assert within in sentence(ac, "points")
    losses = compare(values, lower=True, rule=rule)
    assert [one.verdict for one in losses] == ["worse", "equivalent", "better"]
    assert losses[0].low == pytest.approx(ab.low) and losses[0].mean == pytest.approx(ab.mean)
    few = {name: dict(list(seeds.items())[:2]) for name, seeds in values.items()}
    undecided = compare(few, rule=rule)[0]
    assert undecided.verdict == "" and math.isnan(undecided.low)
    assert sentence(undecided, "points") == (
        "a and b: not decided, a 9.9 points above (2 seeds, too few for an interval); about 2 more "
        "seeds (2 to 4) for a difference of 9.9 points"
    )
    wide = sentence(compare(few, rule=replace(rule, margin=12.0))[0], "points")
    assert wide.endswith("for a difference of 12.0 points")  # that which was asked about


def test_the_sign_flip_test_is_scipy_s_permutation_test() -> None:
    generator, flips = np.random.default_rng(0), {"permutation_type": "samples"}
    for count in (3, 6, 10):
        differences = generator.normal(0.5, 1, size=count).round(1)
        found = stats.permutation_test((differences,), np.sum, n_resamples=np.inf, **flips)
        assert sign_flip_p(differences) == pytest.approx(found.pvalue)
    many = generator.normal(0.4, 1, size=30)
    drawn = stats.permutation_test((many,), np.sum, n_resamples=50_000, rng=generator, **flips)
    assert sign_flip_p(many) == pytest.approx(drawn.pvalue, abs=0.01)
    assert sign_flip_p(np.ones(8)) == 2 / 2**8 and math.isnan(sign_flip_p(np.array([])))


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "apart"), [(3, 0.5), (5, 1.0), (10, 0.3)])
def test_an_interval_given_the_decision_covers(seeds: int, apart: float) -> None:
    """Of one pair among ten."""
    draws = np.random.default_rng(0).normal(apart, 1, size=(60_000, seeds))
    means, errors = draws.mean(axis=1), draws.std(axis=1, ddof=1) / math.sqrt(seeds)
    alone, critical = stats.t.isf([0.025, 0.0025], seeds - 1)
    decided = np.flatnonzero(np.abs(means) > critical * errors)[:400]
    assert len(decided) > 300
    inside = []
    for mean, error in zip(means[decided], errors[decided], strict=True):
        low, high = sequential.given_decision(mean, alone * error, critical * error, seeds - 1)
        inside.append(low <= apart <= high)
    spare = 2 * math.sqrt(0.05 * 0.95 / len(decided))
    assert 0.95 - spare <= np.mean(inside) <= 0.97 + spare
    # No other sample would be undecided.
    clear = sequential.given_decision(-90.0, 0.02, 0.05, seeds - 1)
    assert clear == pytest.approx((-90.02, -89.98), abs=1e-3)


def test_one_more_seed_undoes_a_decision() -> None:
    """That which is named, and not one a little better; of all pairs, too, and with looks."""
    gains = [1.3, 1.9, 0.8, 1.6, 1.2, 1.4, 1.0, 1.5]
    for rule in (None, Rule(0.1, 0.05, 3, 20), Rule(0.1, 0.05, 3)):
        values = {"a": dict(enumerate(gains)), "b": dict.fromkeys(range(9), 0.0), "c": {0: 50.0}}
        one = replace(compare(values, rule=rule)[0], farthest=50.0)
        assert one.decided and one.pairs == 3 and 0 < one.undone_by < 10
        assert replace(one, farthest=one.undone_by / 2).undone_by == math.inf
        assert replace(one, repeated="3 tunings").undone_by == math.inf
        for less, kept in ((1.01, False), (0.99, True)):
            more = np.array([*gains, np.mean(gains) - less * one.undone_by])
            half = stats.t.isf(0.025 / 3, 8) * more.std(ddof=1) / 3
            if rule is not None:
                half = float(half_width(more.std(ddof=1), 9, 0.05 / 3, Looks(3, rule.at_most)))
            assert (more.mean() > half) == kept
    # A setting that collapses now and then has no such seed among a few, but its values vary more than they differ.
    shaky = compare({"a": {0: 1.0, 1: 2.2, 2: 0.4}, "b": {0: 0.3, 1: 1.6, 2: -0.25}})[0]
    assert shaky.decided and shaky.undone_by == pytest.approx(0.62, abs=0.01)
    sure = compare({"a": {0: 31.0, 1: 32.2, 2: 30.4}, "b": {0: 0.3, 1: 1.6, 2: -0.25}})[0]
    assert sure.undone_by == math.inf


def test_a_decision_that_rests_on_normality_says_so() -> None:
    few = dict(enumerate([5.0, 5.2, 4.9]))
    zero = dict.fromkeys(range(12), 0.0)
    (pair,) = compare({"a": few, "b": zero})
    assert pair.decided and pair.on_normality == "not checked"
    assert sequential.seeds_of_signs(0.05) == 6
    lines = conclude(Studies([studied({"a": few, "b": zero})]))
    assert lines[-1].startswith("decisions at 3 seeds take the differences to be normal; from 6 ")
    whole = dict(enumerate([5.0, 5.2, 4.9, 5.1, 5.3, 4.8]))
    (sure,) = compare({"a": whole, "b": zero})
    assert sure.decided and sure.on_normality == "not needed"
    assert not any("normal" in one for one in conclude(Studies([studied({"a": whole, "b": zero})])))
    values = dict(enumerate([0.7, -0.1, 0.2, 0.7, 0.4, 0.1, 0.3, 0.2, -0.2]))
    (odd,) = compare({"a": values, "b": zero})
    assert odd.p < 0.05 < odd.p_signs and odd.on_normality == "alone"
    assert sentence(odd, "points").endswith(
        "9 seeds; given the decision -0.14 to 0.50); by the t-test alone: the sign-flip test does not "
        "decide; one more seed 0.32 points worse than their mean would undo it"
    )
    (looked,) = compare({"a": values, "b": zero}, rule=Rule(0.5, 0.05, 3, 9))
    assert math.isnan(looked.p_signs) and looked.on_normality == "not needed"
