"""What a run or sweep left behind, and how it differs from what it should be."""

import contextlib
import json
import math
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from digests import VARIES, leaves, rows

from flray.records import read_events
from flray.tracking.background import run_directories

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


def recorded(folder: Path) -> int:
    """Return how many rounds a run or a sweep's trials have in their journals."""
    sweep = (folder / "sweep.json").exists()
    journals = folder.glob("trials/*/journal.jsonl" if sweep else "journal.jsonl")
    return sum(path.read_bytes().count(b'"type":"round"') for path in journals)


def run_facts(folder: Path) -> dict[str, Any]:
    """Return what a finished run is: digest, status, and each round's metrics."""
    identity = json.loads((folder / "run.json").read_text())
    rounds = [event for event in read_events(folder) if event["type"] == "round"]
    return {
        **{name: identity.get(name) for name in ("sha256", "status", "setting", "seed")},
        "rounds": [event["round"] for event in rounds],
        "metrics": {str(event["round"]): steady(event["metrics"]) for event in rounds},
    }


def sweep_facts(folder: Path) -> dict[str, Any]:
    """Return what a finished sweep is: its trials, its table and its choice."""
    status = json.loads((folder / "sweep.json").read_text())["status"]
    trials = {path.parent.name: run_facts(path.parent) for path in folder.glob("trials/*/run.json")}
    files = [folder / name for name in ("results.csv", "summary.csv")]
    tables = {file.name: list(rows(file)) for file in files if file.exists()}
    best = [event.get("tags", {}).get("best") for event in read_events(folder)]
    return {"status": status, "trials": trials, "best": [one for one in best if one][-1:], **tables}


def facts_of(folder: Path) -> dict[str, Any]:
    """Return what a finished run or sweep is."""
    return (sweep_facts if (folder / "sweep.json").exists() else run_facts)(folder)


def promised(found: dict[str, Any], wanted: dict[str, Any], rounds: int) -> list[str]:
    """Compare every trial of a sweep up to the round that it came to; whole trials have so many rounds."""
    lines = [] if found["status"] == "finished" else [f"/status: {found['status']}"]
    lines += leaves(sorted(found["trials"]), sorted(wanted["trials"]), "/trials")
    for number in found["trials"].keys() & wanted["trials"].keys():
        trial, other = found["trials"][number], wanted["trials"][number]
        for key in ("setting", "seed"):
            lines += leaves(trial[key], other[key], f"/trials/{number}/{key}")
        done = len(trial["rounds"])
        lines += leaves(trial["rounds"], list(range(1, done + 1)), f"/trials/{number}/rounds")
        if (trial["status"], done) != ("finished", rounds) and trial["status"] != "stopped":
            lines.append(f"/trials/{number}: {trial['status']} with {done} rounds")
        same = {r: m for r, m in other["metrics"].items() if int(r) <= done}
        lines += leaves(trial["metrics"], same, f"/trials/{number}/metrics")
        if trial["status"] == "finished":
            lines += leaves(trial["sha256"], other["sha256"], f"/trials/{number}/sha256")
    scores = []
    for row in found["results.csv"]:
        number, score = row["trial"], float(row["score"])
        scores.append(score)
        kept = float(found["trials"][number]["metrics"][row["rounds"]]["score"])
        if score != kept:
            lines.append(f"/results.csv/{number}: score {score}, in the journal {kept}")
    top, best = max(scores, default=math.nan), found["summary.csv"][0]["score"]
    if float(best) != top:
        lines.append(f"/summary.csv: the best is {best}, in results.csv {top}")
    return lines


