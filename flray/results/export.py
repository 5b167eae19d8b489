"""A sweep's results as one CSV file for a repository: its rows, one per finished run, rebuild the table."""

import contextlib
import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flray.config import yaml_files
from flray.config.arms import PREFIX, is_name, setting_label
from flray.config.suites import SMOKE
from flray.config.sweep import Until
from flray.errors import DataError, FlrayError, explained
from flray.files import open_file, write_atomically
from flray.metrics import is_share, lower_is_better
from flray.results import (
    PROVENANCE,
    ResultSet,
    Trial,
    alike,
    beside,
    entries_text,
    measures,
    read_entries,
)
from flray.results.build_studies import REPEATED, fixed_partition, place_columns, repeated_columns
from flray.results.formatting import csv_text, read_csv
from flray.results.study import PARTITION_SEED, registered_reference

FIRST = ("suite", "algorithm")
MEASURED = ("seed", "rounds", "protocol", "metric", "value", "own", "others", "worst")
PACKAGES = ("python", "flray", "torch", "numpy")
COSTS = ("bytes_up", "bytes_down", "seconds")
LAST = (*COSTS, "sha256", "data", "origins", "data_sha256", "partition_sha256", *PACKAGES)
"""Columns before the settings, after them, and after the domains'."""
OPTIONAL = {"look": "1", "tuning": "0"} | dict.fromkeys(
    (
        "planned",
        "failed",
        "stopped",
        "positive",
        "reference",
        "until",
        "places",
        "partition_seed",
        "mode",
    ),
    "",
)
"""Columns after `MEASURED` of files in which something is to be said there, with the value that says nothing."""
_FORMS = {
    **dict.fromkeys(("seed", "rounds"), re.compile(r"\d{1,19}(\.0*)?")),  # 3.0 of a spreadsheet
    "look": re.compile(r"\d{0,9}"),
    "tuning": re.compile(r"\d{0,9}"),
    "planned": re.compile(r"\d{0,9}"),
    **dict.fromkeys(("failed", "stopped"), re.compile(r"(\d{1,19}( \d{1,19})*)?")),
    **dict.fromkeys(PROVENANCE, re.compile("([0-9a-f]{40}|[0-9a-f]{64})?")),
    "sha256": re.compile("[0-9a-f]{64}"),
}
DOMAIN, TUNED = "domain/", "tuned."
_NUMBERS = ("seed", "rounds", "value", "own", "others", "worst", *COSTS)


