"""Simulated studies in which nothing differs: the share with a wrong decision, and with one that is not marked.

    python scripts/checks/conclusions.py --studies 2000

Marked: the sign-flip test does not share or cannot check it, or its differences are seen not to be normal or
independent. The last lines follow the advice to add seeds.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from flray.config import yaml_files
from flray.results.export import read_export
from flray.results.paired import compare

KEPT = ("fedskc/local", "fedskc/local-lt")
WORLDS = ("normal", "one setting loses 10 points in 1 seed of 10", "drift, AR(1) 0.5", *KEPT)


def noise(world: str, random: np.random.Generator, k: int, n: int) -> NDArray[np.float64]:
    """Return values of settings by seed; kept results are centred, and their seeds drawn with replacement."""
    if world in KEPT:
        frame = read_export(yaml_files.folder() / "papers" / f"{world}.results.csv")
        table = frame.pivot(index="arms.method", columns="seed", values="value").to_numpy()
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
        look |= dict.fromkeys(
            range(len(look), min(n for n in (*needed, cap + 1) if n > len(look))), 1
        )
    return False


(parser := argparse.ArgumentParser(description=__doc__)).add_argument(
    "--studies", type=int, default=2000
)
studies, random = parser.parse_args().studies, np.random.default_rng(0)
for world in WORLDS:
    for k, n in ((2, 5), (2, 10), (3, 10), (5, 10), (10, 10)):
        wrong = np.zeros(2)
        for _ in range(studies):
            rows = enumerate(noise(world, random, k, n).tolist())
            decided = [
                o for o in compare({str(i): dict(enumerate(r)) for i, r in rows}) if o.decided
            ]
            plain = [o for o in decided if o.on_normality == "not needed" and not o.doubt]
            wrong += [bool(decided), bool(plain)]
        print(
            f"{world}: {k} settings, {n} seeds: {wrong[0] / studies:.1%}, {wrong[1] / studies:.1%}"
        )
for k, first, cap in ((2, 3, 20), (3, 3, 20), (3, 5, 20), (3, 3, 50)):
    share = np.mean([advised(random, k, first, cap) for _ in range(studies)])
    print(f"advice: {k} settings, {first} seeds first, at most {cap}: {share:.1%}")
