"""What a person sees in the terminal: progress while it runs, tables at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from flray import registry
from flray.errors import FlrayError, nearest
from flray.federation.federation import Round
from flray.federation.world import World
from flray.metrics.direction import lower_is_better
from flray.metrics.summary import course
from flray.running import Result
from flray.tracking.where import see_it

if TYPE_CHECKING:
    import pandas as pd

    from flray.tuning.result import SweepResult

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140)


class RunProgress:
    """A bar on a terminal, otherwise a line per round (at most one a second) so that logs stay readable."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._begun = self._printed = time.monotonic()
        self._done_at_start = 0
        self._total = 0

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()

    def begin(self, world: World, done: int) -> None:
        """Show that the rounds start after `done`."""
        self._total, self._done_at_start = world.config.rounds, done
        self._begun = time.monotonic()
        if done:
            self.say(f"going on after round {done} of {self._total}")
        if console.is_terminal:
            self._bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                                 TextColumn("{task.fields[score]}"), TimeRemainingColumn(), console=console)
            self._task = self._bar.add_task("round", total=self._total, completed=done, score="")
            self._bar.start()

    def round(self, finished: Round, metric: str) -> None:
        """Show a finished round."""
        value = finished.metrics.get(metric)
        score = f"{metric} {value:.4f}" if value is not None else ""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=finished.number, score=score)
            return
        now = time.monotonic()
        if now - self._printed >= 1.0 or finished.number in (1, self._total):
            self._printed = now
            pace = (now - self._begun) / max(1, finished.number - self._done_at_start)
            left = pace * (self._total - finished.number)
            self.say(f"round {finished.number}/{self._total}  {score}  "
                     f"{finished.metrics['time/round']:.2f} s  {left:.0f} s left")

    def say(self, line: str) -> None:
        """Show a line for the user."""
        (self._bar.console if self._bar is not None else console).print(line, markup=False)
        sys.stdout.flush()

    def end(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def show_result(result: Result) -> None:
    """Print a finished run's table, where it lies, and its digest."""
    reported, name = result.reported, result.experiment.algorithm.name
    metrics = reported.values
    table = Table(title=f"{name} {reported.words}", title_justify="left")
    views = [v for v in ("global/common", "global/local", "global/validation", "personal/local", "personal/others",
                         "personal/validation", "online/local", "offline/local")
             if any(m.startswith(f"{v}/") for m in metrics)]
    measure = result.metric.rsplit("/", 1)[1]
    clients = sorted({m.rsplit("/client/", 1)[1] for m in metrics if f"/{measure}/client/" in m})
    shown = clients if len(clients) <= 12 else []
    table.add_column(measure, no_wrap=True)
    for heading in ("mean", "std", "worst", *shown):
        table.add_column(heading, justify="right")
    for view in views:
        key = f"{view}/{measure}"
        cells = [_percent(metrics.get(key)), _percent(metrics.get(f"{key}/std")), _percent(metrics.get(f"{key}/worst"))]
        table.add_row(view, *cells, *(_percent(metrics.get(f"{key}/client/{c}")) for c in shown))
    console.print(table)
    for line in _further(metrics, views, measure):
        console.print(line, markup=False)
    went = course(result.history, result.metric, result.experiment.evaluation.last)
    console.print(f"{result.metric}: last {_percent(went.last)}, mean of the last {went.rounds} "
                  f"{_percent(went.mean_of_last)}, best {_percent(went.best)} in round {went.best_round}", markup=False)
    console.print(_costs(result.history), markup=False)
    console.print(f"model SHA-256: {result.sha256}", markup=False)
    console.print(f"run: {result.folder}", markup=False)
    if result.experiment.tracking.uri is not None:
        for line in see_it(result.experiment.tracking.uri, result.folder):
            console.print(line, markup=False, soft_wrap=True)


def _costs(history: pd.DataFrame) -> str:
    """Return what a round took: median seconds, training samples per second, and the most memory of one process."""
    costs = f"{history['time/round'].median():.3g} s per round"
    if "time/samples_per_second" in history:
        pace = history["time/samples_per_second"].median()
        costs += f", {f'{pace:,.0f}' if pace >= 100 else f'{pace:.3g}'} training samples per second"
    peaks = [history[name].max() for name in ("memory/peak/server", "memory/peak/actor") if name in history]
    return costs + (f", at most {max(peaks) / 2**20:,.0f} MiB in one process" if peaks else "")


def _further(metrics: Mapping[str, float], views: Sequence[str], measure: str) -> Iterator[str]:
    """Yield a line per view with the task's other measures: shares in percent, losses and distances as they are."""
    for view in views:
        others = {name.removeprefix(f"{view}/"): value for name, value in metrics.items()
                  if name.startswith(f"{view}/") and name.count("/") == 2}
        others = {name: value for name, value in others.items() if name not in (measure, "loss")}
        if others:
            yield f"{view}: " + ", ".join(
                f"{name} {value:.2f}" if lower_is_better(name) else f"{name} {_percent(value)}"
                for name, value in others.items())


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def show_list(what: str, name: str | None) -> None:
    """Print the registered names of a kind, or one with its options.

    Raises
    ------
    FlrayError
        If the kind or the name is unknown.
    """
    if what not in registry.ALL:
        raise FlrayError(f"nothing called {what!r} to list{nearest(what, registry.ALL)}; "
                         f"one of {', '.join(registry.ALL)}")
    entries = registry.ALL[what]
    if name is None and what == "algorithms":
        table = Table("name", "method", "shared", "needs", "evaluated", title_justify="left",
                      title=f"{what} (details: flray list {what} NAME)")
        for entry in entries.names():
            method = entries.get(entry)
            shared = method.shared if isinstance(method.shared, str) else "by its settings"
            table.add_row(entry, _what_it_is(method), shared,
                          ", ".join(sorted(method.needs)), ", ".join(method.views))
        console.print(table)
        return
    if name is None and what == "datasets":
        show_datasets()
        return
    if name is None:
        table = Table("name", "what it is", title=f"{what} (details: flray list {what} NAME)", title_justify="left")
        for entry in entries.names():
            table.add_row(entry, _first_line(entries.get(entry)))
        console.print(table)
        return
    item = entries.get(name)
    console.print(f"{name}: {_first_line(item)}", markup=False)
    if what == "datasets":
        from flray.data.listing import inventory

        (found,) = [one for one in inventory() if one.name == name]
        console.print(f"source: {found.source}", markup=False)
        console.print("it is here" if found.present else f"to have it: {found.todo}", markup=False)
    table = Table("option", "default", "allowed", "meaning", "source")
    options = entries.params(name).model_json_schema()
    for option, field in options.get("properties", {}).items():
        required = option in options.get("required", [])
        table.add_row(option, "(required)" if required else repr(field.get("default")), allowed(field),
                      field.get("description", ""), field.get("source", ""))
    console.print(table if options.get("properties") else "it has no options")
    for preset in getattr(entries.params(name), "presets", ()):
        values = ", ".join(f"{option}: {value}" for option, value in preset.values.items())
        console.print(f"preset {preset.name}: {values} ({preset.source})", markup=False)


def _what_it_is(method: type) -> str:
    """Return the first line of a method's file, or its own where it is a form of another method of that file."""
    is_form = any(base.__module__ == method.__module__ for base in method.__mro__[1:])
    return (not is_form and _first_line(sys.modules.get(method.__module__))) or _first_line(method)


def _first_line(item: Any) -> str:
    return (item.__doc__ or "").strip().splitlines()[0] if item.__doc__ else ""


def allowed(field: dict[str, Any]) -> str:
    """Return in words what a field of a JSON schema may be."""
    forms = field.get("anyOf", [field])
    words = []
    for form in forms:
        if "enum" in form:
            words.append(" | ".join(map(str, form["enum"])))
            continue
        limits = [f"{sign} {form[key]:g}" for key, sign in (
            ("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<")) if key in form]
        words.append(" ".join([str(form.get("type", form.get("const", "any"))), *limits]))
    return " or ".join(words)


def show_datasets() -> None:
    """Print every data set with its source, what must be done for it, and whether it is there."""
    from flray.data.cache import data_root
    from flray.data.listing import inventory

    table = Table(title=f"datasets; DATA is {data_root()} (details: flray list datasets NAME)", title_justify="left")
    table.add_column("name", no_wrap=True)
    for heading in ("what it is", "source", "to have it", "here"):
        table.add_column(heading, overflow="fold")
    for entry in inventory():
        table.add_row(*(escape(text) for text in (entry.name, entry.what.removeprefix("Return "), entry.source,
                                                  entry.todo)), "yes" if entry.present else "no")
    console.print(table)


def show_partition(file: Path, overrides: list[str], plot: Path | None) -> None:
    """Print the table of a partition, of a file or of a data set by its name, and draw its bubble chart."""
    from flray.data.federate import federate, load_dataset
    from flray.data.show import bubble_chart, check_picture, partition_table
    from flray.federation.world import make_world
    from flray.loading import load

    if plot is not None:
        check_picture(plot)
    if str(file) in registry.datasets.names() and not file.is_file():
        whole = {"experiment": {"data": str(file), "model": "linear", "algorithm": "fedavg"}}
        chosen = load(whole, overrides).experiment
        data = federate(load_dataset(chosen.data.name, chosen.data.options), chosen.partition.name,
                        chosen.partition.options, chosen.seed, chosen.evaluation.validation, split=chosen.split,
                        shift=chosen.shift)
    else:
        data = make_world(load(file, overrides).experiment).data
    console.print(partition_table(data).to_string(index=False), markup=False)
    console.print(f"partition fingerprint: {data.partition_fingerprint}", markup=False)
    if plot is not None:
        bubble_chart(data, plot)
        console.print(f"chart: {plot}", markup=False)


def show_doctor() -> None:
    """Print what `flray.doctor.report` finds."""
    from flray.doctor import report

    table = Table("what", "found", title="flray doctor", title_justify="left")
    for name, found in report():
        table.add_row(name, Text(found))
    console.print(table)


class SweepProgress:
    """A bar over trials with the running ones' newest scores; on a file, a line per trial and now and then a round."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._total = self._done = 0
        self._printed = 0.0

    def __enter__(self) -> SweepProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()

    def begin(self, total: int, done: int) -> None:
        """Show that `total` trials run, `done` of them already."""
        self._total, self._done = total, done
        self.say(f"{total} trials" + (f", {done} of them done before" if done else ""))
        if console.is_terminal:
            self._bar = Progress(TextColumn("trials"), BarColumn(), MofNCompleteColumn(),
                                 TextColumn("{task.fields[news]}"), console=console)
            self._task = self._bar.add_task("trials", total=total, completed=done, news="")
            self._bar.start()

    def trial_started(self, number: str, label: str, rounds_done: int) -> None:
        """Show that a trial begins or goes on."""
        if self._bar is None:
            self.say(f"trial {number} begins: {label}" + (f" (after round {rounds_done})" if rounds_done else ""))

    def round(self, number: str, label: str, done: int, rounds: int, score: float, left: float) -> None:
        """Show a finished round of a trial, with the seconds the sweep will still take."""
        news = f"{label}: round {done}/{rounds}, score {score:.4f}, about {_minutes(left)} left"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, news=news)
        elif time.monotonic() - self._printed >= 10.0:
            self._printed = time.monotonic()
            self.say(f"trial {number} {news}")

    def trial_done(self, number: str, label: str, status: str, rounds_done: int, score: float) -> None:
        """Show that a trial ended."""
        self._done += 1
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done)
        self.say(f"trial {number} {status} after {rounds_done} rounds, score {score:.4f}: {label} "
                 f"({self._done}/{self._total})")

    def say(self, line: str) -> None:
        """Show a line for the user."""
        (self._bar.console if self._bar is not None else console).print(line, markup=False)
        sys.stdout.flush()

    def end(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def show_sweep(result: SweepResult) -> None:
    """Print a finished sweep's table, and where to see more."""
    console.print(result.table())
    console.print(f"sweep: {result.folder} (results.csv, summary.csv, trials/)", markup=False)
    if result.uri is not None:
        for line in see_it(result.uri, result.folder):
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"in the charts: + before {result.folder.parent.name} {result.folder.name} shows its runs, "
                      "accuracy$ in the search of charts their curves", markup=False)
