"""A sweep's results as one CSV file for a repository: its rows, one per finished run, rebuild the table."""

import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flray.config import yaml_files
from flray.config.arms import PREFIX, is_name, setting_label
from flray.config.suites import SMOKE
from flray.config.sweep import Until
from flray.errors import DataError, FlrayError
from flray.files.atomic import write_atomically
from flray.files.border import open_file
from flray.metrics.names import lower_is_better
from flray.results import measures
from flray.results.build_studies import (
    REPEATED,
    Observation,
    comparable,
    fixed_partition,
    group_observations,
    levels_of,
    place_columns,
    repeated_columns,
)
from flray.results.conclusions import conclude
from flray.results.formatting import csv_text, read_csv
from flray.results.result_set import (
    PROVENANCE,
    ResultSet,
    Trial,
    alike,
    alike_notes,
    beside,
    entries_text,
    read_entries,
)
from flray.results.study import AFTERWARDS, Studies, registered_reference
from flray.results.sweep import SMOKE_NOTE
from flray.results.table import Column, Table

FIRST = ("suite", "algorithm")
MEASURED = ("seed", "rounds", "protocol", "metric", "value", "own", "others", "worst")
PACKAGES = ("python", "flray", "torch", "numpy")
COSTS = ("bytes_up", "bytes_down", "seconds")
LAST = (*COSTS, "sha256", "data", "origins", "data_sha256", "partition_sha256", *PACKAGES)
"""Columns before the settings, after them, and after the domains'."""
OPTIONAL = {"look": "1", "tuning": "0"} | dict.fromkeys(
    ("failed", "stopped", "positive", "reference", "until", "places", "partition_seed"), ""
)
"""Columns after `MEASURED` of files in which something is to be said there, with the value that says nothing."""
_FORMS = {
    "look": re.compile(r"\d{0,9}"),
    "tuning": re.compile(r"\d{0,9}"),
    **dict.fromkeys(("failed", "stopped"), re.compile(r"(\d{1,19}( \d{1,19})*)?")),
    **dict.fromkeys(PROVENANCE, re.compile("([0-9a-f]{40}|[0-9a-f]{64})?")),
}
DOMAIN, TUNED = "domain/", "tuned."
_NUMBERS = ("seed", "rounds", "value", "own", "others", "worst", *COSTS)
_SHA = re.compile(r"[0-9a-f]{64}")
_DIGITS = 4


class ExportCounts(NamedTuple):
    """The numbers of runs that were added, that were in the file before, and that have not finished."""

    added: int
    existing: int
    unfinished: int


def export_runs(source: ResultSet, path: Path) -> ExportCounts:
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
        had this run, because added seeds need another test. ``failed`` has the seeds that its
        setting failed at, ``stopped`` those that it stopped early at, ``until`` the rule that the
        sweep added seeds by, ``places`` the seeds whose values are compared apart, ``partition_seed`` the
        seed of the one partition of all runs, if the sweep names it, ``positive`` the
        positive class of a task of two, ``tuning`` the number of the tuning that chose its settings,
        ``reference`` the one that the sweep registered,
        ``tuned.NAME`` the choices of ``sweep.tune``,
        ``domain/NAME`` the value of a domain's clients (on the others' test parts if ``metric`` is).
        Further: ``bytes_up`` and ``bytes_down`` in total, ``seconds``
        of training, ``sha256`` of everything learnt, ``data`` with the ``origins`` of its domains,
        the SHA-256 of data and partition if they were tracked, and versions. ``settings``, ``code``
        and ``machine`` are SHA-256 of entries in the ``.provenance.json`` file beside it, see
        `flray.results.result_set`; ``commit`` is the git commit.

    Raises
    ------
    FlrayError
        If no run has finished, or the file holds something else.
    """
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
        if found := {name: entry for name, entry in found.items() if name in named}:
            write_atomically(beside(path), entries_text(found))
        write_atomically(path, csv_text(whole).encode())
    return ExportCounts(len(new), len(rows) - len(new), len(source.trials) - len(rows))


def rows_beside(source: ResultSet, path: Path) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Return the rows of a file, those of the finished runs in the same columns, and the columns of settings."""
    existing = _read_text(path) if path.exists() else pd.DataFrame()
    finished = [trial for trial in source.trials if trial.status == "finished" and trial.sha256]
    content = csv_text(pd.DataFrame([row_of(source, trial) for trial in finished]))
    rows = read_csv(io.StringIO(content)) if finished else pd.DataFrame()
    names = list(dict.fromkeys([*existing.columns, *rows.columns]))
    domains = [name for name in names if name.startswith(DOMAIN)]
    tuned = [name for name in names if name.startswith(TUNED)]
    fixed = {*FIRST, *MEASURED, *OPTIONAL, *LAST, *PROVENANCE, *tuned, *domains}
    settings = source.in_order(name for name in names if name not in fixed)
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
    for name in frame.columns:
        if name.startswith(DOMAIN) or name in _NUMBERS:
            try:
                frame[name] = pd.to_numeric(frame[name])
            except ValueError as error:
                raise DataError(
                    f"{path}: no number in the column {name} ({error}); restore the file"
                ) from None
    for text in {*frame.get("until", ())} - {""}:
        try:
            _rule(text)
        except ValueError:
            raise DataError(
                f"{path}: {text!r} in the column until is no sweep.until; restore the file"
            ) from None
    for name in (one for one in PROVENANCE if one not in frame):
        frame[name] = ""  # kept by an older flray
    for name in ("seed", "rounds"):
        if frame[name].isna().any():
            raise DataError(f"{path}: an empty cell in the column {name}; restore the file")
    return frame


