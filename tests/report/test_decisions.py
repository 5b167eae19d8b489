"""What decisions rest on: normal differences, few seeds, and that they are decided."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from flray.results.conclusions import conclude, sentence
from flray.results.paired import Rule, compare
from flray.results.sequential import Looks, given_decision, half_width, seeds_of_signs, sign_flip_p
from flray.results.study import Studies
from tests.report.conftest import studied


def test_the_sign_flip_test_is_scipy_s_permutation_test() -> None:
    generator = np.random.default_rng(0)
    for count in (3, 6, 10):
        differences = generator.normal(0.5, 1, size=count).round(1)
        found = stats.permutation_test(
            (differences,), np.sum, permutation_type="samples", n_resamples=np.inf
        )
        assert sign_flip_p(differences) == pytest.approx(found.pvalue)
    many = generator.normal(0.4, 1, size=30)
    drawn = stats.permutation_test(
        (many,), np.sum, permutation_type="samples", n_resamples=50_000, rng=generator
    )
    assert sign_flip_p(many) == pytest.approx(drawn.pvalue, abs=0.01)
    assert sign_flip_p(np.ones(8)) == 2 / 2**8 and math.isnan(sign_flip_p(np.array([])))


@pytest.mark.parametrize(("seeds", "apart"), [(3, 0.5), (5, 1.0), (10, 0.3)])
def test_an_interval_given_the_decision_covers(seeds: int, apart: float) -> None:
    """Of one pair among ten; the interval for all pairs covers in far fewer of the decisions."""
    draws = np.random.default_rng(0).normal(apart, 1, size=(60_000, seeds))
    means, errors = draws.mean(axis=1), draws.std(axis=1, ddof=1) / math.sqrt(seeds)
    alone, critical = stats.t.isf([0.025, 0.0025], seeds - 1)
    decided = np.flatnonzero(np.abs(means) > critical * errors)[:400]
    assert len(decided) > 300
    inside, plain = [], []
    for mean, error in zip(means[decided], errors[decided], strict=True):
        low, high = given_decision(mean, alone * error, critical * error, seeds - 1)
        inside.append(low <= apart <= high)
        plain.append(abs(mean - apart) <= critical * error)
    spare = 2 * math.sqrt(0.05 * 0.95 / len(decided))
    assert 0.95 - spare <= np.mean(inside) <= 0.97 + spare
    assert np.mean(plain) < 0.95 - spare or seeds == 5
    clear = given_decision(-90.0, 0.02, 0.05, seeds - 1)  # no other sample would be undecided
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
    assert pair.decided and pair.on_normality == "not checked" and seeds_of_signs(0.05) == 6
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
