"""The conclusions of a sweep, in sentences."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from flray.results.paired import Difference
from flray.results.ranks import Ranks, elsewhere
from flray.results.sequential import ALPHA, UNSURE, detectable_difference, seeds_of_signs
from flray.results.study import DRAWS, PARTITIONS, TUNINGS, Studies, Study

ONE_SEED = "one seed: no difference can be told from chance; give at least three in sweep.seeds"
_NOTICED = 0.025
"""Share of an interval's width by which another has to exceed it to be printed beside it."""
_MARGIN, _RIVALS = 1.0, 3
"""Points that do not matter between data sets unless ``sweep.until`` has a margin; compared settings there."""
_ALL_PAIRS, _LINES, _WORTH = 6, 24, 100
"""Pairs up to which each has a sentence, with more only those of the best setting; sentences in all; seeds up to which
more of them are advised."""


def conclude(found: Studies) -> list[str]:
    """Return the conclusions, one sentence each; empty if nothing was compared.

    Parameters
    ----------
    found : Studies
        The comparisons.
    """
    lines = []
    most = max(3, _LINES // max(1, len(found.each)))
    measures = {study.measure for study in found.each}
    for measure, ranks in found.ranks.items():
        head = f"{measure}: " if len(measures) > 1 else ""
        lines.append(head + rank_sentence(ranks))
        lines += [head + line for line in _elsewhere(found, measure, ranks)]
    for study in found.each:
        head = found.title(study)
        lines += [f"{head}: {line}" if head else line for line in _of_study(study, most)]
    # The intervals do not hold for other members of levels that did not vary.
    levels = {DRAWS: "one draw of the data", PARTITIONS: "one partition", TUNINGS: "one tuning"}
    fixed = [
        name
        for level, name in levels.items()
        if found.each
        and all(len({*study.levels.get(level, {}).values()} - {""}) == 1 for study in found.each)
    ]
    held = [f"held fixed throughout: {' and '.join(fixed)}"] if fixed else []
    return [*lines, *held, *_until(found), *found.left_out]


def _elsewhere(found: Studies, measure: str, ranks: Ranks) -> Iterator[str]:
    """Yield how the best-ranked setting would do against the next ones in a further place like these."""
    studies = [one for one in found.each if one.measure == measure and one.place in ranks.places]
    if math.isinf(ranks.critical) or not all(study.unit for study in studies):
        return
    margin = next((study.rule.margin for study in studies if study.rule), _MARGIN)
    best, *others = ranks.names
    for other in others[:_RIVALS]:
        pairs = [
            one
            for study in studies
            for one in replace(
                study,
                values={name: study.values[name] for name in (best, other)},
                reference=other,
                rule=None,
            ).differences
        ]
        # Seeds that share draws or that one failed at give no such probability.
        if any(one.repeated or one.first_failed or one.second_failed for one in pairs):
            continue
        sign = -1.0 if studies[0].lower else 1.0
        answer = elsewhere(
            [sign * one.mean for one in pairs],
            [one.std for one in pairs],
            [one.seeds for one in pairs],
            margin,
        )
        if answer is not None:
            better, equivalent, worse = answer
            yield (
                f"in a further place like these {len(pairs)}: {best} better than {other} by more than "
                f"{margin:g} point{'s' * (margin != 1)} with probability {better:.2f}, within that "
                f"{equivalent:.2f}, worse {worse:.2f}"
            )


def _of_study(study: Study, most: int) -> Iterator[str]:
    if max(map(len, study.values.values())) < 2:
        yield ONE_SEED
        return
    best = next(iter(study.means))
    every = [one.better_first() for one in study.differences]
    few = len(every) <= _ALL_PAIRS or study.reference in study.values
    shown = [one for one in every if few or best in (one.first, one.second)]
    shown.sort(key=lambda one: (not one.decided, -abs(one.mean) if one.seeds else 0.0))
    rest = [one for one in every if one not in shown] + shown[most:]
    for one in shown[:most]:
        yield sentence(one, study.unit)
    if rest:
        decided = sum(one.decided for one in rest)
        yield (
            f"{len(rest)} further pair{'s' * (len(rest) > 1)}: {decided} decided, "
            f"{len(rest) - decided} not (all are in comparisons.csv of the report)"
        )
    yield from _detectable(every, study.unit)
    yield from _normality(every)


def sentence(one: Difference, unit: str) -> str:
    """Return the sentence on a comparison of two settings.

    Parameters
    ----------
    one : Difference
        The comparison, with the better setting as the first.
    unit : str
        The unit of the difference; empty for none.
    """
    failed = [
        f"; {name} failed at {how}"
        for name, how in ((one.first, one.first_failed), (one.second, one.second_failed))
        if how
    ]
    return _without_failures(one, unit) + "".join(failed)


def _without_failures(one: Difference, unit: str) -> str:
    pair = f"{one.first} and {one.second}"
    if one.seeds < 2:
        count = "no common seed" if one.seeds == 0 else "1 common seed"
        return f"{pair}: not decided, {count}"
    if one.verdict == "equivalent":
        interval = (
            f"{_number(one, one.low_corrected, unit)} to {_number(one, one.high_corrected, unit)}"
        )
        of = "" if not unit else " point" if one.margin == 1 else " points"
        return f"{pair}: equivalent within {one.margin:.3g}{of} ({_level(one, 2)} {interval}, {one.seeds} seeds)"
    if one.std == 0:
        apart = f"{_amount(one, abs(one.mean), unit)} apart" if one.mean else "equal"
        return (
            f"{pair}: not decided, {apart} at each of {one.seeds} seeds, which without any spread "
            "cannot be tested"
        )
    amount = _amount(one, abs(one.mean), unit)
    side = "below" if one.lower else "above"
    if one.verdict == "withheld":
        return (
            f"{pair}: not decided, because one that failed does not win; at the {one.seeds} seeds that "
            f"both have {one.first} is {amount} {side}"
        )
    if one.verdict == "contradictory":
        return (
            f"{pair}: not decided, {one.first} {amount} {side} ({one.seeds} seeds); the interval "
            "after some of the seeds excludes that after others, so that the differences are "
            "neither normal nor independent: look at them before you trust a test"
        )
    low, high = one.low_corrected, one.high_corrected
    if one.lower:
        low, high = -high, -low
    interval = f"{one.repeated}, {one.seeds} runs" if one.repeated else f"{one.seeds} seeds"
    if one.sequential and math.isnan(one.margin):
        interval += f", looked at before at {one.first_look}"
    if math.isnan(low):
        interval += ", too few for an interval"
    else:
        ends = f"{_number(one, low, unit)} to {_number(one, high, unit)}"
        interval = f"{_level(one)} {ends}, {interval}"
    if one.decided:
        least, most = sorted((-end if one.lower else end) for end in one.given_decision)
        noticed = _NOTICED * (high - low)
        if least <= 0 or least < low - noticed or most > high + noticed:
            told = f"{_number(one, least, unit)} to {_number(one, most, unit)}"
            interval += f"; given the decision {told}"
        how = f", lower by {amount}" if one.lower else f" by {amount}"
        alone = "; by the t-test alone: the sign-flip test does not decide"
        doubt = f"; look at the seeds: their differences are {one.doubt}" if one.doubt else ""
        loss = f"; one more seed {_amount(one, one.undone_by, unit)} worse than their mean would undo it"
        return (
            f"{one.first} {'is' if one.sure else 'seems'} better than {one.second}{how} ({interval})"
            f"{alone if one.on_normality == 'alone' else ''}{doubt}"
            f"{loss if math.isfinite(one.undone_by) else ''}"
        )
    among = f" among {one.pairs} pairs" if one.pairs > 1 and one.p < one.alpha else ""
    return (
        f"{pair}: not decided{among}, {one.first} {amount} {side} ({interval})"
        f"{_more_seeds(one, unit)}"
    )


def _level(one: Difference, sides: int = 1) -> str:
    """Return the level of an interval that can be wrong at one end, or at either."""
    return f"{100 * (1 - sides * one.alpha):.3g} % interval{' for all pairs' * (one.pairs > 1)}"


def _more_seeds(one: Difference, unit: str) -> str:
    """Return how many seeds it takes to see a difference like this one, or a point if it is less."""
    if one.repeated:
        return ""
    wanted = _wanted(one, unit)
    what = f"a difference of {'1 point' if unit and wanted == 1 else _amount(one, wanted, unit)}"
    needed = one.seeds_for(wanted)
    if needed is None:
        return f"; more than 1,000 seeds for {what}" if wanted else ""
    more = needed - one.seeds
    if more <= 0 or (not one.sequential and one.detectable <= wanted):
        return f"; {what} would probably have been seen"
    few, many = (one.seeds_for(wanted, chance) for chance in UNSURE)
    least = max(0, (few or needed) - one.seeds)
    most = "over 1,000" if many is None else str(many - one.seeds)
    return f"; about {more} more seed{'s' * (more > 1)} ({least} to {most}) for {what}"


def _wanted(one: Difference, unit: str) -> float:
    """Return the difference that seeds are to be added for."""
    least = float(bool(unit)) if math.isnan(one.margin) else one.margin
    return max(least, abs(one.mean))


def _until(found: Studies) -> Iterator[str]:
    """Yield how to add seeds so that the test allows for it, if that may decide something."""
    seeds, most, least = 0, 0, math.inf
    for study in found.each:
        for one in study.differences if study.rule is None and not found.closed else ():
            seeds = max(seeds, one.seeds)
            wanted = _wanted(one, study.unit)
            # Until decided, the places share alpha.
            needed = (
                replace(one, alpha=one.alpha / len(found.each)).seeds_for(wanted)
                if one.std > 0 and not one.verdict and not one.repeated
                else None
            )
            if needed is not None and one.seeds < needed <= _WORTH:
                most, least = max(most, needed), min(least, 1 if study.unit else wanted)
    if most > seeds:
        reference = found.each[0].reference
        yield (
            "seeds that are added now have to be tested as a further look, so let a sweep add them: "
            f"sweep.until: {{margin: {least:.2g}, alpha: {ALPHA}, at_least: {seeds}, at_most: {most}}}"
            + (f" and sweep.reference: {reference}" if reference else "")
        )


def _detectable(every: Sequence[Difference], unit: str) -> Iterator[str]:
    """Yield the difference that these seeds could have detected of the pairs that are not decided."""
    tested = [
        one
        for one in every
        if one.seeds > 1 and one.std > 0 and not (one.decided or one.sequential or one.repeated)
    ]
    if not tested:
        return
    seeds = Counter(one.seeds for one in tested).most_common(1)[0][0]
    same = [one for one in tested if one.seeds == seeds]
    std = math.sqrt(float(np.mean([one.std**2 for one in same])))
    least = detectable_difference(std, seeds, ALPHA / same[0].pairs)
    yield (
        f"with {seeds} seeds only differences above about {_amount(same[0], least, unit)} would "
        "probably have been seen (4 times in 5)"
    )


def _normality(every: Sequence[Difference]) -> Iterator[str]:
    """Yield a line if no test without normal differences could have made some decision."""
    few = [one for one in every if one.on_normality == "not checked"]
    if few:
        seeds = "/".join(str(count) for count in sorted({one.seeds for one in few}))
        enough = seeds_of_signs(few[0].alpha / few[0].pairs)
        yield (
            f"decisions at {seeds} seeds take the differences to be normal; from {enough} seeds on a "
            "sign-flip test, which does not, is made beside"
        )


def rank_sentence(ranks: Ranks) -> str:
    """Return the sentence on mean ranks over several places."""
    count = len(ranks.places)
    listed = ", ".join(
        f"{name} {mean:.2f}" for name, mean in zip(ranks.names, ranks.means, strict=True)
    )
    text = f"mean ranks over {count} places ({', '.join(ranks.places)}): {listed}"
    if ranks.means[0] < ranks.means[1]:
        swayed = f"but not without {' or '.join(ranks.swayed)}" if ranks.swayed else ""
        text += f"; {ranks.names[0]} is first, {swayed or 'also without any one of them'}"
    if math.isinf(ranks.critical):
        return f"{text}; not tested, because places have the same data"
    if not math.isnan(ranks.p) and ranks.p >= ALPHA:
        test = "Friedman" if len(ranks.names) > 2 else "sign test"
        return f"{text}; not decided ({test} p = {ranks.p:.2f})"
    told = [
        (first, second)
        for i, first in enumerate(ranks.names)
        for j, second in enumerate(ranks.names[i + 1 :], i + 1)
        if ranks.means[j] - ranks.means[i] >= ranks.critical and first not in ranks.failed
    ]
    critical = f"critical difference {ranks.critical:.2f}"
    if ranks.failed:
        critical += f"; {', '.join(ranks.failed)} failed at some seeds and cannot rank above others"
    if not told:
        return f"{text}; not decided ({critical})"
    by_first = {first: [b for a, b in told if a == first] for first, _ in told}
    said = "; ".join(f"{first} ranks above {', '.join(names)}" for first, names in by_first.items())
    return f"{text}; {said} ({critical})"


def _amount(one: Difference, value: float, unit: str) -> str:
    number = _number(one, value, unit)
    return f"{number} {unit}" if unit else number


def _number(one: Difference, value: float, unit: str) -> str:
    """Return a number with as many digits as the interval carries, and one more rather than 0.0."""
    if not unit:
        return f"{value:.3g}"
    wide = not one.high_corrected - one.low_corrected < 1
    text = f"{value:.{1 if wide and round(value, 1) else 2}f}"
    return text.lstrip("-") if float(text) == 0 else text
