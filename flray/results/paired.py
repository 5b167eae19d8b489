"""Pairwise comparisons of settings, seed by seed."""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import NDArray

from flray.results import sequential
from flray.results.sequential import Decision, Looks, Verdict, decide, half_width, spread

METHOD = (
    "paired t-tests over the seeds that two settings share, two-sided; tests and intervals are "
    "corrected after Bonferroni for all pairs that are compared"
)
_CHECKED, _DOUBT = 5, 0.01
"""Differences that can be checked for normality and drift, and the level that says something."""
_OPPOSITE: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}

Values = Mapping[str, Mapping[Any, float]]
"""By setting, the values by seed (or by what else is paired)."""
Failed = Mapping[str, Mapping[Any, str]]
"""By setting, why it failed, by the seeds at which it did."""
Levels = Mapping[str, Mapping[Any, str]]
"""By level of repetition (``draws of the data``, ``tunings``), the member that each seed belongs to."""
Added = Mapping[str, Mapping[Any, int]]
"""By setting and seed, after how many looks at the others a value was added; one that is not there: after none."""


@dataclass(frozen=True)
class Difference:
    """Two settings at the seeds they share.

    Attributes
    ----------
    first, second : str
        The settings.
    seeds : int
        The number of seeds that they share.
    mean : float
        Mean of first minus second; NaN without a common seed.
    std : float
        Standard deviation of the differences (n - 1); NaN with fewer than two seeds.
    low, high : float
        Interval of the mean at `alpha`, after Student's t or as a confidence sequence; NaN if the
        differences do not vary.
    low_corrected, high_corrected : float
        The same at the level `alpha` over `pairs`, which decides pairs. All pairs' intervals hold at
        once with probability 1 - `alpha`; a pair is decided if its interval excludes zero.
    p : float
        The two-sided p-value of the paired t-test; NaN if the differences do not vary.
    corrected : float
        The same times `pairs` (Bonferroni), at most 1.
    p_signs : float
        The p-value of the sign-flip test, which does not take the differences to be normal; NaN if
        seeds were added after a look, or if values share a draw.
    improvement : float
        Share of the seeds whose first value is better; equal values count half.
    lower : bool
        Whether less is better.
    pairs : int
        Pairs that were compared with each other.
    alpha : float
        Chance that any of the intervals misses its mean.
    margin : float
        The two are equivalent within it; NaN if equivalence was not tested.
    first_look, last_look : int
        Seeds at the first of several looks, and at the last if it was fixed beforehand; 0 if all
        seeds were there at once, or if it was not.
    verdict : str
        The verdict on the first setting, see `flray.results.sequential.Verdict`.
    repeated : str
        The repeated levels with their numbers, such as ``3 draws of the data``. The
        interval holds for other ones of them, see `_clustered`; empty if seeds share none of them.
    first_failed, second_failed : str
        The number of seeds that each failed at, and the reason; empty without failures. The remaining
        seeds may be the easy ones. Therefore a setting that failed at a seed can be worse than
        another, but neither better nor equivalent.
    doubt : str
        Of a decided pair, a sign that its differences are not normal, or not independent of each other.
    freedom : float
        Degrees of freedom of the t-test; NaN if seeds were added after a look.
    farthest : float
        The farthest that a value of the two lies from its setting's mean.
    """

    first: str
    second: str
    seeds: int
    mean: float
    std: float
    low: float
    high: float
    low_corrected: float
    high_corrected: float
    p: float
    corrected: float
    improvement: float
    lower: bool = False
    pairs: int = 1
    alpha: float = sequential.ALPHA
    margin: float = math.nan
    verdict: Verdict = ""
    first_look: int = 0
    last_look: int = 0
    repeated: str = ""
    first_failed: str = ""
    second_failed: str = ""
    p_signs: float = math.nan
    doubt: str = ""
    freedom: float = math.nan
    farthest: float = math.nan

    @property
    def sequential(self) -> bool:
        """Whether seeds were added after a look."""
        return self.first_look > 0

    @property
    def decided(self) -> bool:
        """Whether one is better."""
        return self.verdict in ("better", "worse")

    def better_first(self) -> "Difference":
        """Return the same with the better of the two as the first."""
        if math.isnan(self.mean) or (self.mean <= 0 if self.lower else self.mean >= 0):
            return self
        return replace(
            self,
            first=self.second,
            second=self.first,
            mean=-self.mean,
            low=-self.high,
            high=-self.low,
            low_corrected=-self.high_corrected,
            high_corrected=-self.low_corrected,
            improvement=1 - self.improvement,
            verdict=_OPPOSITE.get(self.verdict, self.verdict),
            first_failed=self.second_failed,
            second_failed=self.first_failed,
        )

    @property
    def on_normality(self) -> Literal["not needed", "not checked", "alone"]:
        """Whether a decision rests on normal differences.

        ``not checked``: with so few seeds no test without that assumption can decide. ``alone``: the
        sign-flip test could decide, and does not.
        """
        level = self.alpha / self.pairs
        if not self.decided or math.isnan(self.p_signs) or self.p_signs <= level:
            return "not needed"
        return "alone" if self.seeds >= sequential.seeds_of_signs(level) else "not checked"

    @property
    def given_decision(self) -> tuple[float, float]:
        """The interval of a decided pair that allows for its being decided, see `sequential.given_decision`.

        NaN if it is not decided, or if seeds were added after a look.
        """
        if not self.decided or math.isnan(self.freedom):
            return math.nan, math.nan
        halves = self.high - self.mean, self.high_corrected - self.mean
        return sequential.given_decision(self.mean, *halves, self.freedom)

    @property
    def undone_by(self) -> float:
        """How much worse than the mean one more seed has to be to undo a decision; infinite if values vary less.

        That is, if it is more than twice the farthest that a value of the two lies from its setting's mean.
        """
        if not self.decided or self.repeated:
            return math.inf
        level = self.alpha / self.pairs
        critical = float(scipy.special.stdtrit(self.seeds, 1 - level / 2))
        if self.sequential:
            last = self.last_look if self.seeds <= self.last_look else None
            count = min(self.seeds + 1, last or math.inf)
            looks = Looks(self.first_look, last)
            critical = float(half_width(1.0, count, level, looks)) * math.sqrt(count)
        loss = sequential.undoing_loss(abs(self.mean), self.std, self.seeds, critical)
        return loss if loss < 2 * self.farthest else math.inf

    @property
    def sure(self) -> bool:
        """Whether no `doubt`, sign test, further seed, or interval given the decision speaks against the test."""
        low, high = self.given_decision
        stays = math.isinf(self.undone_by) and not low <= 0 <= high
        return stays and not self.doubt and self.on_normality != "alone"

    @property
    def detectable(self) -> float:
        """The difference that these seeds would probably have shown; see `detectable_difference`."""
        return sequential.detectable_difference(self.std, self.seeds, sequential.ALPHA / self.pairs)

    def seeds_for(self, difference: float, chance: float | None = None) -> int | None:
        """Return the number of seeds that would probably show a difference; see `seeds_needed`.

        Parameters
        ----------
        difference : float
            The difference to detect.
        chance : float, optional
            With this probability fewer are enough, because the true deviation is as uncertain as few
            seeds leave it; by default the deviation is taken as it is.
        """
        std = self.std
        if chance is not None and self.seeds > 1:
            std = sequential.uncertain_std(std, self.seeds - 1, chance)
        return sequential.seeds_needed(std, difference, self.alpha / self.pairs)


