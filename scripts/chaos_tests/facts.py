"""What a run or sweep left behind, and how it differs from what it should be."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from flray.tracking.sync import run_directories

VARIES = ("time/", "memory/", "system/", "train/seconds")
"""Metrics that measure the machine."""
MORE = 5
"""Differences of one kind that are listed."""
LARGEST = 1.7976931348623157e308  # what MLflow writes for infinity


def steady(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics that do not depend on the machine, in a form that can be compared and kept as JSON."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
        if not name.startswith(VARIES)
    }


def events(folder: Path) -> list[dict[str, Any]]:
    """Return all whole events of a journal."""
    path = folder / "journal.jsonl"
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def recorded(folder: Path) -> int:
    """Return how many rounds a run or a sweep's trials have in their journals."""
    count = 0
    for path in [folder / "journal.jsonl", *folder.glob("trials/*/journal.jsonl")]:
        if path.exists() and not (path.parent / "sweep.json").exists():
            count += path.read_bytes().count(b'"type":"round"')
    return count


def run_facts(folder: Path) -> dict[str, Any]:
    """Return what a finished run is: digest, status, and each round's metrics."""
    identity = json.loads((folder / "run.json").read_text())
    rounds = [event for event in events(folder) if event["type"] == "round"]
    return {
        "sha256": identity.get("sha256"),
        "status": identity["status"],
        "rounds": [event["round"] for event in rounds],
        "metrics": {str(event["round"]): steady(event["metrics"]) for event in rounds},
    }


def sweep_facts(folder: Path) -> dict[str, Any]:
    """Return what a finished sweep is: its trials, its table and its choice."""
    trials = {}
    for path in sorted(folder.glob("trials/*/run.json")):
        identity = json.loads(path.read_text())
        trials[path.parent.name] = {
            **run_facts(path.parent),
            "setting": identity["setting"],
            "seed": identity["seed"],
        }
    status = json.loads((folder / "sweep.json").read_text())["status"]
    tables = {name: list(_rows(folder / name)) for name in ("results.csv", "summary.csv")}
    best = [event["tags"]["best"] for event in events(folder) if "best" in event.get("tags", {})]
    return {"status": status, "trials": trials, "best": best[-1:], **tables}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if path.exists():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                yield {name: value for name, value in row.items() if name != "seconds"}


