"""Comparisons of a result set: its finished trials, separately for each place (data or circumstances)."""

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flray.config.arms import PREFIX
from flray.config.experiment import is_place
from flray.metrics import is_lower_better_in
from flray.results import ResultSet, Trial, measures
from flray.results.load import load_folder
from flray.results.paired import Difference, Rule
from flray.results.study import (
    DRAWS,
    PARTITION_SEED,
    PARTITIONS,
    TUNINGS,
    Studies,
    Study,
    registered_reference,
)
from flray.results.table import Column, build_paper_table, column_value, has_arms

REPEATED = {"data.seed": DRAWS, PARTITION_SEED: PARTITIONS}
"""Settings whose values are repetitions, like seeds, unless ``sweep.places`` names them; the plural of each."""


def build_studies(source: ResultSet) -> Studies:
    """Return the comparisons of a sweep: finished trials only, and separately for each place."""
    stopped = {place_and_name(source, one) for one in source.trials if one.status == "stopped"}
    finished = [
        one
        for one in source.trials
        if one.status == "finished"
        and len(one.history)
        and place_and_name(source, one) not in stopped
    ]
    sweep = source.config.get("sweep") or {}
    chosen = sweep.get("search", "random") != "random" or sweep.get("scheduler")
    whole, left_out = [], {(*one, "stopped early") for one in stopped}
    for study in _group(source, finished) if finished else ():
        lacking = dict.fromkeys(study.failed, "failed at each of its seeds")
        for name, seeds in study.values.items():
            gaps = sum(not math.isfinite(one) for one in seeds.values())
            lacking[name] = f"no number at {gaps} of {len(seeds)} seeds" if gaps else ""
        # Clients that held other samples than those of most settings at some seed.
        lacking |= {
            name: "other samples or clients than the others"
            for held in study.partitions.values()
            for name, one in held.items()
            if one != Counter(held.values()).most_common(1)[0][0]
        }
        left_out |= {(study.place, *one) for one in lacking.items() if one[1]}
        kept = {
            name: seeds
            for name, seeds in study.values.items()
            if not lacking[name] and (study.place, name) not in stopped
        }
        whole += [replace(study, values=kept)] if len(kept) > 1 else []
    if until := sweep.get("until"):
        # Each place has its part of alpha, and within it each pair.
        alpha = until["alpha"] / max(1, len(whole))
        rule = Rule(until["margin"], alpha, until["at_least"], until["at_most"])
        whole = [replace(study, rule=rule) for study in whole]
    lines = sorted(f"{f'{at} {name}'.strip()}: {why}, not compared" for at, name, why in left_out)
    repeated = any(
        len({*study.levels.get(level, {}).values()} - {""}) > 1
        for study in whole
        for level in (DRAWS, PARTITIONS, TUNINGS)
    )
    return Studies(whole, lines, registered_reference(source), bool(chosen or repeated))


def _group(source: ResultSet, counted: list[Trial]) -> Iterator[Study]:
    """Yield a study for each place and measure, with the values of the trials that count; these have not failed.

    Of a paper's table these are the columns that are means over clients, or else all columns.
    """
    valued = set(map(id, counted))
    paper, columns, rows = source.paper if source.axes else None, [Column((), "auto")], ""
    if paper is not None:
        table = build_paper_table(replace(source, trials=counted), paper)
        columns = [one for one in table.columns if one.compared]
        rows = f"{PREFIX}{table.heading}"
    groups: dict[tuple[str, str], Study] = {}
    for column, one in itertools.product(columns, source.trials):
        if not has_arms(one, column.arms):
            continue
        place, name = place_and_name(source, one)
        if paper is not None:
            place, name = place_of(column), one.setting[rows]
        seed, levels = repetition(source, one)
        where = place, measure_of(column, source.metric)
        lower = is_lower_better_in(source.config.get("sweep"), where[1])
        # Whose mappings are filled here.
        study: Any = groups.setdefault(where, Study(*where, {}, lower=lower))
        study.looks.setdefault(name, {})[seed] = one.look
        if one.status == "failed":
            study.failed.setdefault(name, {})[seed] = one.failure
        if id(one) in valued:
            study.values.setdefault(name, {})[seed] = column_value(one, column, paper)
        if held := one.fingerprints.get("partition"):
            study.partitions.setdefault(seed, {})[name] = held
        for level, member in levels.items():
            known = study.levels.setdefault(level, {})
            known[seed] = member or known.get(seed, "")  # of an arm that was not tuned
    for study in groups.values():
        gone = {
            name: {seed: why for seed, why in at.items() if seed not in study.values.get(name, {})}
            for name, at in study.failed.items()
        }
        yield replace(study, failed={name: reasons for name, reasons in gone.items() if reasons})