def export_runs(source: ResultSet, path: Path) -> tuple[int, int, int]:
    """Add a row for every finished run to a CSV file; rows that are there already stay as they are.

    Parameters
    ----------
    source : ResultSet
        The sweep or run.
    path : Path
        The CSV file. An existing file gets the missing runs. Two runs are the same if suite,
        algorithm, settings, seed, rounds and SHA-256 agree. Columns: ``suite`` (the experiment's
        name), ``algorithm``, one per setting that the sweep varies (arms as ``arms.AXIS``),
        ``seed``, ``rounds`` that ended, ``protocol`` (the rounds that count), ``metric`` and
        ``value`` (the primary metric, shares in percent). ``own`` and ``others`` are means over
        clients, on the client's and on the other clients' test parts; ``worst`` is the ``own``
        value of the worst client. ``look`` is the first look at the results, counted from 1, that
        had this run, because added seeds need another test. ``planned`` has the rounds of a run that
        ``experiment.stop`` ended earlier, ``failed`` has the seeds that its
        setting failed at, ``stopped`` those that the sweep stopped early at, ``until`` the rule that the
        sweep added seeds by, ``places`` the seeds whose values are compared apart, ``partition_seed`` the
        seed of the one partition of all runs, if the sweep names it, ``mode`` is min if the sweep says so of a
        metric whose name does not tell, ``positive`` the
        positive class of a task of two, ``tuning`` the number of the tuning that chose its settings,
        ``reference`` the one that the sweep registered,
        ``tuned.NAME`` the choices of ``sweep.tune``,
        ``domain/NAME`` the value of a domain's clients (on the others' test parts if ``metric`` is).
        Further: ``bytes_up`` and ``bytes_down`` in total, ``seconds``
        of training, ``sha256`` of everything learnt, ``data`` with the ``origins`` of its domains,
        the SHA-256 of data and partition if they were tracked, and versions. ``settings``, ``code``
        and ``machine`` are SHA-256 of entries in the ``.provenance.json`` file beside it, see
        `flray.results`; ``commit`` is the git commit.

    Returns
    -------
    added, before, unfinished : int, int, int
        The numbers of runs that were added, that were in the file before, and that have not finished.

    Raises
    ------
    FlrayError
        If no run has finished, or the file holds something else.
    """
    begun = _stamp(path)
    existing, rows, settings = rows_beside(source, path)
    if not len(rows):
        raise FlrayError(f"{source.where}: no run has finished, so there is nothing to keep")
    # Seeds of a setting that others are kept of already come after a look at those.
    which = [*FIRST, *settings]
    before = set(existing[which].itertuples(index=False, name=None))
    last = max((int(look or 1) for look in existing["look"]), default=0)
    pairs = zip(rows["look"], rows[which].itertuples(index=False, name=None), strict=True)
    rows["look"] = [str(int(look) + (last if s in before else 0)) for look, s in pairs]
    known = set(row_keys(existing, settings, "sha256"))
    new = rows[[key not in known for key in row_keys(rows, settings, "sha256")]]
    if len(new):
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = pd.concat([existing, new], ignore_index=True)
        said = {name: set(whole[name]) - {"", nothing} for name, nothing in OPTIONAL.items()}
        whole = whole.drop(columns=[name for name, values in said.items() if not values])
        # The entries first: rows never name one that is not there.
        found = read_entries(path)
        for trial in source.trials:
            found |= trial.provenance[1] if trial.sha256 else {}
        named = set(whole[list(PROVENANCE)].to_numpy().ravel())
        if _stamp(path) != begun:  # another report has added its rows meanwhile
            return export_runs(source, path)
        if found := {name: entry for name, entry in found.items() if name in named}:
            write_atomically(beside(path), entries_text(found))
        write_atomically(path, csv_text(whole).encode())
    return len(new), len(rows) - len(new), len(source.trials) - len(rows)


def _stamp(path: Path) -> tuple[int, ...]:
    """Return another value for each file that is put at the path; empty without one."""
    with contextlib.suppress(OSError):  # what it cannot be is told once it is written
        facts = path.stat()
        return facts.st_ino, facts.st_mtime_ns
    return ()


def rows_beside(source: ResultSet, path: Path) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Return the rows of a file, those of the finished runs in the same columns, and the columns of settings."""
    existing = _read_text(path) if path.exists() else pd.DataFrame()
    finished = [trial for trial in source.trials if trial.status == "finished" and trial.sha256]
    content = csv_text(pd.DataFrame([row_of(source, trial) for trial in finished]))
    rows = read_csv(io.StringIO(content)) if finished else pd.DataFrame()
    names = list(dict.fromkeys([*existing.columns, *rows.columns]))
    domains = [name for name in names if name.startswith(DOMAIN)]
    tuned = [name for name in names if name.startswith(TUNED)]
    settings = source.in_order(setting_columns(names))
    columns = [*FIRST, *settings, *MEASURED, *OPTIONAL, *tuned, *domains, *LAST, *PROVENANCE]
    existing, rows = (frame.reindex(columns=columns, fill_value="") for frame in (existing, rows))
    return existing, rows, settings


def row_keys(frame: pd.DataFrame, settings: Sequence[str], last: str) -> list[tuple[str, ...]]:
    """Return the settings, seed, rounds and one column more of each row."""
    columns = [*FIRST, *settings, "seed", "rounds", last]
    return list(frame[columns].itertuples(index=False, name=None))


def read_export(path: Path) -> pd.DataFrame:
    """Read exported results; see `export_runs` for the columns. Numbers are numbers, everything else is text.

    Raises
    ------
    DataError
        If the file does not hold exported results.
    """
    frame = _read_text(path)
    if frame.empty:
        raise DataError(f"{path}: no kept results: it has no rows; {_MAKE_ONE}")
    for name in frame.columns:
        if name.startswith(DOMAIN) or name in _NUMBERS:
            with explained(
                ValueError, f"{path}: no number in the column {name}", "restore the file"
            ):
                frame[name] = pd.to_numeric(frame[name])
    for text in {*frame.get("until", ())} - {""}:
        try:
            _rule(text)
        except ValueError:
            raise DataError(
                f"{path}: {text!r} in the column until is no sweep.until; restore the file"
            ) from None
    for name in (one for one in PROVENANCE if one not in frame):
        frame[name] = ""  # kept by an older flray
    return frame


_MAKE_ONE = "make such a file with flray report NAME --keep FILE.csv"


def _read_text(path: Path) -> pd.DataFrame:
    try:
        with open_file(path) as file:
            frame = read_csv(io.TextIOWrapper(file, encoding="utf-8", newline=""))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error  # without the number of an opened folder
        raise DataError(f"{path}: no kept results ({why}); {_MAKE_ONE}") from None
    if missing := [name for name in (*FIRST, *MEASURED, *LAST) if name not in frame.columns]:
        raise DataError(
            f"{path}: no kept results: without the columns {', '.join(missing)}; {_MAKE_ONE}"
        )
    for name, expected in _FORMS.items():
        for text in frame.get(name, ()):
            if not expected.fullmatch(text):
                raise DataError(
                    f"{path}: {text!r} in the column {name} is neither a whole number nor a SHA-256; restore the file"
                )
    return frame


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows by the names of columns."""
    return [{str(name): cell for name, cell in row.items()} for row in frame.to_dict("records")]


