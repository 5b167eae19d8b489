"""A sweep's results as one CSV file to keep: a row per finished run, from which its table can be made again."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flray.config.setting_labels import is_name, setting_label
from flray.config.suites import SMOKE
from flray.data.sources.limits import open_file
from flray.errors import DataError, FlrayError
from flray.files.atomic import write_atomically
from flray.files.csv_files import csv_text, read_csv
from flray.results import measures
from flray.results.load import ResultSet, Trial
from flray.results.table import (
    AVERAGE_COLUMN,
    SMOKE_NOTE,
    Cell,
    Column,
    Table,
    client_measure,
    clients,
    mark_best,
)

FIRST = ("suite", "algorithm")
MEASURED = ("seed", "rounds", "protocol", "metric", "value", "own", "others", "worst")
LAST = (
    "bytes_up",
    "bytes_down",
    "seconds",
    "sha256",
    "data",
    "origins",
    "data_sha256",
    "partition_sha256",
    "python",
    "flray",
    "torch",
    "numpy",
)
"""Columns before the settings, after them, and after the domains'."""
DOMAIN = "domain/"
_NUMBERS = (
    "seed",
    "rounds",
    "value",
    "own",
    "others",
    "worst",
    "bytes_up",
    "bytes_down",
    "seconds",
)
_PACKAGES = ("python", "flray", "torch", "numpy")
_APART = (
    ("algorithm", "{}"),
    ("data", "{}"),
    ("rounds", "{} rounds"),
    ("protocol", "{}"),
    ("metric", "{}"),
)
"""What keeps rows apart besides their settings, and how it is said."""
_HEADS = {"value": "score", "own": f"own {AVERAGE_COLUMN}"}
_SHA = re.compile(r"[0-9a-f]{64}")
_DIGITS = 4


class Kept(NamedTuple):
    """How many runs were added, were kept before, and were left out because they have not finished."""

    added: int
    before: int
    unfinished: int


def keep_results(source: ResultSet, path: Path) -> Kept:
    """Add a row for every finished run of a sweep; what is kept already stays as it is.

    Parameters
    ----------
    source : Source
        The sweep or run.
    path : Path
        The CSV file. To one that is there the runs are added that it lacks: a run is the same if
        suite, algorithm, settings, seed, rounds and SHA-256 are. Columns: ``suite`` (the
        experiment's name), ``algorithm``, one per setting that the sweep varies (arms as
        ``arms.AXIS``), ``seed``, ``rounds`` played, ``protocol`` (which of them count), ``metric``
        and ``value`` (the method's own measure, shares in percent), ``own`` and ``others`` (the
        mean over clients, on their own and on the other clients' test parts), ``worst`` (the client
        that is served worst on its own), ``domain/NAME`` (clients of a domain; on the others' test
        parts if ``metric`` says so), ``bytes_up`` and ``bytes_down`` in all, ``seconds`` of
        training, ``sha256`` of everything learnt, ``data`` with the ``origins`` of its domains, the
        SHA-256 of data and partition where they were tracked, and versions.

    Returns
    -------
    Kept
        How many runs were added, were there, and have not finished.

    Raises
    ------
    FlrayError
        If no run has finished, or the file holds something else.
    """
    finished = [trial for trial in source.trials if trial.status == "finished" and trial.sha256]
    if not finished:
        raise FlrayError(f"{source.where}: no run has finished, so there is nothing to keep")
    known = _texts(path) if path.exists() else pd.DataFrame()
    rows = _as_text(pd.DataFrame([_row(source, trial) for trial in finished]))
    names = list(dict.fromkeys([*known.columns, *rows.columns]))
    domains = [name for name in names if name.startswith(DOMAIN)]
    fixed = {*FIRST, *MEASURED, *LAST, *domains}
    settings = source.in_order(name for name in names if name not in fixed)
    columns = [*FIRST, *settings, *MEASURED, *domains, *LAST]
    known, rows = (frame.reindex(columns=columns, fill_value="") for frame in (known, rows))
    there = set(_identities(known, settings))
    new = rows[[one not in there for one in _identities(rows, settings)]]
    if len(new):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, csv_text(pd.concat([known, new], ignore_index=True)).encode())
    return Kept(len(new), len(rows) - len(new), len(source.trials) - len(finished))


