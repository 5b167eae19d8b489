"""Build the table of exported results: a row per setting, best first, a column per domain."""

from __future__ import annotations

import pandas as pd

from flray.config import yaml_files
from flray.config.arms import PREFIX
from flray.config.setting_labels import is_name, setting_label
from flray.config.suites import SMOKE
from flray.results.build_studies import place_columns, without_gaps
from flray.results.build_table import SMOKE_NOTE
from flray.results.conclusions import conclude
from flray.results.export import DOMAIN, FIRST, MEASURED, PACKAGES, TUNED
from flray.results.measures import AVERAGE
from flray.results.result_set import alike, alike_notes
from flray.results.study import Studies, Study
from flray.results.table import Cell, Column, Table

_DISTINGUISHING = {
    "algorithm": "{}",
    "data": "{}",
    "rounds": "{} rounds",
    "protocol": "{}",
    "metric": "{}",
}
"""Columns that keep rows apart besides their settings, and their text in a label."""
_HEADS = {"value": "score", "own": f"own {AVERAGE}"}


def build_export_table(frame: pd.DataFrame, reference: str | None = None) -> Table:
    """Return the table of exported results.

    Runs of other numbers of rounds, of other data or under another protocol are other rows, and say
    so.

    Parameters
    ----------
    frame : DataFrame
        As `flray.results.export.read_export` returns it.
    reference : str, optional
        The setting that all others are compared with; default: all pairs are compared.
    """
    frame = _alike(frame)
    metrics = " or ".join(sorted(set(frame["metric"])))
    domains = [str(name) for name in frame.columns if str(name).startswith(DOMAIN)]
    shown = ["value", *domains, *(["own"] if "/others/" in metrics else [])]
    columns = [Column((_HEADS.get(name, name.removeprefix(DOMAIN)),), metrics) for name in shown]
    rows: dict[str, list[Cell]] = {}
    repeated: dict[str, None] = {}
    for label, record in zip(_labels(frame), frame.to_dict("records"), strict=True):
        row = rows.setdefault(label, [Cell() for _ in shown])
        seed = int(record["seed"])
        if seed in row[0].values:
            repeated[f"{label} seed {seed}"] = None
        for cell, name in zip(row, shown, strict=True):
            cell.values[seed] = float(record[name])
    table = Table(f"{frame['suite'].iloc[0]}: {metrics}", "setting", columns, rows)
    table.sort_rows()
    table.mark_best()
    data = dict.fromkeys(
        f"{data} ({origins})" for data, origins in zip(frame["data"], frame["origins"], strict=True)
    )
    if not any(str(name).endswith(SMOKE) for name in frame["suite"]):
        table.studies = _studies(frame, metrics).against(reference, "--reference")
        table.conclusions = conclude(table.studies)
    versions = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in zip(PACKAGES, one, strict=True))
        for one in frame[list(PACKAGES)].to_numpy()
    )
    table.notes = alike_notes(frame["metric"]) + [
        f"{title}: {'; '.join(map(str, found))}"
        for title, found in (
            ("value of a run", frame["protocol"].unique()),
            ("rounds", frame["rounds"].unique()),
            ("data", data),
            ("tuned", _tuned(frame)),
            ("versions", versions),
            ("kept more than once, of which the last counts", list(repeated)),
        )
        if len(found)
    ]
    if any(str(name).endswith(SMOKE) for name in frame["suite"]):
        table.notes.append(SMOKE_NOTE)
    return table


def _alike(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with values that may be compared with each other, see `flray.results.result_set.alike`."""
    metrics = pd.Series(alike(list(frame["metric"])), index=frame.index)
    return frame.assign(
        metric=metrics, value=frame["value"].where(metrics == frame["metric"], frame["own"])
    )


def _studies(frame: pd.DataFrame, metric: str) -> Studies:
    """Return what may be compared: settings on the same data, in the same circumstances."""
    columns = _setting_columns(frame)
    arms = [name for name in columns if name.startswith(PREFIX)]
    varying = [name for name in columns if frame[name].nunique() > 1]
    places = place_columns(varying, arms[0].removeprefix(PREFIX) if arms else "")
    several = frame["data"].nunique() > 1 and "data" not in places
    names = _labels(frame.drop(columns=places).assign(data=""))
    values: dict[str, dict[str, dict[int, float]]] = {}
    looks: dict[str, dict[str, dict[int, int]]] = {}
    failed: dict[str, dict[str, set[int]]] = {}
    for name, record in zip(names, frame.to_dict("records"), strict=True):
        place = setting_label({one: record[one] for one in places if record[one] != ""})
        place = " ".join(filter(None, (place, str(record["data"]) if several else "")))
        seeds = values.setdefault(place, {}).setdefault(name, {})
        seeds[int(record["seed"])] = float(record["value"])
        added = looks.setdefault(place, {}).setdefault(name, {})
        added[int(record["seed"])] = int(record.get("look") or 1)
        gone = failed.setdefault(place, {}).setdefault(name, set())
        gone |= {int(seed) for seed in str(record.get("failed", "")).split()}
    found = [
        Study(
            place,
            metric,
            settings,
            failed={
                name: dict.fromkeys(failed[place][name] - {*own}, "")
                for name, own in settings.items()
            },
            looks=looks[place],
        )
        for place, settings in values.items()
    ]
    return Studies([one for one in map(without_gaps, found) if one is not None])


def _tuned(frame: pd.DataFrame) -> list[str]:
    """Return what was tuned for each row of the table."""
    columns = [str(name) for name in frame.columns if str(name).startswith(TUNED)]
    found: dict[str, str] = {}
    for label, record in zip(_labels(frame), frame.to_dict("records"), strict=True):
        own = {
            name.removeprefix(TUNED): yaml_files.parse(record[name])
            for name in columns
            if record[name] != ""
        }
        if own:
            found[label] = f"{label} {setting_label(own)}"
    return list(found.values())


def _setting_columns(frame: pd.DataFrame) -> list[str]:
    return list(frame.columns[len(FIRST) : list(frame.columns).index(MEASURED[0])])


def _labels(frame: pd.DataFrame) -> list[str]:
    """Return each row's label, with as many columns as keep different runs apart."""
    varying = [name for name in _setting_columns(frame) if frame[name].nunique() > 1]
    methods = frame["algorithm"].nunique() > 1
    labels = []
    for record in frame.to_dict("records"):
        own = {str(name): record[name] for name in varying if record[name]}
        if methods and not any(map(is_name, own)):
            own = {"algorithm": record["algorithm"], **own}
        labels.append(setting_label(own) or str(record["algorithm"]))
    for name, text in _DISTINGUISHING.items():
        counts = frame[name].astype(str).groupby(labels).nunique()
        several = {label for label, count in counts.items() if count > 1}
        labels = [
            f"{label} · {text.format(value)}" if label in several else label
            for label, value in zip(labels, frame[name], strict=True)
        ]
    return labels