@dataclass(frozen=True)
class Rule:
    """How pairs are decided that are looked at after every seed.

    Attributes
    ----------
    margin : float
        Within it two settings are equivalent.
    alpha : float
        Chance that any decision is wrong, over all pairs.
    at_least : int
        Seeds at the first look.
    at_most : int, optional
        Seeds at the last look; by default it was not fixed beforehand.
    """

    margin: float
    alpha: float
    at_least: int
    at_most: int | None = None


def compare(
    values: Values,
    lower: bool = False,
    reference: str | None = None,
    rule: Rule | None = None,
    failed: Failed | None = None,
    looks: Added | None = None,
    levels: Levels | None = None,
    afterwards: bool = False,
) -> list[Difference]:
    """Compare all pairs of settings, or all settings with one of them.

    Parameters
    ----------
    values : mapping
        By setting, the values by seed; values that are not finite do not count.
    lower : bool
        Whether less is better.
    reference : str, optional
        The setting that all others are compared with, as the second of each pair.
    rule : Rule, optional
        The rule for adding seeds, if they were added until pairs were decided; the values are in the
        order of their addition.
    failed, looks : mapping, optional
        See `Failed` and `Added`. If seeds were added after a look at fewer, pairs are decided as if
        there had been a look after each seed without a last one; a `rule` has other looks, and a
        last one unless there were others before.
    levels : mapping
        See `Levels`. Seeds that share one of them are not independent: the interval of a pair is as
        wide as the variation between them asks for.
    afterwards : bool
        Whether the reference was chosen when the values were there, so that all pairs count.
    """
    if reference is None:
        pairs = list(itertools.combinations(values, 2))
    else:
        pairs = [(name, reference) for name in values if name != reference]
    found, count = [], math.comb(len(values), 2) if afterwards else len(pairs)
    for first, second in pairs:
        seeds, differences, before = _shared(first, second, values, looks or {})
        one = _difference(first, second, differences, lower, count)
        own = np.array([[values[name][seed] for seed in seeds] for name in (first, second)])
        if seeds:
            one = replace(one, farthest=float(np.abs(own - own.mean(axis=1, keepdims=True)).max()))
        if shared := _crossed(seeds, levels or {}):
            one = _clustered(one, differences, shared, before)
            found.append(_with_failures(one, values, failed or {}))
            continue
        looked = rule or (Rule(math.nan, sequential.ALPHA, before) if before else None)
        looked = replace(looked, at_most=None) if looked is not None and before else looked
        one = one if looked is None else _sequential(one, differences, looked)
        one = replace(one, doubt=_doubt(differences)) if one.decided else one
        found.append(_with_failures(one, values, failed or {}))
    return found