def _as_text(frame: pd.DataFrame) -> pd.DataFrame:
    return read_csv(io.StringIO(csv_text(frame)))


def _identities(frame: pd.DataFrame, settings: Sequence[str]) -> list[tuple[str, ...]]:
    """Return what a row is known by."""
    return list(
        frame[[*FIRST, *settings, "seed", "rounds", "sha256"]].itertuples(index=False, name=None)
    )


def read(path: Path) -> pd.DataFrame:
    """Return kept results; see `keep` for the columns. Numbers are numbers, everything else is text.

    Raises
    ------
    DataError
        If the file does not hold kept results.
    """
    frame = _texts(path)
    for name in frame.columns:
        if name.startswith(DOMAIN) or name in _NUMBERS:
            try:
                frame[name] = pd.to_numeric(frame[name])
            except ValueError as error:
                raise DataError(
                    f"{path}: no number in the column {name} ({error}); restore the file"
                ) from None
    for name in ("seed", "rounds"):
        if frame[name].isna().any():
            raise DataError(f"{path}: an empty cell in the column {name}; restore the file")
    return frame


def _texts(path: Path) -> pd.DataFrame:
    try:
        with open_file(path) as file:
            frame = read_csv(io.TextIOWrapper(file, encoding="utf-8", newline=""))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no kept results ({error})") from None
    missing = [name for name in (*FIRST, *MEASURED, *LAST) if name not in frame.columns]
    if missing:
        raise DataError(
            f"{path}: no kept results: without the columns {', '.join(missing)}; "
            "make such a file with flray report NAME --keep FILE.csv"
        )
    wrong = [sha for sha in frame["sha256"] if not _SHA.fullmatch(sha)]
    if wrong:
        raise DataError(
            f"{path}: {wrong[0]!r} in the column sha256 is no SHA-256 of 64 hexadecimal digits"
        )
    return frame


def table(frame: pd.DataFrame) -> Table:
    """Return the table of kept results: a row per setting, best first, a column per domain.

    Runs of other numbers of rounds, of other data or under another protocol are other rows, and say
    so.

    Parameters
    ----------
    frame : DataFrame
        What `read` returned.
    """
    domains = [str(name) for name in frame.columns if str(name).startswith(DOMAIN)]
    settings = list(frame.columns[len(FIRST) : list(frame.columns).index(MEASURED[0])])
    metrics = " or ".join(sorted(set(frame["metric"])))
    shown = ["value", *domains, *(["own"] if "/others/" in metrics else [])]
    rows: dict[str, list[Cell]] = {}
    twice: dict[str, None] = {}
    for label, record in zip(_labels(frame, settings), frame.to_dict("records"), strict=True):
        row = rows.setdefault(label, [Cell() for _ in shown])
        if int(record["seed"]) in row[0].values:
            twice[f"{label} seed {record['seed']}"] = None
        for cell, name in zip(row, shown, strict=True):
            cell.values[int(record["seed"])] = float(record[name])
    better = 1.0 if measures.lower_is_better(metrics) else -1.0
    made = Table(
        f"{frame['suite'].iloc[0]}: {metrics}",
        "setting",
        [Column((), AVERAGE_COLUMN, "", metrics) for _ in shown],
        [[_HEADS.get(name, name.removeprefix(DOMAIN))] for name in shown],
        dict(sorted(rows.items(), key=lambda item: better * item[1][0].mean)),
    )
    for position in range(len(shown)):
        mark_best(made, position)
    held = dict.fromkeys(
        f"{data} ({origins})" for data, origins in zip(frame["data"], frame["origins"], strict=True)
    )
    versions = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in zip(_PACKAGES, one, strict=True))
        for one in frame[list(_PACKAGES)].to_numpy()
    )
    made.notes = [
        f"{title}: {'; '.join(map(str, found))}"
        for title, found in (
            ("value of a run", frame["protocol"].unique()),
            ("rounds", frame["rounds"].unique()),
            ("data", held),
            ("versions", versions),
            ("kept more than once, of which the last counts", list(twice)),
        )
        if len(found)
    ]
    made.notes += [SMOKE_NOTE] if any(str(name).endswith(SMOKE) for name in frame["suite"]) else []
    return made


