"""``flray ls``, ``flray compare`` and ``flray rm``: the runs and sweeps of a folder."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table

from flray import registry
from flray.cli.display import console, print_json, show_table, table_rows
from flray.errors import FlrayError
from flray.metrics.names import PRIMARY_VIEWS, VIEWS
from flray.runs import directory
from flray.runs.events import JOURNAL, read_events
from flray.runs.journal import Journal

if TYPE_CHECKING:
    from flray.results.sweep import SweepResult

_OWN = ("name", "output")


_SILENT, _REFRESH = 600.0, 2.0
"""Seconds without a word after which a run says so, and between two looks."""


def show_runs(base: str, as_json: bool, watch: bool = False) -> None:
    """Print the runs and sweeps of a folder, the newest last; with `watch` until the user interrupts."""
    table = _runs(base)
    if not table.row_count and not as_json:
        console.print(
            f"{base}: no runs; begin one with flray run, or name their folder with --output"
        )
        return
    if not watch:
        show_table(table, as_json)
        return
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(table, console=console, auto_refresh=False) as live,
    ):
        while True:
            time.sleep(_REFRESH)
            live.update(_runs(base), refresh=True)


def _runs(base: str) -> Table:
    table = Table("run", "kind", "status", "what", "done", "value", "begun", title=f"{base}/")
    found = [
        folder
        for folder in Path(base).glob("*/*")
        if folder.name.isdecimal() and directory.folder_kind(folder) is not None
    ]
    for folder in sorted(found, key=lambda f: (str(_record(f).get("created", "")), str(f))):
        table.add_row(*_row(folder))
    return table


def _record(folder: Path) -> dict[str, Any]:
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
    except FlrayError:
        yield from ("", "", "")
    else:
        method = _name(experiment.get("algorithm"))
        if kind == "sweep":
            trials = [_record(path.parent) for path in folder.glob("trials/*/run.json")]
            ended = sum(trial["status"] in ("finished", "stopped") for trial in trials)
            tags = {k: v for e in events if e["type"] == "tags" for k, v in e["tags"].items()}
            yield _name(experiment.get("data"))
            others = Counter(
                str(trial["status"]).partition(":")[0]
                for trial in trials
                if trial["status"] not in ("finished", "stopped")
            )
            more = "".join(f", {count} {status}" for status, count in sorted(others.items()))
            yield f"{ended} of {len(trials)} trials{more}"
            if "best.score" in tags:
                yield f"{tags['best.score']}: {tags.get('best', '')}"
            else:
                yield f"so far: {record['best']}" if record.get("best") else ""
        else:
            rounds = {e["round"]: e["metrics"] for e in events if e["type"] == "round"}
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
    views = ["personal/local", "global/common"]
    if method in registry.algorithms.names():
        views.insert(0, PRIMARY_VIEWS[registry.algorithms.outline(method).views[0]])
    for view in views:
        for _, metrics in sorted(rounds.items(), reverse=True):
            for name, value in metrics.items():
                if name.rpartition("/")[0] == view and not name.endswith("/loss"):
                    return f"{value:.4f} {name}"
    return ""


def _name(component: Any) -> str:
    return str(component.get("name") if isinstance(component, Mapping) else component)


def show_comparison(first: Path, second: Path, as_json: bool) -> None:
    """Print the settings in which two runs or two sweeps differ, and their values with intervals.

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
    a, b = (_title(folder) for folder in (first, second))
    settings = Table("setting", a, b, title="settings that differ", title_justify="left")
    for path, left, right in _differing(first, second):
        settings.add_row(path, left, right)
    values = Table("value", a, b, "difference", "95 % interval", title_justify="left")
    rows = _run_values(first, second) if kinds[0] == "run" else _sweep_values(first, second)
    for row in rows:
        values.add_row(*row)
    if as_json:
        print_json({"settings": table_rows(settings), "values": table_rows(values)})
        return
    console.print(settings)
    console.print(values)
    what = (
        "over the clients, where both runs have the same partition; it says nothing about other "
        "seeds"
        if kinds[0] == "run"
        else "over the seeds that both have, paired"
    )
    console.print(f"intervals: {b} less {a}, {what}")


def _title(folder: Path) -> str:
    whole = folder.resolve()
    parts = whole.parts[-4:] if whole.parent.name == "trials" else whole.parts[-2:]
    return "/".join(parts)


def _differing(first: Path, second: Path) -> Iterator[tuple[str, str, str]]:
    """Yield path and both values of the settings that differ, without where results go."""
    found = [dict(directory.flatten_settings(directory.read_config(f))) for f in (first, second)]
    for path in sorted(found[0].keys() | found[1].keys()):
        left, right = (one.get(path, "(not set)") for one in found)
        own = path.removeprefix("experiment.")
        if left != right and own not in _OWN and not own.startswith("tracking."):
            yield own, left, right


