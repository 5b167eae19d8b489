"""A sweep's results as one CSV file to keep: a row per finished run, from which its table can be made again."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flray.csvfiles import csv_text, read_csv
from flray.errors import DataError, FlrayError
from flray.files import write_atomically
from flray.report import measures, plain
from flray.report.source import Source, Trial
from flray.report.table import ONCE, Cell, Column, Table, client_measure, clients, judge
from flray.tuning.space import words

FIRST = ("suite", "algorithm")
MEASURED = ("seed", "rounds", "protocol", "metric", "value", "own", "others", "worst")
LAST = ("bytes_up", "bytes_down", "seconds", "sha256", "data", "origins", "data_sha256", "partition_sha256", "python",
        "flray", "torch", "numpy")
"""Columns before the settings, after them, and after the domains'."""
DOMAIN = "domain/"
_NUMBERS = ("seed", "rounds", "value", "own", "others", "worst", "bytes_up", "bytes_down", "seconds")
_PACKAGES = ("python", "flray", "torch", "numpy")
_HEADS = {"value": "score", "own": f"own {ONCE}"}
_SHA = re.compile(r"[0-9a-f]{64}")
_DIGITS = 4


def keep(source: Source, path: Path) -> tuple[int, int]:
    """Write a row for every finished run of a sweep.

    Parameters
    ----------
    source : Source
        The sweep or run.
    path : Path
        The CSV file. One that is there is replaced if it holds kept results. Columns: ``suite`` (the experiment's
        name), ``algorithm``, one per setting that the sweep varies (arms as ``arms.AXIS``), ``seed``, ``rounds``
        played, ``protocol`` (which of them count), ``metric`` and ``value`` (the method's own measure, shares in
        percent), ``own`` and ``others`` (the mean over clients, on their own and on the other clients' test parts),
        ``worst`` (the client that is served worst on its own), ``domain/NAME`` (clients of a domain; on the others'
        test parts if ``metric`` says so), ``bytes_up`` and ``bytes_down`` in all, ``seconds`` of training, ``sha256``
        of everything learnt, ``data`` with the ``origins`` of its domains, the SHA-256 of data and partition where
        they were tracked, and versions.

    Returns
    -------
    (int, int)
        Runs that were kept, and runs that were not because they have not finished.

    Raises
    ------
    FlrayError
        If no run has finished, or the file holds something else.
    """
    finished = [trial for trial in source.trials if trial.status == "finished" and trial.sha256]
    if not finished:
        raise FlrayError(f"{source.where}: no run has finished, so there is nothing to keep")
    if path.exists():
        read(path)
    rows = pd.DataFrame([_row(source, trial) for trial in finished])
    domains = [name for name in rows.columns if name.startswith(DOMAIN)]
    fixed = {*FIRST, *MEASURED, *LAST, *domains}
    settings = source.in_order(name for name in rows.columns if name not in fixed)
    text = csv_text(rows[[*FIRST, *settings, *MEASURED, *domains, *LAST]])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    return len(finished), len(source.trials) - len(finished)


def read(path: Path) -> pd.DataFrame:
    """Return kept results; see `keep` for the columns. Numbers are numbers, everything else is text.

    Raises
    ------
    DataError
        If the file does not hold kept results.
    """
    try:
        frame = read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no kept results ({error})") from None
    missing = [name for name in (*FIRST, *MEASURED, *LAST) if name not in frame.columns]
    if missing:
        raise DataError(f"{path}: no kept results: without the columns {', '.join(missing)}; "
                        "make such a file with flray report NAME --keep FILE.csv")
    wrong = [sha for sha in frame["sha256"] if not _SHA.fullmatch(sha)]
    if wrong:
        raise DataError(f"{path}: {wrong[0]!r} in the column sha256 is no SHA-256 of 64 hexadecimal digits")
    for name in frame.columns:
        if name.startswith(DOMAIN) or name in _NUMBERS:
            frame[name] = pd.to_numeric(frame[name])
    return frame