def _labels(frame: pd.DataFrame, settings: Sequence[str]) -> list[str]:
    """Return each row's setting in a few words, as many as keep apart what differs."""
    varying = [name for name in settings if frame[name].nunique() > 1]
    methods = frame["algorithm"].nunique() > 1
    labels = []
    for record in frame.to_dict("records"):
        own = {str(name): record[name] for name in varying if record[name]}
        if methods and not any(map(is_name, own)):
            own = {"algorithm": record["algorithm"], **own}
        labels.append(setting_label(own) or str(record["algorithm"]))
    for name, word in _APART:
        several = {
            label
            for label, held in frame[name].astype(str).groupby(labels).nunique().items()
            if held > 1
        }
        labels = [
            f"{label} · {word.format(value)}" if label in several else label
            for label, value in zip(labels, frame[name], strict=True)
        ]
    return labels


def _row(source: ResultSet, trial: Trial) -> dict[str, Any]:
    rule = (source.protocol, source.last)
    own = client_measure(trial, own=True)
    protocol = {
        "mean-last": f"mean of the last {source.last} evaluated rounds",
        "best": "best round on validation",
    }.get(source.protocol, "last round")
    measured = {
        "value": measures.value(trial, "auto", measures.AVERAGE, *rule),
        "own": measures.value(trial, own, measures.AVERAGE, *rule),
        "others": measures.value(trial, "others/" + own.partition("/")[2], measures.AVERAGE, *rule),
        "worst": _worst([measures.value(trial, own, name, *rule) for name in clients(trial)], own),
    }
    by_domain = {
        f"{DOMAIN}{domain}": float(
            np.mean([measures.value(trial, client_measure(trial), name, *rule) for name in names])
        )
        for domain, names in _domains(trial).items()
    }
    held, versions = trial.partition or {}, trial.versions or source.versions
    return {
        "suite": source.name,
        "algorithm": trial.method,
        **trial.setting,
        "seed": trial.seed,
        "rounds": int(trial.history["round"].max()),
        "protocol": protocol,
        "metric": trial.metric,
        **{name: round(value, _DIGITS) for name, value in (measured | by_domain).items()},
        **{
            column: _total(trial, name)
            for column, name in (("bytes_up", "bytes/up"), ("bytes_down", "bytes/down"))
        },
        "seconds": round(measures.value(trial, "hours") * 3600, 1),
        "sha256": trial.sha256,
        "data": held.get("dataset", source.config["experiment"]["data"]["name"]),
        "origins": ", ".join(
            f"{domain} {origin}" for domain, origin in held.get("origins", {}).items()
        ),
        **{f"{part}_sha256": trial.fingerprints.get(part, "") for part in ("data", "partition")},
        **{name: versions.get(name, "") for name in _PACKAGES},
    }


def _domains(trial: Trial) -> dict[str, list[str]]:
    """Return the clients of each domain; nothing where there is but one, for its mean is the mean over clients."""
    found: dict[str, list[str]] = {}
    for client, domain in trial.domains.items():
        found.setdefault(domain, []).append(client)
    return found if len(found) > 1 else {}


def _worst(values: Sequence[float], measure: str) -> float:
    finite = [value for value in values if math.isfinite(value)]
    worst = max if measures.lower_is_better(measure) else min
    return worst(finite, default=math.nan)


def _total(trial: Trial, name: str) -> int | None:
    return int(trial.history[name].sum()) if name in trial.history else None