def _run_values(first: Path, second: Path) -> Iterator[tuple[str, ...]]:
    found = [_reported(folder) for folder in (first, second)]
    records = [directory.read(folder) for folder in (first, second)]
    same = records[0].get("partition") is not None and (
        records[0].get("partition") == records[1].get("partition")
    )
    for name in found[0]:
        if name.rpartition("/")[0] in VIEWS and name in found[1]:
            left, right = found[0][name], found[1][name]
            start = f"{name}/client/"
            clients = sorted(
                key for key in found[0].keys() & found[1].keys() if key.startswith(start)
            )
            pairs = [found[1][key] - found[0][key] for key in clients] if same else []
            yield name, f"{left:.4f}", f"{right:.4f}", f"{right - left:+.4f}", _interval(pairs)


def _reported(folder: Path) -> dict[str, float]:
    """Return the values that a table would report of a run."""
    from flray.metrics.summary import summarise_history
    from flray.results.load import find_primary_metric
    from flray.runs.events import history_of

    experiment = directory.read_config(folder)["experiment"]
    history = history_of(read_events(folder / JOURNAL))
    metric = find_primary_metric(_name(experiment["algorithm"]), history)
    if metric is None:
        raise FlrayError(f"{folder}: no round has been measured yet; go on with flray resume")
    evaluation = experiment["evaluation"]
    protocol = evaluation.get("protocol", "last")
    return summarise_history(history, metric, protocol, evaluation["last"]).values


def _sweep_values(first: Path, second: Path) -> Iterator[tuple[str, ...]]:
    from flray.results.sweep import SweepResult

    scores = [dict(_scores(SweepResult(folder))) for folder in (first, second)]
    for label in scores[0]:
        if label not in scores[1]:
            continue
        left, right = scores[0][label], scores[1][label]
        shared = sorted(left.keys() & right.keys())
        pairs = [right[seed] - left[seed] for seed in shared]
        yield (
            label or "score",
            _mean(list(left.values())),
            _mean(list(right.values())),
            f"{sum(pairs) / len(pairs):+.4f}" if pairs else "",
            _interval(pairs),
        )


def _scores(sweep: SweepResult) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield the scores by seed of each setting."""
    found: dict[str, dict[int, float]] = {}
    for _, row in sweep.results.iterrows():
        if not math.isnan(row["score"]):
            label = ", ".join(f"{name}={row[name]}" for name in sweep.settings)
            found.setdefault(label, {})[int(row["seed"])] = float(row["score"])
    yield from found.items()


def _mean(values: list[float]) -> str:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.4f} (1 seed)"
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return f"{mean:.4f} ± {spread:.4f} ({len(values)} seeds)"


def _interval(pairs: list[float]) -> str:
    """Return the 95 % interval of the mean of paired differences; empty for fewer than two."""
    if len(pairs) < 2:
        return ""
    from scipy import stats

    mean = sum(pairs) / len(pairs)
    spread = math.sqrt(sum((v - mean) ** 2 for v in pairs) / (len(pairs) - 1))
    half = float(stats.t.ppf(0.975, len(pairs) - 1)) * spread / math.sqrt(len(pairs))
    return f"{mean - half:+.4f} to {mean + half:+.4f} (n={len(pairs)})"


def remove(target: str, base: str, confirmed: bool) -> str:
    """Remove the folder of a run or sweep and return a line that says so; empty if the user declines.

    Raises
    ------
    FlrayError
        If no single run is named, or it is being written.
    """
    import typer

    if "://" in base:
        raise FlrayError(
            f"{base}: only folders of this machine are removed; use the storage's tool"
        )
    folder = next(
        (f for f in (Path(target), Path(base) / target) if directory.folder_kind(f) is not None),
        None,
    )
    if folder is None:
        newest = directory.find(target, base)
        raise FlrayError(
            f"{target}: name the one to be removed, for example {newest.parent.name}/{newest.name}"
        )
    if folder.resolve().parent.name == "trials":
        raise FlrayError(f"{folder}: a trial belongs to its sweep; remove the sweep")
    if (folder / JOURNAL).exists():
        Journal(folder / JOURNAL).close()  # refuses while another process writes it
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    what = f"{folder}: {len(files)} files, {size:,.1f} MiB"
    if not confirmed and not typer.confirm(f"{what}; remove it for good?"):
        return ""
    gone = folder.with_name(f".{folder.name}.removed")
    folder.rename(gone)  # at once: a half-removed run would be taken for a damaged one
    shutil.rmtree(gone)
    return f"removed {what} (what MLflow has of it stays there)"
