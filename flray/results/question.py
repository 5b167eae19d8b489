"""The question that a sweep registered at its start, beside the one that its report answers."""

from collections.abc import Iterator, Mapping

from flray.records.directory import flatten_settings
from flray.results.result_set import ResultSet
from flray.results.study import Studies

_PARTS = (
    "sweep.metric",
    "sweep.mode",
    "sweep.places",
    "sweep.reference",
    "sweep.repeat",
    "sweep.seeds",
    "sweep.until",
    "evaluation.last",
    "evaluation.protocol",
)
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


def _differences(source: ResultSet, found: Studies, reference: str | None) -> Iterator[str]:
    if found.each[0].reference != reference:
        yield AFTERWARDS.format(found.each[0].reference)
    evaluation = source.config["experiment"]["evaluation"]
    now = dict(flatten_settings(source.config.get("sweep") or {}, "sweep."))
    now |= flatten_settings(evaluation, "evaluation.")
    for path, before in source.registered.items():
        if path != "sweep.reference" and now.get(path, before) != before:
            yield f"{path} is {now[path]} and was {before}"