def _read_text(path: Path) -> pd.DataFrame:
    try:
        with open_file(path) as file:
            frame = read_csv(io.TextIOWrapper(file, encoding="utf-8", newline=""))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no kept results ({error})") from None
    if missing := [name for name in (*FIRST, *MEASURED, *LAST) if name not in frame.columns]:
        raise DataError(
            f"{path}: no kept results: without the columns {', '.join(missing)}; "
            "make such a file with flray report NAME --keep FILE.csv"
        )
    for name, expected in _FORMS.items():
        for text in frame.get(name, ()):
            if not expected.fullmatch(text):
                raise DataError(
                    f"{path}: {text!r} in the column {name} is neither a number nor a SHA-256; restore the file"
                )
    if wrong := [sha for sha in frame["sha256"] if not _SHA.fullmatch(sha)]:
        raise DataError(
            f"{path}: {wrong[0]!r} in the column sha256 is no SHA-256 of 64 hexadecimal digits"
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
    worst = max if lower_is_better(own) else min
    measured = {
        "value": measures.value(trial, "auto"),
        "own": measures.value(trial, own),
        "others": measures.value(trial, f"others/{own.partition('/')[2]}"),
        "worst": worst(finite, default=math.nan),
    }
    for domain, names in _domains(trial).items():
        values = [measures.value(trial, measures.client_measure(trial), name) for name in names]
        measured[f"{DOMAIN}{domain}"] = float(np.mean(values))
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
        "look": 2 if not trial.taken_over and any(t.taken_over for t in source.trials) else 1,
        "failed": _seeds_of(source, trial, "failed"),
        "stopped": _seeds_of(source, trial, "stopped"),
        "positive": trial.positive,
        "tuning": trial.repetition,
        "reference": registered_reference(source) or "",
        "until": str((source.config.get("sweep") or {}).get("until") or ""),
        "partition_seed": fixed_partition(source),
        "places": " ".join(sorted({*REPEATED} & {*source.varying} - {*repeated_columns(source)})),
        **{f"{TUNED}{name}": value for name, value in trial.tuned.items()},
        **{name: round(value, _DIGITS) for name, value in measured.items()},
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


_DISTINGUISHING = {
    "algorithm": "{}",
    "data": "{}",
    "rounds": "{} rounds",
    "protocol": "{}",
    "metric": "{}",
}
"""Columns that keep rows apart besides their settings, and their text in a label."""
_HEADS = {"value": "score", "own": f"own {measures.AVERAGE}"}


def build_export_table(frame: pd.DataFrame, reference: str | None = None) -> Table:
    """Return the table of exported results.

    Runs of other numbers of rounds, of other data or under another protocol are other rows, and say
    so.

    Parameters
    ----------
    frame : DataFrame
        As `flray.results.export.read_export` returns it.
    reference : str, optional
        The setting that all others are compared with; default: the registered one, or else all
        pairs are compared.
    """
    frame = _alike(frame)
    metrics = " or ".join(sorted(set(frame["metric"])))
    domains = [str(name) for name in frame.columns if str(name).startswith(DOMAIN)]
    shown = ["value", *domains, *(["own"] if "/others/" in metrics else [])]
    columns = [
        Column((_HEADS.get(name, name.removeprefix(DOMAIN)),), metrics, compared=name == "value")
        for name in shown
    ]
    table = Table(f"{frame['suite'].iloc[0]}: {metrics}", "setting", columns)
    repeated: dict[str, None] = {}
    for label, record in zip(row_labels(frame), frame.to_dict("records"), strict=True):
        if table.add(label, int(record["seed"]), [float(record[name]) for name in shown]):
            repeated[f"{label} seed {record['seed']}"] = None
    table.sort_rows()
    data = dict.fromkeys(
        f"{data} ({origins})" for data, origins in zip(frame["data"], frame["origins"], strict=True)
    )
    if not any(str(name).endswith(SMOKE) for name in frame["suite"]):
        found = _studies(frame, metrics)
        table.studies = found.against(reference or found.registered, "--reference")
        where = dict(zip(row_labels(frame), _places_and_names(frame), strict=True))
        table.mark_best(lambda label, column: (where[label][0], metrics, where[label][1]))
        late = any(study.afterwards for study in table.studies.each)
        table.conclusions = conclude(table.studies) + [AFTERWARDS.format(reference)] * late
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
            ("positive class", list(filter(None, frame.get("positive", pd.Series()).unique()))),
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
    values = frame["value"].where(metrics == frame["metric"], frame["own"])
    return frame.assign(metric=metrics, value=values)


def _studies(frame: pd.DataFrame, metric: str) -> Studies:
    """Return the comparisons: settings on the same data, in the same circumstances."""
    repeated = _repeated(frame)
    tuned = [str(name) for name in frame.columns if str(name).startswith(TUNED)]
    observations, stopped = [], set()
    where = _places_and_names(frame)
    for (place, name), record in zip(where, frame.to_dict("records"), strict=True):
        stopped |= {(place, name)} if record.get("stopped") else set()
        failed = {int(seed): "" for seed in str(record.get("failed", "")).split()}
        look, value = int(record.get("look") or 1), float(record["value"])
        chosen = str(record.get("tuning") or 0) if any(record[one] != "" for one in tuned) else ""
        own = {one: str(record[one]) for one in repeated}
        data, fixed = str(record["data_sha256"]), str(record.get("partition_seed", ""))
        key, levels = levels_of(int(record["seed"]), own, data, chosen, fixed)
        observations.append(Observation(place, metric, name, key, value, look, failed, levels))
    # Rows of several rules, or of some and of none, have no planned end.
    rules = sorted(set(frame.get("until", [""])))
    until = (
        {**_rule(rules[-1]), **({"at_most": None} if len(rules) > 1 else {})} if rules[-1] else None
    )
    studies, left_out = comparable(group_observations(observations), stopped, until)
    references = set(frame.get("reference", [""]))
    known = {name for study in studies for name in study.values} & references
    return Studies(studies, left_out, known.pop() if len(references) == 1 and known else None)


def _rule(text: str) -> dict[str, Any]:
    """Return the rule in a cell of the column ``until`` has."""
    return Until.model_validate(yaml_files.parse(text)).model_dump()


def _repeated(frame: pd.DataFrame) -> list[str]:
    """Return the columns of settings whose values are repetitions and no places."""
    places = " ".join(frame.get("places", ())).split()
    return [name for name in _place_columns(frame) if name in REPEATED and name not in places]


def _place_columns(frame: pd.DataFrame) -> list[str]:
    columns = setting_columns(frame)
    arms = [name for name in columns if name.startswith(PREFIX)]
    varying = [name for name in columns if frame[name].nunique() > 1]
    return place_columns(varying, arms[0].removeprefix(PREFIX) if arms else "")


def _places_and_names(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the place of each row, and the name of the setting that is compared there."""
    places, repeated = _place_columns(frame), _repeated(frame)
    several = frame["data"].nunique() > 1 and "data" not in places
    found = []
    names = row_labels(frame.drop(columns=places).assign(data=""))
    for name, record in zip(names, frame.to_dict("records"), strict=True):
        own = {one: record[one] for one in places if record[one] != "" and one not in repeated}
        data = str(record["data"]) if several else ""
        found.append((" ".join(filter(None, (setting_label(own), data))), name))
    return found


def _tuned(frame: pd.DataFrame) -> list[str]:
    """Return a note on the tuned settings of each row of the table."""
    columns = [str(name) for name in frame.columns if str(name).startswith(TUNED)]
    found: dict[str, str] = {}
    for label, record in zip(row_labels(frame), frame.to_dict("records"), strict=True):
        own = {
            name.removeprefix(TUNED): yaml_files.parse(record[name])
            for name in columns
            if record[name] != ""
        }
        if own:
            found[label] = f"{label} {setting_label(own)}"
    return list(found.values())


def setting_columns(columns: Iterable[object]) -> list[str]:
    """Return those of a kept file's columns that are settings."""
    names = [str(name) for name in columns]
    return names[len(FIRST) : names.index(MEASURED[0])]


def row_labels(frame: pd.DataFrame) -> list[str]:
    """Return each row's label, with as many columns as keep different runs apart."""
    varying = [name for name in setting_columns(frame) if frame[name].nunique() > 1]
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