def compare(found: Any, wanted: Any, where: str = "") -> list[str]:
    """Return a line for each leaf in which two trees of facts differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        lines = [
            f"{where}/{key}: {'missing' if key in wanted else 'too much'}"
            for key in sorted(found.keys() ^ wanted.keys())
        ]
        return lines + [
            line
            for key in sorted(found.keys() & wanted.keys())
            for line in compare(found[key], wanted[key], f"{where}/{key}")
        ]
    if (
        isinstance(found, list)
        and isinstance(wanted, list)
        and len(found) == len(wanted)
        and found
        and isinstance(found[0], dict)
    ):
        return [
            line
            for i, (a, b) in enumerate(zip(found, wanted, strict=True))
            for line in compare(a, b, f"{where}/{i}")
        ]
    return [] if found == wanted else [f"{where}: {_short(found)}, without kills {_short(wanted)}"]


def promised(found: dict[str, Any], wanted: dict[str, Any], rounds: int) -> list[str]:
    """Compare every trial of a sweep up to the round that it came to; see `catalogue.Federation`.

    Parameters
    ----------
    found, wanted : dict
        From `sweep_facts`.
    rounds : int
        Of a whole trial.
    """
    lines = [] if found["status"] == "finished" else [f"/status: {found['status']}"]
    lines += compare(sorted(found["trials"]), sorted(wanted["trials"]), "/trials")
    for number in found["trials"].keys() & wanted["trials"].keys():
        trial, other = found["trials"][number], wanted["trials"][number]
        lines += compare(
            {k: trial[k] for k in ("setting", "seed")},
            {k: other[k] for k in ("setting", "seed")},
            f"/trials/{number}",
        )
        done = len(trial["rounds"])
        lines += compare(trial["rounds"], list(range(1, done + 1)), f"/trials/{number}/rounds")
        if (trial["status"], done) != ("finished", rounds) and trial["status"] != "stopped":
            lines.append(f"/trials/{number}: {trial['status']} with {done} rounds")
        same = {r: m for r, m in other["metrics"].items() if int(r) <= done}
        lines += compare(trial["metrics"], same, f"/trials/{number}/metrics")
        if trial["status"] == "finished":
            lines += compare(trial["sha256"], other["sha256"], f"/trials/{number}/sha256")
    scores = {}
    for row in found["results.csv"]:
        last = found["trials"][row["trial"]]["metrics"][row["rounds"]]
        scores[row["trial"]] = float(row["score"]), float(last["score"])
    lines += [
        f"/results.csv/{number}: score {a}, in the journal {b}"
        for number, (a, b) in scores.items()
        if a != b
    ]
    top = max(score for score, _ in scores.values()) if scores else math.nan
    if float(found["summary.csv"][0]["score"]) != top:
        lines.append(
            f"/summary.csv: the best is {found['summary.csv'][0]['score']}, in results.csv {top}"
        )
    return lines


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) < 90 else f"{text[:60]} ... ({len(text)} characters)"


def tracked(folder: Path, database: Path, artifacts: Path | None = None) -> list[str]:
    """Compare what MLflow holds with the journals: one run each, every metric of every round exactly once.

    Parameters
    ----------
    folder : Path
        A run's or sweep's.
    database : Path
        Of MLflow; holds nothing else.
    artifacts : Path, optional
        Where the tracking server keeps files.
    """
    lines: list[str] = []
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    try:
        above = dict(run_directories(folder))
        journals = list(above)
        runs = {
            row[0]: row[1:]
            for row in connection.execute("select run_uuid, status, artifact_uri from runs")
        }
        if len(runs) != len(journals):
            lines.append(f"MLflow: {len(runs)} runs for {len(journals)} journals")
        parents = dict(
            connection.execute("select run_uuid, value from tags where key = 'mlflow.parentRunId'")
        )
        own: dict[Path, str] = {}
        for journal in journals:
            happened = events(journal)
            uid = next(event["uid"] for event in happened if event["type"] == "start")
            named = [
                row[0]
                for row in connection.execute(
                    "select run_uuid from tags where key = 'flray.uid' and value = ?", (uid,)
                )
            ]
            if len(named) != 1:
                lines.append(f"MLflow: {len(named)} runs of {journal.name} ({uid})")
                continue
            own[journal] = named[0]
            status, uri = runs[named[0]]
            lines += _one(connection, journal, happened, named[0], str(status))
            lines += _files(journal, happened, str(uri), artifacts)
        lines += [
            f"MLflow: the run of {journal.name} is not shown under its parent's"
            for journal, run in own.items()
            if (parent := above[journal]) is not None
            and parents.get(run) not in [own.get(one) for one in own if one.samefile(parent)]
        ]
    finally:
        connection.close()
    return lines


def _one(
    connection: sqlite3.Connection,
    journal: Path,
    happened: list[dict[str, Any]],
    run: str,
    status: str,
) -> list[str]:
    lines = [] if status == "FINISHED" else [f"MLflow: {journal.name} is {status}"]
    wanted: dict[tuple[str, int], float] = {}
    for event in happened:
        if event["type"] == "round":
            wanted |= {
                (name, event["round"]): float(value) for name, value in event["metrics"].items()
            }
    there: Counter[tuple[str, int]] = Counter()
    values: dict[tuple[str, int], float] = {}
    for name, step, value, is_nan in connection.execute(
        "select key, step, value, is_nan from metrics where run_uuid = ?", (run,)
    ):
        there[name, step] += 1
        values[name, step] = (
            math.nan if is_nan else math.inf * value if abs(value) >= LARGEST else value
        )
    for what, keys in (
        ("missing", wanted.keys() - there.keys()),
        ("unknown", there.keys() - wanted.keys()),
        ("doubled", {key for key, count in there.items() if count > 1}),
        (
            "different",
            {
                key
                for key in wanted.keys() & values.keys()
                if wanted[key] != values[key] and not math.isnan(wanted[key] + values[key])
            },
        ),
    ):
        if keys:
            steps = sorted({step for _, step in keys})
            lines.append(
                f"MLflow: {journal.name}: {len(keys)} points {what}, of rounds {steps[:20]}"
            )
    latest = connection.execute(
        "select count(*) from latest_metrics where run_uuid = ?", (run,)
    ).fetchone()[0]
    if latest != len({name for name, _ in wanted}):
        lines.append(
            f"MLflow: {journal.name}: {latest} latest metrics, {len({n for n, _ in wanted})} names"
        )
    tags = dict(connection.execute("select key, value from tags where run_uuid = ?", (run,)))
    for event in happened:
        if (
            "model.sha256" in event.get("tags", {})
            and tags.get("model.sha256") != event["tags"]["model.sha256"]
        ):
            lines.append(f"MLflow: {journal.name}: model.sha256 is {tags.get('model.sha256')}")
    start = next(event for event in happened if event["type"] == "start")
    params = dict(connection.execute("select key, value from params where run_uuid = ?", (run,)))
    if len(params) != len(start["params"]):
        lines.append(f"MLflow: {journal.name}: {len(params)} settings of {len(start['params'])}")
    return lines


def _files(
    journal: Path, happened: list[dict[str, Any]], uri: str, artifacts: Path | None
) -> list[str]:
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        place = Path(unquote(parts.path))
    elif artifacts is not None:
        place = artifacts / parts.path.lstrip("/").removeprefix(
            "api/2.0/mlflow-artifacts/artifacts/"
        )
    else:
        return []
    names = {
        f"{e['to']}/{Path(e['path']).name}" if e["to"] else Path(e["path"]).name
        for e in happened
        if e["type"] == "artifact"
    }
    return [
        f"MLflow: {journal.name}: the file {name} is missing"
        for name in sorted(names)
        if not (place / name).exists()
    ][:MORE]