def table(frame: pd.DataFrame) -> Table:
    """Return the table of kept results: a row per setting, best first, a column per domain.

    Parameters
    ----------
    frame : DataFrame
        What `read` returned.
    """
    domains = [str(name) for name in frame.columns if str(name).startswith(DOMAIN)]
    settings = list(frame.columns[len(FIRST):list(frame.columns).index(MEASURED[0])])
    varying = [name for name in settings if frame[name].nunique() > 1]
    metrics = " or ".join(sorted(set(frame["metric"])))
    shown = ["value", *domains, *(["own"] if "/others/" in metrics else [])]
    rows: dict[str, list[Cell]] = {}
    for record in frame.to_dict("records"):
        label = words({str(name): record[name] for name in varying if record[name]}) or str(record["algorithm"])
        row = rows.setdefault(label, [Cell() for _ in shown])
        for cell, name in zip(row, shown, strict=True):
            cell.values[int(record["seed"])] = float(record[name])
    better = 1.0 if measures.lower_is_better(metrics) else -1.0
    made = Table(f"{frame['suite'].iloc[0]}: {metrics}", "setting", [Column((), ONCE, "", metrics) for _ in shown],
                 [[_HEADS.get(name, name.removeprefix(DOMAIN))] for name in shown],
                 dict(sorted(rows.items(), key=lambda item: better * item[1][0].mean)))
    for position in range(len(shown)):
        judge(made, position)
    held = dict.fromkeys(f"{data} ({origins})" for data, origins in zip(frame["data"], frame["origins"], strict=True))
    versions = dict.fromkeys(", ".join(f"{name} {version}" for name, version in zip(_PACKAGES, one, strict=True))
                             for one in frame[list(_PACKAGES)].to_numpy())
    made.notes = [f"{title}: {'; '.join(map(str, found))}" for title, found in (
        ("value of a run", frame["protocol"].unique()), ("rounds", frame["rounds"].unique()), ("data", held),
        ("versions", versions))]
    return made


def report(path: Path, to: Path | None = None) -> tuple[Table, tuple[Path, ...]]:
    """Return the table of a file of kept results, and write it as Markdown and LaTeX if a folder is given."""
    made = table(read(path))
    if to is None:
        return made, ()
    to.mkdir(parents=True, exist_ok=True)
    files = {to / f"{path.stem}.md": plain.markdown(made, ()), to / f"{path.stem}.tex": plain.latex(made)}
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
    return made, tuple(files)


def _row(source: Source, trial: Trial) -> dict[str, Any]:
    rule = (source.protocol, source.last)
    own = client_measure(trial, own=True)
    protocol = {"mean-last": f"mean of the last {source.last} evaluated rounds",
                "best": "best round on validation"}.get(source.protocol, "last round")
    measured = {"value": measures.value(trial, "auto", measures.AVERAGE, *rule),
                "own": measures.value(trial, own, measures.AVERAGE, *rule),
                "others": measures.value(trial, "others/" + own.partition("/")[2], measures.AVERAGE, *rule),
                "worst": _worst([measures.value(trial, own, name, *rule) for name in clients(trial)], own)}
    by_domain = {f"{DOMAIN}{domain}": float(np.mean([measures.value(trial, client_measure(trial), name, *rule)
                                                     for name in names]))
                 for domain, names in _domains(trial).items()}
    held, versions = trial.partition or {}, trial.versions or source.versions
    return {
        "suite": source.name, "algorithm": trial.method, **trial.setting, "seed": trial.seed,
        "rounds": int(trial.history["round"].max()), "protocol": protocol, "metric": trial.metric,
        **{name: round(value, _DIGITS) for name, value in (measured | by_domain).items()},
        **{column: _total(trial, name) for column, name in (("bytes_up", "bytes/up"), ("bytes_down", "bytes/down"))},
        "seconds": round(measures.value(trial, "hours") * 3600, 1), "sha256": trial.sha256,
        "data": held.get("dataset", source.config["experiment"]["data"]["name"]),
        "origins": ", ".join(f"{domain} {origin}" for domain, origin in held.get("origins", {}).items()),
        **{f"{part}_sha256": trial.fingerprints.get(part, "") for part in ("data", "partition")},
        **{name: versions.get(name, "") for name in _PACKAGES}}


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