def row_of(source: ResultSet, trial: Trial) -> dict[str, Any]:
    """Return the row of a finished run."""
    own = measures.client_measure(trial, own=True)
    protocol = {
        "mean-last": f"mean of the last {trial.last} evaluated rounds",
        "best": "best round on validation",
    }.get(trial.protocol, "last round")
    by_client = [measures.value(trial, own, name) for name in measures.clients(trial)]
    finite = [one for one in by_client if math.isfinite(one)]
    worst = max if trial.lower else min
    measured = {
        "value": measures.value(trial, "auto"),
        "own": measures.value(trial, own),
        "others": measures.value(trial, f"others/{own.partition('/')[2]}"),
        "worst": worst(finite, default=math.nan),
    }
    for domain, names in _domains(trial).items():
        values = [measures.value(trial, measures.client_measure(trial), name) for name in names]
        measured[f"{DOMAIN}{domain}"] = float(np.mean(values))
    # To the last digit but one: differences that are equal, or do not vary, decide otherwise than others do.
    measured = {name: float(f"{value:.15g}") for name, value in measured.items()}
    partition, versions = trial.partition or {}, trial.versions or source.versions
    origins = partition.get("origins", {})
    return {
        "suite": source.name,
        "algorithm": trial.method,
        **trial.setting,
        "seed": trial.seed,
        "rounds": int(trial.history["round"].max()),
        "protocol": protocol,
        "metric": trial.metric,
        "look": 1 + trial.look - min(one.look for one in source.trials),
        "planned": trial.planned if trial.planned > trial.history["round"].max() else "",
        "failed": _seeds_of(source, trial, "failed"),
        "stopped": _seeds_of(source, trial, "stopped"),
        "positive": trial.positive,
        "tuning": trial.repetition,
        "reference": registered_reference(source) or "",
        "until": str((source.config.get("sweep") or {}).get("until") or ""),
        "partition_seed": fixed_partition(source),
        "mode": "min" if trial.lower and not lower_is_better(trial.metric) else "",
        "places": " ".join(sorted({*REPEATED} & {*source.varying} - {*repeated_columns(source)})),
        **{f"{TUNED}{name}": value for name, value in trial.tuned.items()},
        **measured,
        "bytes_up": _total_bytes(trial, "up"),
        "bytes_down": _total_bytes(trial, "down"),
        "seconds": round(measures.total(trial, "time/round"), 1),
        "sha256": trial.sha256,
        "data": partition.get("dataset", source.config["experiment"]["data"]["name"]),
        "origins": ", ".join(f"{domain} {origin}" for domain, origin in origins.items()),
        **{f"{part}_sha256": trial.fingerprints.get(part, "") for part in ("data", "partition")},
        **{name: versions.get(name, "") for name in PACKAGES},
        **trial.provenance[0],
    }