def place_of(column: Column) -> str:
    """Return the place of a column in a paper's table: its rows are compared there."""
    client = () if column.client == measures.AVERAGE else (column.client,)
    return " ".join((*(arm for _, arm in column.arms), *client))


def measure_of(column: Column, metric: str) -> str:
    """Return the measure of a column, given the primary metric."""
    return metric if column.measure == "auto" else column.measure


def repetition(source: ResultSet, trial: Trial) -> tuple[Hashable, dict[str, str]]:
    """Return the key of a trial's repetition, and by level the member that it belongs to."""
    own = {
        name: str(trial.setting[name]) for name in repeated_columns(source) if name in trial.setting
    }
    levels = {
        DRAWS: trial.fingerprints.get("data", ""),
        PARTITIONS: fixed_partition(source),
        TUNINGS: str(trial.repetition) if trial.tuned else "",
        **{REPEATED[name]: value for name, value in own.items()},
        "seeds": str(trial.seed),
    }
    return (trial.seed, *own.values()) if own else trial.seed, levels


def fixed_partition(source: ResultSet) -> str:
    """Return the seed of the one partition of all runs; empty if it follows the run's seed or varies."""
    seed = source.config["experiment"]["partition"].get("seed")
    return "" if seed is None or PARTITION_SEED in source.varying else str(seed)


def repeated_columns(source: ResultSet) -> list[str]:
    """Return the varying settings whose values are repetitions and no places."""
    sweep = source.config.get("sweep") or {}
    places = sweep.get("places")
    if places is None:  # also in the sweeps of a flray that had no such key
        places = REPEATED if sweep.get("until") else ()
    return [name for name in source.varying if name in REPEATED and name not in places]


def place_and_name(source: ResultSet, trial: Trial) -> tuple[str, str]:
    """Return the place of a trial, and the name of the compared setting."""
    varying = source.varying
    repeated = repeated_columns(source)
    flat = {n: trial.setting[n] for n in varying if n in trial.setting and n not in repeated}
    place = place_columns(list(flat), source.rows)
    name = source.name_of({key: value for key, value in flat.items() if key not in place})
    return source.name_of({key: flat[key] for key in place}), name or trial.method


def compared_names(source: ResultSet) -> list[str]:
    """Return the names of the compared settings, as conclusions and ``sweep.reference`` use them."""
    if source.paper is not None and source.axes:
        return source.axes[source.rows]
    return list(dict.fromkeys(place_and_name(source, trial)[1] for trial in source.trials))


def place_columns(columns: Sequence[str], rows: str) -> list[str]:
    """Return the columns that define the context (data, partition), not the compared setting.

    Parameters
    ----------
    columns : sequence of str
        Columns of settings.
    rows : str
        The axis of arms that is compared; all others are places.
    """
    return [
        name
        for name in columns
        if (name.startswith(PREFIX) and name != f"{PREFIX}{rows}") or is_place(name)
    ]


def compare_units(
    sweep: Path, unit_of: Mapping[str, int]
) -> tuple[list[tuple[int, int, Difference]], dict[int, float]]:
    """Compare the finished trials of a sweep with ``sweep.until``, as its report does.

    Parameters
    ----------
    sweep : Path
        Its folder.
    unit_of : mapping of str to int
        By a trial's number, the number of the unit that it is one seed of.

    Returns
    -------
    pairs : list of (int, int, Difference)
        The numbers of two units, and their comparison.
    seconds : dict of int to float
        Mean training time of one trial of each unit.
    """
    source = load_folder(sweep, allow_empty=True)
    # By the primary metric, of a paper's suite too, whose columns are several measures.
    source = replace(source, config={**source.config, "paper": None})
    trials = [trial for trial in source.trials if trial.number in unit_of]
    units = {place_and_name(source, trial): unit_of[trial.number] for trial in trials}
    studies, reference = build_studies(source), source.config["sweep"].get("reference")
    if any(reference in study.values for study in studies.each):
        studies = studies.against(reference)
    times: dict[int, list[float]] = {unit: [] for unit in unit_of.values()}
    for trial in trials:
        times[unit_of[trial.number]].append(measures.total(trial, "time/round"))
    pairs = [
        (units[study.place, one.first], units[study.place, one.second], one)
        for study in studies.each
        for one in study.differences
    ]
    return pairs, {
        unit: float(np.nanmean(found)) if found else 0.0 for unit, found in times.items()
    }