def tracked(folder: Path, database: Path, artifacts: Path | None = None) -> list[str]:
    """Compare what MLflow holds with the journals: one run each, every metric of every round exactly once.

    The database holds nothing else than this run or sweep; `artifacts` is where a tracking server keeps files.
    """
    lines, above = [], dict(run_directories(folder))
    reading = f"{database.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(reading, uri=True)) as db:
        found = db.execute("select run_uuid, status, artifact_uri from runs")
        runs = {uid: rest for uid, *rest in found}
        if len(runs) != len(above):
            lines.append(f"MLflow: {len(runs)} runs for {len(above)} journals")
        tags = "select run_uuid, value from tags where key = ?"
        parents = dict(db.execute(tags, ("mlflow.parentRunId",)))
        named: dict[str, list[str]] = defaultdict(list)
        for run, uid in db.execute(tags, ("flray.uid",)):
            named[uid].append(run)
        own: dict[Path, str] = {}
        for journal in above:
            happened = read_events(journal)
            start = next(event for event in happened if event["type"] == "start")
            found_runs = named[start["uid"]]
            if len(found_runs) != 1:
                lines.append(f"MLflow: {len(found_runs)} runs of {journal.name} ({start['uid']})")
                continue
            (own[journal],) = found_runs
            status, uri = runs[own[journal]]
            said = [] if status == "FINISHED" else [f"is {status}"]
            said += _one(db, happened, own[journal], len(start["params"]))
            said += _files(happened, str(uri), artifacts)
            lines += [f"MLflow: {journal.name}: {line}" for line in said]
    lines += [
        f"MLflow: the run of {journal.name} is not shown under its parent's"
        for journal, run in own.items()
        if (parent := above[journal]) is not None
        and parents.get(run) not in [own.get(one) for one in own if one.samefile(parent)]
    ]
    return lines


def _one(
    db: sqlite3.Connection, happened: list[dict[str, Any]], run: str, settings: int
) -> list[str]:
    """Compare the numbers, tags and settings of a run of MLflow with its journal."""
    lines = []
    wanted: dict[tuple[str, int], float] = {}
    sha256 = None
    for event in happened:
        sha256 = event.get("tags", {}).get("model.sha256", sha256)
        if event["type"] == "round":
            number, metrics = event["round"], event["metrics"]
            wanted |= {(name, number): value for name, value in metrics.items()}
    there: dict[tuple[str, int], list[float]] = defaultdict(list)
    found = "from metrics where run_uuid = ?"
    for name, step, value, is_nan in db.execute(f"select key, step, value, is_nan {found}", (run,)):
        value = math.inf * value if abs(value) >= LARGEST else value
        there[name, step].append(math.nan if is_nan else value)
    both = wanted.keys() & there.keys()
    for what, keys in (
        ("missing", wanted.keys() - there.keys()),
        ("unknown", there.keys() - wanted.keys()),
        ("doubled", {key for key, values in there.items() if len(values) > 1}),
        ("different", {key for key in both if _differ(wanted[key], there[key][-1])}),
    ):
        if keys:
            steps = sorted({step for _, step in keys})
            lines.append(f"{len(keys)} points {what}, of rounds {steps[:20]}")
    kept = ("latest_metrics", "tags", "params")
    latest, tags, params = (
        dict(db.execute(f"select key, value from {table} where run_uuid = ?", (run,)))
        for table in kept
    )
    names = {name for name, _ in wanted}
    if len(latest) != len(names):
        lines.append(f"{len(latest)} latest metrics, {len(names)} names")
    if sha256 is not None and tags.get("model.sha256") != sha256:
        lines.append(f"model.sha256 is {tags.get('model.sha256')}")
    if len(params) != settings:
        lines.append(f"{len(params)} settings of {settings}")
    return lines


def _differ(a: float, b: float) -> bool:
    return a != b and not math.isnan(a + b)


def _files(happened: list[dict[str, Any]], uri: str, artifacts: Path | None) -> list[str]:
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        place = Path(unquote(parts.path))
    elif artifacts is not None:
        served = "/api/2.0/mlflow-artifacts/artifacts/"
        place = artifacts / parts.path.removeprefix(served).lstrip("/")
    else:
        return []
    sent = [event for event in happened if event["type"] == "artifact"]
    names = {str(Path(event["to"] or "", Path(event["path"]).name)) for event in sent}
    missing = sorted(name for name in names if not (place / name).exists())
    return [f"the file {name} is missing" for name in missing[:MORE]]