def _seeds_of(source: ResultSet, trial: Trial, status: str) -> str:
    """Return the seeds of a trial's setting that ended so."""
    same = (one for one in source.trials if one.setting == trial.setting)
    return " ".join(map(str, sorted({one.seed for one in same if one.status == status})))


def _domains(trial: Trial) -> dict[str, list[str]]:
    """Return the clients of each domain; nothing for a single one, whose mean is the mean over clients."""
    found: dict[str, list[str]] = {}
    for client, domain in trial.domains.items():
        found.setdefault(domain, []).append(client)
    return found if len(found) > 1 else {}


def _total_bytes(trial: Trial, direction: str) -> int | None:
    count = measures.total(trial, f"bytes/{direction}")
    return None if math.isnan(count) else int(count)


def kept_results(frame: pd.DataFrame) -> ResultSet:
    """Return the runs that rows keep, in their order; the reported values of each are its one round.

    Method, data, rounds, protocol and metric are settings if they keep rows apart. Seeds that a setting
    failed or stopped early at are further trials, without a round.

    Parameters
    ----------
    frame : DataFrame
        As `read_export` returns it.
    """
    settings, rows = _settings_apart(frame), records(frame)
    trials = [_kept_trial(*one) for one in zip(range(len(rows)), settings, rows, strict=True)]
    known = {(str(one.setting), one.seed) for one in trials}
    for one, row in zip(list(trials), rows, strict=True):
        for status in ("failed", "stopped"):
            for seed in map(int, str(row.get(status, "")).split()):
                if (key := (str(one.setting), seed)) not in known:
                    known.add(key)
                    gone = replace(one, number="", seed=seed, history=pd.DataFrame(), sha256="")
                    trials.append(replace(gone, status=status))
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    suites = list(dict.fromkeys(frame["suite"]))
    title = next((name for name in suites if name.endswith(SMOKE)), " and ".join(suites))
    rules = set(frame.get("until", [""]))
    rule = _rule(max(rules)) if max(rules) else None
    if rule and len(rules) > 1:  # of several rules, or of some rows only: no planned end
        rule["at_most"] = None
    config = {
        "experiment": {
            "data": {"name": frame["data"].iloc[0]},
            "partition": {"seed": _only(frame, "partition_seed") or None},
            "evaluation": {"protocol": "last"},
        },
        "arms": {
            name.removeprefix(PREFIX): dict.fromkeys({*frame[name]})
            for name in setting_columns(frame)
            if name.startswith(PREFIX)
        },
        "space": {name: {"grid": []} for name in ("algorithm", *names)},
        "sweep": {
            "metric": "",  # not kept: the one that settings were chosen by
            "mode": _only(frame, "mode"),
            "reference": _only(frame, "reference") or None,
            "until": rule,
            "places": " ".join(frame.get("places", ())).split(),
        },
    }
    source = ResultSet(title, trials, config)
    source.notes = list(_kept_notes(source, frame))
    return source


def _rule(text: str) -> dict[str, Any]:
    """Return the rule in a cell of the column ``until`` has."""
    return Until.model_validate(yaml_files.parse(text)).model_dump()


def _only(frame: pd.DataFrame, name: str) -> str:
    """Return the one value of a column that may be missing; empty if it has several."""
    found = set(frame.get(name, [""]))
    return str(found.pop()) if len(found) == 1 else ""


