"""Pairs that are looked at after every seed: the error rate is held, where repeated t-tests break it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from flray.results.conclusions import sentence
from flray.results.paired import Rule, compare
from flray.results.sequential import PRIOR, decide, half_width, p_value

STUDIES, SETTINGS, SEEDS, ALPHA = 2000, 5, 20, 0.05
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


def test_where_nothing_differs_a_wrong_decision_is_as_rare_as_promised(null: np.ndarray) -> None:
    count, mean, std = running(null)
    looked = count >= 3
    wrong = (np.abs(mean) > half_width(std, count, ALPHA / len(PAIRS)))[..., looked]
    rate = wrong.any((1, 2)).mean()
    error = math.sqrt(ALPHA * (1 - ALPHA) / STUDIES)
    assert rate <= ALPHA + 2 * error

    # Beside it, what is often done: a t-test after every seed, corrected for the pairs alone.
    p = 2 * stats.t.sf(np.abs(mean) / std * np.sqrt(count), count - 1)[..., looked]
    naive = (p * len(PAIRS) < ALPHA).any((1, 2)).mean()
    assert naive > 2 * ALPHA > ALPHA + 2 * error
    print(f"wrong decisions: {rate:.4f} sequential, {naive:.4f} naive, of {STUDIES} studies")


def test_decisions_are_those_of_the_simulation(null: np.ndarray) -> None:
    count, mean, std = running(null[:40, 0] * 0.2)
    half = half_width(std, count, ALPHA)
    for differences, m, h in zip(null[:40, 0] * 0.2, mean, half, strict=True):
        outside = (np.abs(m) > h) & (count >= 3)
        inside = (np.abs(m) + h <= 0.7) & (count >= 3)
        first = next((i for i in range(len(m)) if outside[i] or inside[i]), None)
        found = decide(list(differences), 0.7, ALPHA, 3)
        if first is None:
            assert found.verdict == "" and found.seeds == SEEDS
            continue
        assert found.seeds == count[first]
        expected = "equivalent" if inside[first] else ("better" if m[first] > 0 else "worse")
        assert found.verdict == expected
        assert found.low == pytest.approx(m[first] - h[first])


def test_the_interval_and_the_p_value_are_two_sides_of_one_test() -> None:
    for count, std, alpha in itertools.product((4, 7, 20, 200), (0.3, 4.0), (0.05, 0.005)):
        half = float(half_width(std, count, alpha))
        if math.isfinite(half):
            assert p_value(half, std, count) == pytest.approx(alpha)


def test_the_p_value_is_the_inverse_of_the_evidence_integrated_numerically() -> None:
    """The Bayes factor of effect sizes of variance `PRIOR` against none, after noncentral t."""
    count, t = 6, 4.5
    effects = np.linspace(-30, 30, 20001)
    weights = stats.norm.pdf(effects, scale=math.sqrt(PRIOR))
    likelihood = stats.nct.pdf(t, count - 1, effects * math.sqrt(count))
    evidence = np.trapezoid(np.nan_to_num(likelihood) * weights, effects) / stats.t.pdf(
        t, count - 1
    )
    assert p_value(t / math.sqrt(count), 1.0, count) == pytest.approx(1 / evidence, rel=1e-3)


def test_it_covers_the_mean_at_all_times() -> None:
    values = np.random.default_rng(1).normal(1.3, 2.0, size=(4000, 100))
    count, mean, std = running(values)
    missed = (np.abs(mean - 1.3) > half_width(std, count, 0.1)).any(1).mean()
    assert missed <= 0.1 + 2 * math.sqrt(0.09 / 4000)


def test_looking_again_after_a_decision_changes_nothing() -> None:
    differences = [5.0, 5.2, 4.9, 5.1, 5.0, 4.8]
    first = decide(differences, 0.5, 0.05, 3)
    assert first.verdict == "better" and first.seeds < 6
    assert decide([*differences, -50.0, -60.0], 0.5, 0.05, 3) == first
    assert decide([-one for one in differences], 0.5, 0.05, 3).verdict == "worse"


def test_without_spread_nothing_is_decided() -> None:
    for differences in ([0.0] * 3, [0.0] * 20, [1.0] * 20, [-2.5] * 3):
        found = decide(differences, 0.5, 0.05, 3)
        assert (found.verdict, found.p) == ("", 1.0) and math.isinf(found.high - found.low)
    constant = compare({"a": {0: 3.0, 1: 4.0, 2: 5.0}, "b": {0: 1.0, 1: 2.0, 2: 3.0}})[0]
    sequential = compare(
        {"a": {0: 3.0, 1: 4.0, 2: 5.0}, "b": {0: 1.0, 1: 2.0, 2: 3.0}}, rule=Rule(1.0, 0.05, 3)
    )[0]
    for one in (constant, sequential):
        assert not one.decided and math.isnan(one.low) and not one.p < 1
        assert "not decided, 2.0 points apart at each of 3 seeds" in sentence(one, "points")


def test_ties_of_a_small_test_are_no_evidence_of_equivalence() -> None:
    """Two settings 1 point apart, beyond the margin, which answer most of 40 test samples alike."""
    answers = np.random.default_rng(0).random(size=(STUDIES, 10, 40))
    differences = 2.5 * ((answers < 0.012).sum(2) - (answers > 0.998).sum(2))
    ties = (differences[:, :3] == 0).all(1).mean()
    verdicts = [decide(list(one), 0.5, ALPHA, 3).verdict for one in differences]
    wrong = np.mean([one in ("equivalent", "worse") for one in verdicts])
    assert wrong <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / STUDIES)
    assert ties > 3 * ALPHA  # what counted as equivalent would be wrong more often than promised


def test_sentences() -> None:
    noise = dict(enumerate([0.1, -0.2, 0.15, -0.1, 0.05, 0.2, -0.15, 0.0, 0.1, -0.05]))
    values = {
        "a": {seed: 70 + one for seed, one in noise.items()},
        "b": {seed: 60 - one for seed, one in noise.items()},
        "c": {seed: 70.0 - 0.2 * one for seed, one in noise.items()},
    }
    rule = Rule(margin=1.0, alpha=0.05, at_least=3)
    ab, ac, bc = compare(values, rule=rule)
    assert (ab.verdict, ac.verdict, bc.verdict) == ("better", "equivalent", "worse")
    assert ab.decided and not ac.decided and bc.better_first().verdict == "better"
    assert sentence(ab, "points").startswith("a is better than b by ")
    assert "95 % interval for all pairs" in sentence(ab, "points")
    assert sentence(ac.better_first(), "points").partition(" (")[0] in (
        "a and c: equivalent within 1 point",
        "c and a: equivalent within 1 point",
    )
    losses = compare(values, lower=True, rule=rule)
    assert [one.verdict for one in losses] == ["worse", "equivalent", "better"]
    assert losses[0].low == pytest.approx(ab.low) and losses[0].mean == pytest.approx(ab.mean)
    few = {name: dict(list(seeds.items())[:2]) for name, seeds in values.items()}
    undecided = compare(few, rule=rule)[0]
    assert undecided.verdict == "" and math.isnan(undecided.low)
    assert sentence(undecided, "points") == "a and b: not decided, a 9.9 points above (2 seeds)"