def _with_failures(one: Difference, values: Values, failed: Failed) -> Difference:
    """Return a comparison that no setting wins by the seeds that it did not fail at."""

    def told(name: str) -> str:
        reasons = failed.get(name, {})
        why = textwrap.shorten(next(filter(None, reasons.values()), "").partition("\n")[0], 100)
        count = f"{len(reasons)} of {len(reasons) + len(values[name])} seeds"
        return count + f" ({why})" * bool(why) if reasons else ""

    first, second = told(one.first), told(one.second)
    wins = {"better": first, "worse": second, "equivalent": first or second}
    verdict: Verdict = "withheld" if wins.get(one.verdict) else one.verdict
    return replace(one, first_failed=first, second_failed=second, verdict=verdict)


def _shared(
    first: str, second: str, values: Values, looks: Added
) -> tuple[list[Any], NDArray[np.float64], int]:
    """Return the seeds that both have, the differences at them, and how many were looked at before the others."""
    one, other = values[first], values[second]
    seeds = [s for s in one if s in other and math.isfinite(one[s]) and math.isfinite(other[s])]
    added = {seed: max(looks.get(n, {}).get(seed, 0) for n in (first, second)) for seed in seeds}
    seeds.sort(key=lambda seed: added[seed])
    before = sum(look == min(added.values()) for look in added.values())
    differences = np.array([one[seed] - other[seed] for seed in seeds], dtype=float)
    # One seed has no interval: nothing can have been decided by it.
    return seeds, differences, before if 1 < before < len(seeds) else 0


def _difference(
    first: str, second: str, differences: NDArray[np.float64], lower: bool, pairs: int
) -> Difference:
    count = len(differences)
    mean = std = p = improvement = math.nan
    own = corrected = (math.nan, math.nan)
    if count:
        mean = float(differences.mean())
        gains = -differences if lower else differences
        improvement = float(np.mean((gains > 0) + 0.5 * (gains == 0)))
    if count > 1:
        std = spread(differences)
        if std > 0:
            own, corrected, p = _test(mean, std / math.sqrt(count), count - 1, pairs)
    return Difference(
        first,
        second,
        count,
        mean,
        std,
        *own,
        *corrected,
        p,
        min(p * pairs, 1.0),  # NaN stays NaN
        improvement,
        lower,
        pairs,
        verdict=sequential.verdict_of(*corrected, lower),
        p_signs=sequential.sign_flip_p(differences),
        freedom=count - 1,
    )


def _doubt(differences: NDArray[np.float64]) -> str:
    """Return the test that rejects normal or independent differences at 1 %, with its p-value; else nothing."""
    if len(differences) < _CHECKED:
        return ""
    normal = float(scipy.stats.shapiro(differences).pvalue)
    pairs = differences[:-1], differences[1:]
    drift = math.nan if 0 in map(spread, pairs) else float(scipy.stats.pearsonr(*pairs).pvalue)
    found = {"not normal (Shapiro-Wilk": normal, "not independent (neighbouring seeds": drift}
    return "; ".join(f"{text}, p = {p:.1g})" for text, p in found.items() if p < _DOUBT)


