"""Simulated studies: how often a decision is wrong, is wrong and sure, or has an interval that misses.

python scripts/checks/conclusions.py --studies 2000 [noise power given ties advice]
"""

import argparse
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flray.config import yaml_files
from flray.results.conclusions import sentence
from flray.results.export import read_export
from flray.results.paired import Difference, Rule, compare
from flray.results.sequential import Looks, decide

KEPT = ("fedskc/local", "fedskc/local-lt")
WORLDS = ("normal", "one setting loses 10 points in 1 seed of 10", "drift, AR(1) 0.5", *KEPT)
FRAMES = {one: read_export(yaml_files.folder() / "papers" / f"{one}.results.csv") for one in KEPT}


def noise(world: str, random: np.random.Generator, k: int, n: int) -> NDArray[np.float64]:
    """Return values of settings by seed; kept results are centred, and their seeds drawn with replacement."""
    if world in KEPT:
        table = FRAMES[world].pivot(index="arms.method", columns="seed", values="value").to_numpy()
        own = random.permutation(table - table.mean(axis=1, keepdims=True))[:k]
        return np.asarray(own[:, random.integers(own.shape[1], size=n)])
    found = random.normal(size=(k, n))
    if "loses" in world:
        found[0] -= 10.0 * ((random.random(n) < 0.1) - 0.1)
    for seed in range(1, n) if "drift" in world else ():
        found[:, seed] += 0.5 * found[:, seed - 1]
    return found


def advised(random: np.random.Generator, k: int, first: int, cap: int) -> bool:
    """Return whether following the advice to add seeds decides any pair of settings that are alike."""
    values, look = random.normal(size=(k, cap)), dict.fromkeys(range(first), 0)
    while len(look) <= cap:
        every = {str(i): {s: float(row[s]) for s in look} for i, row in enumerate(values)}
        found = compare(every, looks=dict.fromkeys(every, look))
        if any(one.decided for one in found):
            return True
        needed = [one.seeds_for(max(1.0, abs(one.mean))) or cap + 1 for one in found]
        more = min(n for n in (*needed, cap + 1) if n > len(look))
        look |= dict.fromkeys(range(len(look), more), 1)
    return False


def compared(values: NDArray[np.float64], rule: Rule | None = None) -> list[Difference]:
    """Return the decided pairs of settings."""
    named = {str(i): dict(enumerate(row)) for i, row in enumerate(values.tolist())}
    return [one for one in compare(named, rule=rule) if one.decided]


def of_noise(random: np.random.Generator, studies: int) -> Iterator[str]:
    """Nothing differs: studies with a wrong decision, and with one that "is" better and does not just seem so."""
    fixed = [(k, n, None) for k in (2, 3, 5, 10) for n in (3, 5, 10)]
    until = [(k, 20, Rule(1.0, 0.05, 3, 20)) for k in (2, 5)]
    for world, (k, n, rule) in itertools.product(WORLDS, (*fixed, *until)):
        cell = range(studies // 4 if rule else studies)
        found = [compared(noise(world, random, k, n), rule) for _ in cell]
        wrong, sure = np.mean([(bool(one), any(x.sure for x in one)) for one in found], axis=0)
        yield f"{world}: {k} settings, {'until' if rule else 'with'} {n} seeds: {wrong:.1%} wrong, {sure:.1%} sure"


def of_power(random: np.random.Generator, studies: int) -> Iterator[str]:
    """Two settings as many deviations of a value apart: how often one is better, decided or even sure."""
    for apart, n in itertools.product((1.0, 1.5, 2.0, 3.0), (5, 10)):
        found = [compared(random.normal([[apart], [0.0]], 1, (2, n))) for _ in range(studies)]
        decided, sure = np.mean([(bool(one), any(x.sure for x in one)) for one in found], axis=0)
        yield f"{apart} deviations apart, {n} seeds: {decided:.0%} decided, {sure:.0%} sure"


def of_given(random: np.random.Generator, studies: int) -> Iterator[str]:
    """Five settings 0.4 deviations apart: how often the interval that a decision is printed with covers."""
    for n, times in ((3, 10), (5, 3), (10, 1)):  # few seeds decide little
        held = []
        for _ in range(studies * times):
            for one in compared(random.normal(0.4 * np.arange(5)[:, None], 1, (5, n))):
                true = 0.4 * (int(one.first) - int(one.second))
                corrected = one.low_corrected <= true <= one.high_corrected
                given = one.given_decision[0] <= true <= one.given_decision[1]
                said = "given the decision" in sentence(one.better_first(), "points")
                held.append((corrected, given if said else corrected))
        every, own = np.mean(held, axis=0)
        yield f"{n} seeds, {len(held)} decisions: for all pairs {every:.1%} cover, as said {own:.1%}"


def of_ties(random: np.random.Generator, studies: int) -> Iterator[str]:
    """Settings as far apart as the margin, 40 samples: how often they are equivalent, or the worse one better."""
    for gap, alike, first, last in itertools.product((0.5, 1, 2), (1, 0), (2, 3, 5), (20, None)):
        drawn = random.random((2, studies, 20, 40))
        win, lose = drawn[0] < gap / 100 + 0.002, drawn[0] > 0.998
        if not alike:
            win, lose = drawn[0] < 0.97, drawn[1] < 0.97 - gap / 100
        moved = 2.5 * (win.sum(axis=2) - lose.sum(axis=2))
        found = [decide(one, gap, 0.05, Looks(first, last)).verdict for one in moved.tolist()]
        wrong = (found.count("equivalent") + found.count("worse")) / studies
        kind = "mostly the same answers" if alike else "97 % each"
        yield f"{gap} points apart, {kind}, looks from {first} on{' to 20' * bool(last)}: {wrong:.1%}"


def of_advice(random: np.random.Generator, studies: int) -> Iterator[str]:
    """Nothing differs, and seeds are added as advised: studies with a wrong decision."""
    for k, first, cap in ((2, 3, 20), (3, 3, 20), (3, 5, 20), (3, 3, 50)):
        share = np.mean([advised(random, k, first, cap) for _ in range(studies)])
        yield f"{k} settings, {first} seeds first, at most {cap}: {share:.1%}"


ROWS = {
    "noise": of_noise,
    "power": of_power,
    "given": of_given,
    "ties": of_ties,
    "advice": of_advice,
}
(parser := argparse.ArgumentParser(description=__doc__)).add_argument("rows", nargs="*")
parser.add_argument("--studies", type=int, default=2000)
asked = parser.parse_args()
for row in asked.rows or ROWS:
    for line in ROWS[row](np.random.default_rng(0), asked.studies):
        print(f"{row}: {line}", flush=True)