def _settings_apart(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each row's settings, with as many columns more as keep different runs apart."""
    frame = frame.assign(metric=alike(list(frame["metric"])))
    early = pd.to_numeric(frame.get("planned", pd.Series("", frame.index)))
    frame["rounds"] = early.fillna(frame["rounds"]).astype(int)
    columns = setting_columns(frame)
    arms = [name.removeprefix(PREFIX) for name in columns if name.startswith(PREFIX)]
    names = {name for name in columns if is_name(name) and frame[name].nunique() > 1}

    def differs(name: str, among: Sequence[str]) -> bool:
        return bool(frame.groupby(list(among) or (lambda _: 0))[name].nunique().max() > 1)

    apart = list(columns)
    if len(seeds := {*frame.get("partition_seed", [""])}) > 1 and "" not in seeds:
        frame = frame.assign(**{PARTITION_SEED: frame["partition_seed"]})
        apart.append(PARTITION_SEED)
    # Methods on other data are never compared with each other.
    apart += ["data"] * differs("data", place_columns(columns, arms[0] if arms else ""))
    for name in ("algorithm", "rounds", "protocol", "metric"):
        apart += [name] * differs(name, apart)
    # Sweeps whose files differ in what their columns do not show.
    apart += ["suite"] * (differs("settings", apart) and differs("suite", apart))
    found = []
    for row in records(frame):
        own = {n: row[n] if is_name(n) else _scalar(row[n]) for n in apart if row[n] != ""}
        if not names & own.keys():
            own["algorithm"] = row["algorithm"]
        found.append(own)
    return found


def _scalar(cell: Any) -> Any:
    """Return the number that a cell has, so that labels show it as a sweep's do, or the text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(cell)
    return cell


def cell_value(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a setting's cell."""
    try:
        return yaml_files.parse(str(row[name]))
    except ValueError as error:
        raise DataError(
            f"the column {name}: {row[name]!r} is no value ({error}); restore the file"
        ) from None


def _kept_trial(number: int, setting: dict[str, Any], row: Mapping[str, Any]) -> Trial:
    metric, scale = row["metric"], 100.0 if is_share(row["metric"]) else 1.0
    view, measure = metric.partition("/")[0], metric.rpartition("/")[2]
    own, others = f"{view}/local/{measure}", f"personal/others/{measure}"
    values = {own: row["own"], others: row["others"], metric: row["value"]}
    domains = [
        name.removeprefix(DOMAIN)
        for name, cell in row.items()
        if name.startswith(DOMAIN) and not math.isnan(cell)
    ]
    for domain in domains:
        values[f"{own}/client/{domain}"] = math.nan
        shown = others if "/others/" in metric else own
        values[f"{shown}/client/{domain}"] = row[f"{DOMAIN}{domain}"]
    history = {"round": int(row["rounds"]), "time/round": row["seconds"]}
    history |= {name: value / scale for name, value in values.items()}
    return Trial(
        str(number),
        setting,
        int(row["seed"]),
        "finished",
        metric,
        pd.DataFrame([history]),
        row["algorithm"],
        Path(os.devnull),
        sha256=row["sha256"],
        fingerprints={part: row[f"{part}_sha256"] for part in ("data", "partition")},
        tuned={
            name.removeprefix(TUNED): cell_value(row, name)
            for name, cell in row.items()
            if name.startswith(TUNED) and cell != ""
        },
        repetition=int(row.get("tuning") or 0),
        look=int(row.get("look") or 1),
        partition={"clients": [{"name": name, "domain": name} for name in domains]},
        sweep={"mode": row.get("mode", "")},
    )


def _kept_notes(source: ResultSet, frame: pd.DataFrame) -> Iterator[str]:
    """Yield a line on each thing that rows hold besides settings and values."""
    data = [f"{one} ({of})" for one, of in frame[["data", "origins"]].itertuples(index=False)]
    packages = frame[list(PACKAGES)].to_dict("records")
    labels = {(source.label(one), one.seed): one.number for one in source.trials}
    for title, found in (
        ("value of a run", frame["protocol"]),
        ("rounds", frame["rounds"]),
        ("data", data),
        ("positive class", frame.get("positive", ())),
        (
            "tuned",
            [
                f"{source.label(one)} {setting_label(one.tuned)}"
                for one in source.trials
                if one.tuned
            ],
        ),
        ("versions", [", ".join(f"{name} {one[name]}" for name in PACKAGES) for one in packages]),
        (
            "kept more than once, of which the last counts",
            [
                f"{label} seed {one.seed}"
                for one in source.trials
                if labels[(label := source.label(one)), one.seed] != one.number
            ],
        ),
    ):
        if texts := [text for text in dict.fromkeys(map(str, found)) if text]:
            yield f"{title}: {'; '.join(texts)}"


def setting_columns(columns: Iterable[object]) -> list[str]:
    """Return those of a kept file's columns that are settings, in whatever order a spreadsheet has put them."""
    fixed = {*FIRST, *MEASURED, *OPTIONAL, *LAST, *PROVENANCE, "label"}  # the last is of `verify`
    names = [str(name) for name in columns if name not in fixed]
    return [name for name in names if not name.startswith((DOMAIN, TUNED))]