def _crossed(seeds: Sequence[Any], levels: Levels) -> dict[str, NDArray[np.int64]]:
    """Return by level which one each seed belongs to, without levels that make no difference.

    These are levels with one member, with one for each seed, or within another level.
    """
    found: dict[str, NDArray[np.int64]] = {}
    for name, of in levels.items():
        own = np.unique([of[seed] for seed in seeds], return_inverse=True)[1]
        if own.size and 0 < own.max() < len(seeds) - 1:
            found[name] = own

    def within(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
        return len(set(zip(one.tolist(), other.tolist(), strict=True))) == len(np.unique(one))

    kept: dict[str, NDArray[np.int64]] = {}
    for name, own in sorted(found.items(), key=lambda item: int(item[1].max())):
        if not any(within(own, other) for other in kept.values()):
            kept[name] = own
    return kept


def _clustered(
    one: Difference,
    differences: NDArray[np.float64],
    levels: Mapping[str, NDArray[np.int64]],
    before: int,
) -> Difference:
    """Return a comparison whose interval holds for other draws of all levels.

    The variance of the mean is the sum of the variances that the sums over each level's members
    show; for crossed levels that is at least the true one. Degrees of freedom after Satterthwaite.
    If `before` of the differences were looked at before, it is the latest of a confidence sequence of
    as many independent differences.
    """
    count, rest = len(differences), differences - one.mean
    parts = [
        (len(sums := np.bincount(own, rest)), float((sums**2).sum()) / count**2)
        for own in levels.values()
    ]
    variances = np.array([part * size / (size - 1) for size, part in parts])
    total = float(variances.sum())
    repeated = " x ".join(f"{size} {name}" for (size, _), name in zip(parts, levels, strict=True))
    if one.std == 0 or total <= 1e-24:
        return replace(one, std=0.0, verdict="", repeated=repeated)
    freedom = total**2 / float((variances**2 / [size - 1 for size, _ in parts]).sum())
    own, corrected, p = _test(one.mean, math.sqrt(total), freedom, one.pairs, before > 0)
    return replace(
        one,
        low=own[0],
        high=own[1],
        low_corrected=corrected[0],
        high_corrected=corrected[1],
        p=p,
        p_signs=math.nan,
        freedom=math.nan if before else freedom,
        corrected=min(p * one.pairs, 1.0),
        verdict=sequential.verdict_of(*corrected, one.lower),
        first_look=before,
        repeated=repeated,
    )


def _test(
    mean: float, error: float, freedom: float, pairs: int, looked: bool = False
) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Return a mean's interval, the interval that is corrected for all pairs, and the p-value of a mean of zero.

    They are those of a t-test, or of a confidence sequence; its interval is NaN if it has no ends.
    """
    levels, count = sequential.ALPHA / np.array([1, pairs]), freedom + 1
    if looked:
        std = error * math.sqrt(count)
        halves = [float(half_width(std, count, level)) for level in levels]
        p = sequential.p_value(mean, std, count)
    else:
        halves = (error * scipy.special.stdtrit(freedom, 1 - levels / 2)).tolist()
        p = float(2 * scipy.special.stdtr(freedom, -abs(mean) / error))
    own, corrected = (half if math.isfinite(half) else math.nan for half in halves)
    return (mean - own, mean + own), (mean - corrected, mean + corrected), p


def _sequential(one: Difference, differences: NDArray[np.float64], rule: Rule) -> Difference:
    """Return a comparison as one that was looked at after every seed."""
    gains = list(-differences if one.lower else differences)
    own, found = (
        decide(gains, rule.margin, rule.alpha / pairs, Looks(rule.at_least, rule.at_most))
        for pairs in (1, one.pairs)
    )
    low, high = _of_first(own, one.lower)
    low_corrected, high_corrected = _of_first(found, one.lower)
    return replace(
        one,
        low=low,
        high=high,
        low_corrected=low_corrected,
        high_corrected=high_corrected,
        p=own.p,
        p_signs=math.nan,
        freedom=math.nan,
        corrected=min(own.p * one.pairs, 1.0),
        alpha=rule.alpha,
        margin=rule.margin,
        first_look=rule.at_least,
        last_look=rule.at_most or 0,
        verdict=found.verdict,
    )


def _of_first(found: Decision, lower: bool) -> tuple[float, float]:
    """Return the interval of gains as one of first minus second; NaN if it has no ends."""
    if not -math.inf < found.low <= found.high < math.inf:
        return math.nan, math.nan
    return (-found.high, -found.low) if lower else (found.low, found.high)
