"""The question of a sweep: the seeds that it takes, as registered at the start, and as its report answers it."""

import math
from collections.abc import Iterator, Mapping

from flray.records.directory import flatten_settings
from flray.results.power import ALPHA, UNSURE, seeds_to_detect, uncertain_std
from flray.results.result_set import ResultSet
from flray.results.study import Studies

_OF_SWEEP = ("metric", "mode", "places", "reference", "repeat", "seeds", "until")
_PARTS = (*(f"sweep.{name}" for name in _OF_SWEEP), "evaluation.last", "evaluation.protocol")
"""Settings that make up the question, or that hold such settings."""
AFTERWARDS = (
    "the reference {} was chosen afterwards, so tests and intervals are corrected for all pairs"
)


def registered_question(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that make up the question of a sweep.

    Parameters
    ----------
    settings : mapping
        The sweep's settings by path, as recorded when it started.
    """
    return {
        path: value
        for path, value in settings.items()
        if any(path == part or path.startswith(f"{part}.") for part in _PARTS)
    }


def registered_reference(source: ResultSet) -> str | None:
    """Return the reference that a sweep registered; None if it asked for all pairs."""
    now = (source.config.get("sweep") or {}).get("reference")
    found = source.registered.get("sweep.reference", str(now))
    return None if found == str(None) else found


def question_lines(source: ResultSet, found: Studies) -> Iterator[str]:
    """Yield the registered question, and how the report differs from it, unless nothing is compared.

    Parameters
    ----------
    source : ResultSet
        The sweep.
    found : Studies
        The comparisons of its report.
    """
    if not found.each or not source.registered:
        return
    reference = registered_reference(source)
    asked = f"all against {reference}" if reference else "all pairs"
    if margin := source.registered.get("sweep.until.margin"):
        most = source.registered.get("sweep.until.at_most", "")
        asked += f", until decided at a margin of {margin} or at {most} seeds"
    taken = sum(bool(trial.taken_over) for trial in source.trials)
    if taken:
        asked += f"; when it was asked, {taken} of {len(source.trials)} runs had ended elsewhere"
    differs = "; ".join(_differences(source, found, reference))
    yield f"not as registered ({asked}): {differs}" if differs else f"as registered: {asked}"


def forecast(found: Studies, seconds: float, difference: float) -> Iterator[str]:
    """Yield by measure the seeds, trials and hours that it takes to see a difference.

    Parameters
    ----------
    found : Studies
        The comparisons of a pilot: the same settings at a few seeds.
    seconds : float
        Mean training time of one of its trials.
    difference : float
        In the unit of the measure, for shares points of percent.
    """
    for measure in dict.fromkeys(study.measure for study in found.each):
        studies = [study for study in found.each if study.measure == measure]
        pairs = [one for study in studies for one in study.differences if one.std > 0]
        if any(one.repeated for one in pairs):
            yield f"{measure}: not known, because seeds of the pilot share draws of the data or tunings"
            continue
        if not pairs:
            yield f"{measure}: not known, because the pilot has no pair with two seeds that vary"
            continue
        std = math.sqrt(sum(one.std**2 for one in pairs) / len(pairs))
        freedom = min(one.seeds for one in pairs) - 1
        level = ALPHA / max(one.pairs for one in pairs)
        count, few, many = (
            seeds_to_detect(one, difference, level)
            for one in (std, *(uncertain_std(std, freedom, chance) for chance in UNSURE))
        )
        unit = f" {studies[0].unit}" if studies[0].unit else ""
        unit = unit.removesuffix("s") if difference == 1 else unit
        head = f"{measure}: a difference of {difference:g}{unit} would probably be seen (4 times in 5) "
        settings = sum(len(study.values) for study in studies)
        if count is None:
            yield f"{head}with more than 1,000 seeds of {settings} settings"
            continue
        most = "over 1,000" if many is None else str(many)
        text = f"{head}with {count} seeds ({few} to {most}): {settings * count} trials"
        if math.isfinite(hours := settings * seconds / 3600):
            longest = "more" if many is None else f"{hours * many:.2g}"
            least = f"{hours * (few or count):.2g}"
            text += f", {hours * count:.2g} hours of training ({least} to {longest})"
        yield f"{text}; mean deviation of the differences {std:.2g} at {freedom + 1} seeds"


def _differences(source: ResultSet, found: Studies, reference: str | None) -> Iterator[str]:
    shown = found.each[0].reference
    if shown is None and reference is not None:
        yield f"{reference} has no values, so all pairs are compared"
    elif shown != reference:
        yield AFTERWARDS.format(shown)
    evaluation = source.config["experiment"]["evaluation"]
    now = dict(flatten_settings(source.config.get("sweep") or {}, "sweep."))
    now |= flatten_settings(evaluation, "evaluation.")
    for path, before in source.registered.items():
        if path != "sweep.reference" and now.get(path, before) != before:
            yield f"{path} is {now[path]} and was {before}"
