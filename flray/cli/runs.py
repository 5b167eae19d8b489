"""``flray ls``: the runs and sweeps of a folder."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from flray.cli.display import console, show_table
from flray.errors import FlrayError
from flray.files import storage
from flray.metrics import find_primary_metric
from flray.records import JOURNAL, directory, read_events, rounds_of

_SILENT = 600.0
"""Seconds without a word after which a run says so."""


def show_runs(base: str, as_json: bool) -> None:
    """Print the runs and sweeps of a folder, the newest last."""
    if storage.is_remote(base):
        raise FlrayError(
            f"--output: found {base}; only folders of this machine are listed. Use the storage's tool, and name one "
            f"run: flray report NAME --output {base}"
        )
    table = _runs(base)
    if not table.row_count and not as_json:
        console.print(
            f"{base}: no runs; begin one with flray run, or name their folder with --output"
        )
        return
    show_table(table, as_json)


def _runs(base: str) -> Table:
    table = Table("run", "kind", "status", "what", "done", "value", "begun", title=f"{base}/")
    named = (path for path in Path(base).glob("*/*") if path.name.isdecimal())
    found = filter(directory.folder_kind, named)
    for folder in sorted(found, key=lambda f: (str(_record(f).get("created", "")), str(f))):
        table.add_row(*_row(folder))
    return table


def _record(folder: Path) -> Mapping[str, Any]:
    try:
        return directory.read(folder)
    except FlrayError as error:  # one damaged folder does not hide the others
        return {"status": f"damaged: {error}"}


def _row(folder: Path) -> Iterator[str]:
    record, kind = _record(folder), str(directory.folder_kind(folder))
    yield f"{folder.parent.name}/{folder.name}"
    yield kind
    yield _status(folder, str(record["status"]))
    try:
        experiment = directory.read_config(folder)["experiment"]
        events = read_events(folder / JOURNAL)
    except (FlrayError, OSError):
        yield from ("", "", "")
    else:
        method = _name(experiment.get("algorithm"))
        if kind == "sweep":
            trials = [_record(path.parent) for path in folder.glob("trials/*/run.json")]
            ended = sum(trial["status"] in ("finished", "stopped") for trial in trials)
            tags = {k: v for e in events if e["type"] == "tags" for k, v in e["tags"].items()}
            yield _name(experiment.get("data"))
            states = Counter(str(trial["status"]).partition(":")[0] for trial in trials)
            others = {state: states[state] for state in states.keys() - {"finished", "stopped"}}
            more = "".join(f", {count} {status}" for status, count in sorted(others.items()))
            yield f"{ended} of {len(trials)} trials{more}"
            if "best.score" in tags:
                value = f"{tags['best.score']} {tags.get('best.metric', '')}".rstrip()
                yield f"{value}: {tags.get('best', '')}"
            else:
                yield f"so far: {record['best']}" if record.get("best") else ""
        else:
            rounds = rounds_of(events)
            yield f"{method} on {_name(experiment.get('data'))}"
            yield f"{max(rounds, default=0)} of {experiment.get('rounds', '?')} rounds"
            yield _last_value(method, rounds)
    yield str(record.get("created", ""))[:16].replace("T", " ")


def _status(folder: Path, status: str) -> str:
    """Return a run's status; one whose process was killed is still said to run, but is silent."""
    if status != "running":
        return status
    journals = [folder / JOURNAL, *folder.glob(f"trials/*/{JOURNAL}")]
    changes = []
    for path in journals:
        with contextlib.suppress(OSError):  # it may be removed meanwhile
            changes.append(path.stat().st_mtime)
    silent = time.time() - max(changes, default=time.time())
    return status if silent < _SILENT else f"running, but silent for {silent / 60:.0f} min"


def _last_value(method: str, rounds: Mapping[int, Mapping[str, float]]) -> str:
    """Return the method's main value in the last round that measured it."""
    name = find_primary_metric(method, [name for metrics in rounds.values() for name in metrics])
    values = [metrics[name] for _, metrics in sorted(rounds.items()) if name in metrics]
    return f"{values[-1]:.4f} {name}" if values else ""


def _name(component: Any) -> str:
    return str(component.get("name") if isinstance(component, Mapping) else component)
