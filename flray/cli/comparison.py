"""``flray compare``: two runs or two sweeps beside each other."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

import numpy as np

from flray.cli.display import console, make_table, print_json, table_rows
from flray.errors import FlrayError
from flray.metrics import VIEWS, summarise_history
from flray.records import directory
from flray.results import ALIKE_NOTE, ResultSet, judge_alike, measures
from flray.results.formatting import format_mean_std
from flray.results.load import load_folder
from flray.results.paired import compare
from flray.results.table import Cell
from flray.runs.code import code_differences

_OWN = ("name", "output")
"""Settings that say where results go, and nothing about them."""

_Values = dict[Hashable, float]
"""By client; or by seed, data and partition: what is the same of both is paired."""


def show_comparison(first: Path, second: Path, as_json: bool) -> None:
    """Print the settings that differ between two runs or two sweeps, and both values with intervals.

    Raises
    ------
    FlrayError
        If one is a run and the other a sweep, or one has no values yet.
    """
    kinds = [directory.folder_kind(folder) for folder in (first, second)]
    if kinds[0] != kinds[1]:
        raise FlrayError(
            f"{first} is a {kinds[0]} and {second} a {kinds[1]}; compare two of a kind: a sweep's "
            "runs are NAME/NUMBER/trials/NUMBER"
        )
    a, b = map(directory.place_of, (first, second))
    if a == b:  # below two folders
        a, b = str(first), str(second)
    settings = make_table("settings that differ", ("setting", a, b), _differing(first, second))
    sets = load_folder(first), load_folder(second)
    for folder, one in zip((first, second), sets, strict=True):
        if not any(len(trial.history) for trial in one.trials):
            raise FlrayError(f"{folder}: no round of its comparison has ended yet; wait for one")
    before = [trial.metric for one in sets for trial in one.trials]
    for one, trials in zip(sets, judge_alike(*(one.trials for one in sets)), strict=True):
        one.trials = trials
    alike = before != [trial.metric for one in sets for trial in one.trials]
    metrics = dict.fromkeys(one.metric for one in sets) if kinds[0] == "sweep" else ()
    measured = _run_values(*sets) if kinds[0] == "run" else _sweep_values(*sets)
    headings = ("value", a, b, "difference", "95 % interval")
    values = make_table(", ".join(metrics), headings, measured)
    if as_json:
        rows = {"settings": table_rows(settings), "values": table_rows(values)}
        print_json({**rows, "metrics": [*metrics]})
        return
    console.print(settings)
    console.print(values)
    what = (
        "over the clients, where both runs have the same partition; it says nothing about other seeds"
        if kinds[0] == "run"
        else "paired over the seeds that both finished, where both have the same data and partition"
    )
    console.print(f"intervals: {b} less {a}, {what}")
    for name, one in zip((a, b), sets, strict=True):
        if kinds[0] == "sweep" and (rest := sum(t.status != "finished" for t in one.trials)):
            console.print(
                f"{name}: {rest} of {len(one.trials)} trials have not finished and do not count"
            )
    if kinds[0] == "sweep" and len(set(map(_measures, sets))) > 1:
        console.print("the two have different measures, whose values have no difference")
    if alike:
        console.print(ALIKE_NOTE)


def _differing(first: Path, second: Path) -> Iterator[tuple[str, str, str]]:
    """Yield path and both values of the settings that differ, without where results go."""
    found = [dict(directory.flatten_settings(directory.read_config(f))) for f in (first, second)]
    for path in sorted(found[0].keys() | found[1].keys()):
        left, right = (one.get(path, "(not set)") for one in found)
        own = path.removeprefix("experiment.")
        if left != right and own not in _OWN and not own.startswith("tracking."):
            yield own, left, right
    one, other = (directory.read(folder).get("code") or {} for folder in (first, second))
    for name, (left, right) in code_differences(one, other).items() if one and other else ():
        yield f"code: {name}", left, right


def _run_values(first: ResultSet, second: ResultSet) -> Iterator[tuple[str, ...]]:
    """Yield a row for each metric of both runs; metrics of a global and a personal model may share a row."""
    (one,), (other,) = first.trials, second.trials
    same = one.fingerprints.get("partition") == other.fingerprints.get("partition") is not None
    left, right = (
        summarise_history(t.history, t.metric, t.protocol, t.last, t.lower).values
        for t in (one, other)
    )
    views = {view: view for view in VIEWS}
    if one.metric != other.metric:
        views[one.metric.rpartition("/")[0]] = other.metric.rpartition("/")[0]
    for name in left:
        view, _, measure = name.rpartition("/")
        counterpart = f"{views.get(view, view)}/{measure}"
        if view not in views or counterpart not in right:
            continue
        of_clients = (_by_client(left, name), _by_client(right, counterpart)) if same else ({}, {})
        yield (
            name if name == counterpart else f"{name}, {counterpart}",
            f"{left[name]:.4f}",
            f"{right[counterpart]:.4f}",
            f"{right[counterpart] - left[name]:+.4f}",
            _difference(*of_clients)[1],
        )


def _by_client(values: Mapping[str, float], name: str) -> _Values:
    start = f"{name}/client/"
    return {key.removeprefix(start): v for key, v in values.items() if key.startswith(start)}


def _sweep_values(first: ResultSet, second: ResultSet) -> Iterator[tuple[str, ...]]:
    """Yield each setting that both have; the only one of each is compared whatever it is.

    Values of different measures have no difference.
    """
    left, right = _values(first), _values(second)
    same = _measures(first) == _measures(second)
    if len(left) == len(right) == 1 and left.keys() != right.keys():
        pairs = [(*left, *right)]
    else:
        pairs = [(label, label) for label in {**left, **right}]
    for one, other in pairs:
        known, counterpart = left.get(one, {}), right.get(other, {})
        yield (
            one if one == other else f"{one}, {other}",
            _mean(known),
            _mean(counterpart),
            *(_difference(known, counterpart) if same else ("", "")),
        )


def _measures(source: ResultSet) -> frozenset[str]:
    return frozenset(trial.measure for trial in source.trials if trial.metric)


def _values(source: ResultSet) -> dict[str, _Values]:
    """Return the reported values of finished trials by setting, shares between 0 and 1."""
    found: dict[str, _Values] = defaultdict(dict)
    for trial in source.trials:
        value = measures.tracked_value(trial, "auto")
        if trial.status == "finished" and not math.isnan(value):
            key = trial.seed, *(trial.fingerprints.get(what) for what in ("data", "partition"))
            found[source.label(trial)][key] = value
    return dict(found)


def _mean(values: _Values) -> str:
    cell, count = Cell(dict(enumerate(values.values()))), len(values)
    shown = f"{format_mean_std(cell.mean, cell.std, 4)} ({count} seed{'s' if count > 1 else ''})"
    return shown if values else ""


def _difference(first: _Values, second: _Values) -> tuple[str, str]:
    """Return the mean of second less first, and the interval over the pairs; empty texts if there are none."""
    if not (first and second):
        return "", ""
    (found,) = compare({"second": second, "first": first})
    mean = np.mean(list(second.values())) - np.mean(list(first.values()))
    known = not math.isnan(found.low)
    return (
        f"{mean if math.isnan(found.mean) else found.mean:+.4f}",
        f"{found.low:+.4f} to {found.high:+.4f} (n={found.seeds})" if known else "",
    )
