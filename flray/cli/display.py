"""Terminal output: progress during a run, tables at its end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich import progress
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from flray.errors import NO_TEXT, one_line
from flray.interrupts import reader_gone
from flray.metrics.names import VIEWS, lower_is_better

if TYPE_CHECKING:
    import pandas as pd

    from flray.api import PlannedTrial
    from flray.federation.federation import RoundResult
    from flray.federation.spec import FederationSpec
    from flray.results.sweep import SweepResult
    from flray.runs.runner import Result


class _Console(Console):
    """A console that shows no control characters, and stops a run as a closed terminal does if its reader goes."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text to be printed or measured, escaped."""
        return super().render_str(_escape(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments to be printed, with their texts escaped."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else _escape(text), style, control)

    def on_broken_pipe(self) -> None:
        """Write no more, and stop."""
        reader_gone()


def _escape(text: str) -> str:
    return "\n".join(map(one_line, text.split("\n"))) if NO_TEXT.search(text) else text


# Names and messages are data: their [tags] are not markup, nor their :names: emoji.
console = _Console(
    highlight=False,
    markup=False,
    emoji=False,
    soft_wrap=True,
    width=None if sys.stdout.isatty() else 140,
)


def to_stderr(wanted: bool) -> None:
    """Send progress messages to the error stream, so that the output is JSON alone."""
    console.stderr = wanted


def print_json(found: object) -> None:
    """Print JSON on the output, with control characters in JSON's own form."""
    for line in json.dumps(found, ensure_ascii=False, indent=1).split("\n"):
        print(NO_TEXT.sub(lambda control: f"\\u{ord(control[0]):04x}", line))


def make_table(title: str, *headings: str) -> Table:
    """Return an empty table with its title on the left."""
    return Table(*headings, title=title or None, title_justify="left")


def show_table(table: Table, as_json: bool) -> None:
    """Print a table, or its rows as JSON objects under the columns' names, for scripts."""
    if as_json:
        print_json(table_rows(table))
    else:
        console.print(table)


def table_rows(table: Table) -> list[dict[str, str]]:
    """Return a table's rows under the columns' names."""
    headings = [str(column.header) for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    return [dict(zip(headings, map(str, row), strict=True)) for row in rows]


class _Bar(progress.Progress):
    """A bar with a line below it."""

    below = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, and the line if there is one."""
        yield from super().get_renderables()
        if self.below:
            yield Text(self.below, no_wrap=True, overflow="ellipsis")


class _Display:
    """A bar on a terminal, otherwise lines; closed at the end of a ``with`` block."""

    def __init__(self) -> None:
        self._bar: _Bar | None = None
        self._task: progress.TaskID | None = None
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def say(self, line: str) -> None:
        """Show a line for the user."""
        (self._bar.console if self._bar is not None else console).print(one_line(line))
        sys.stdout.flush()

    def end(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_bar(self, unit: str, total: int, done: int, *after: progress.ProgressColumn) -> None:
        """Open a bar where the output is a terminal; `_update` sets the text behind it."""
        if console.is_terminal:
            columns = (
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[news]}", markup=False),
                *after,
            )
            self._bar = _Bar(*columns, console=console)
            self._task = self._bar.add_task(unit, total=total, completed=done, news="")
            self._bar.start()

    def _update(self, done: int | None = None, news: str | None = None) -> bool:
        """Bring the bar up to date; False if there is none."""
        if self._bar is None or self._task is None:
            return False
        self._bar.update(self._task, completed=done)
        if news is not None:
            self._bar.update(self._task, news=news)
        return True


class RunProgress(_Display):
    """A bar on a terminal, otherwise a line per round (at most one a second) so that logs stay readable."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.monotonic()
        self._done_at_start = self._total = 0

    def begin(self, spec: FederationSpec, done: int) -> None:
        """Show that the rounds start after `done`."""
        self._total, self._done_at_start = spec.config.rounds, done
        self._begun = time.monotonic()
        if done:
            self.say(f"going on after round {done} of {self._total}")
        self._show_bar("round", self._total, done, progress.TimeRemainingColumn())

    def round(self, finished: RoundResult, metric: str) -> None:
        """Show a finished round."""
        value = finished.metrics.get(metric)
        score = f"{metric} {value:.4f}" if value is not None else ""
        if self._update(finished.number, news=score):
            return
        now = time.monotonic()
        if now - self._printed >= 1.0 or finished.number in (1, self._total):
            self._printed = now
            pace = (now - self._begun) / max(1, finished.number - self._done_at_start)
            left = pace * (self._total - finished.number)
            self.say(
                f"round {finished.number}/{self._total}  {score}  "
                f"{finished.metrics['time/round']:.2f} s  {left:.0f} s left"
            )


def show_result(result: Result, as_json: bool = False) -> None:
    """Print a finished run's table, its folder and its digest."""
    from flray.metrics.summary import trajectory
    from flray.tracking.client import ui_links

    reported, name = result.reported, result.experiment.algorithm.name
    metrics = reported.values
    if as_json:
        named = {"run": str(result.folder), "metric": result.metric}
        value = metrics.get(result.metric)
        valued = {"value": value, "reported": reported.text, "values": metrics}
        print_json({**named, **valued, "sha256": result.sha256})
        return
    table = make_table(f"{name} {reported.text}")
    views = [v for v in VIEWS if any(m.startswith(f"{v}/") for m in metrics)]
    measure = result.metric.rsplit("/", 1)[1]
    clients = sorted({m.rsplit("/client/", 1)[1] for m in metrics if f"/{measure}/client/" in m})
    shown = clients if len(clients) <= 12 else []
    table.add_column(measure, no_wrap=True)
    for heading in ("mean", "std", "worst", *shown):
        table.add_column(one_line(heading), justify="right")
    parts = ("", "/std", "/worst", *(f"/client/{client}" for client in shown))
    for view in views:
        values = (metrics.get(f"{view}/{measure}{part}") for part in parts)
        table.add_row(view, *map(_format_percent, values))
    console.print(table)
    for line in _format_other_views(metrics, views, measure):
        console.print(line)
    if result.positive:
        console.print(one_line(f"positive class: {result.positive}"))
    went = trajectory(result.history, result.metric, result.experiment.evaluation.last)
    console.print(
        f"{result.metric}: last {_format_percent(went.last)}, mean of the last {went.rounds} "
        f"{_format_percent(went.mean_of_last)}, best {_format_percent(went.best)} in round {went.best_round}"
    )
    console.print(_format_costs(result.history))
    console.print(f"model SHA-256: {result.sha256}")
    console.print(f"run: {result.folder}")
    if result.experiment.tracking.uri is not None:
        for line in ui_links(result.experiment.tracking.uri, result.folder):
            console.print(line, soft_wrap=True)


def _format_costs(history: pd.DataFrame) -> str:
    """Return the costs of a round: median seconds, training samples per second, and the most memory of one process."""
    costs = f"{history['time/round'].median():.3g} s per round"
    if "time/samples_per_second" in history:
        pace = history["time/samples_per_second"].median()
        costs += f", {f'{pace:,.0f}' if pace >= 100 else f'{pace:.3g}'} training samples per second"
    names = ("memory/peak/server", "memory/peak/actor")
    peaks = [history[name].max() for name in names if name in history]
    return costs + (f", at most {max(peaks) / 2**20:,.0f} MiB in one process" if peaks else "")


def _format_other_views(
    metrics: Mapping[str, float], views: Sequence[str], measure: str
) -> Iterator[str]:
    """Yield a line per view with the task's other measures: shares in percent, losses and distances as they are."""
    for view in views:
        others = {
            name.removeprefix(f"{view}/"): value
            for name, value in metrics.items()
            if name.rpartition("/")[0] == view and name.rpartition("/")[2] not in (measure, "loss")
        }
        if others:
            yield f"{view}: " + ", ".join(
                f"{name} {value if lower_is_better(name) else 100 * value:.2f}"
                for name, value in others.items()
            )


def _format_percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


_STANDING_SECONDS = 60.0
"""Between two lines on how a sweep stands, where there is no bar."""


class SweepProgress(_Display):
    """A bar over trials with the running ones' newest scores; on a file, a line per trial and now and then a round.

    Attributes
    ----------
    has_values : bool
        Whether what the sweep came to has been shown.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_values = False
        self._total = self._done = 0
        self._printed = 0.0
        self._stood = time.monotonic()

    def begin(self, total: int, done: int) -> None:
        """Show that `total` trials run, `done` of them already."""
        self._total, self._done = total, done
        self.say(f"{total} trials" + (f", {done} of them done before" if done else ""))
        self._show_bar("trials", total, done)

    def trial_started(self, number: str, label: str, rounds_done: int) -> None:
        """Show that a trial starts or resumes."""
        if self._bar is None:
            self.say(
                f"trial {number} begins: {label}"
                + (f" (after round {rounds_done})" if rounds_done else "")
            )

    def round(
        self, number: str, label: str, done: int, rounds: int, score: float, left: float
    ) -> None:
        """Show a finished round of a trial, with the seconds the sweep will still take."""
        news = f"{label}: round {done}/{rounds}, score {score:.4f}, about {_minutes(left)} left"
        if not self._update(news=one_line(news)) and time.monotonic() - self._printed >= 10.0:
            self._printed = time.monotonic()
            self.say(f"trial {number} {news}")

    def trial_done(
        self, number: str, label: str, status: str, rounds_done: int, score: float
    ) -> None:
        """Show that a trial ended."""
        self._done += 1
        self._update(self._done)
        self.say(
            f"trial {number} {status} after {rounds_done} rounds, score {score:.4f}: {label} "
            f"({self._done}/{self._total})"
        )

    def standing(self, line: str) -> None:
        """Show how the sweep stands: below the bar, or in a log now and then."""
        if self._bar is not None:
            self._bar.below = one_line(line)
        elif time.monotonic() - self._stood >= _STANDING_SECONDS:
            self._stood = time.monotonic()
            self.say(line)

    def values(self, result: SweepResult) -> None:
        """Print what can be concluded and the table, once; the report follows."""
        self.has_values = True
        console.print(result.table())
        self.say("writing the report (the values above are final)")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def show_plan(trials: Sequence[PlannedTrial], as_json: bool = False, suggested: int = 0) -> None:
    """Print the trials of a sweep, and which of them are taken over from where.

    Parameters
    ----------
    trials : sequence of PlannedTrial
        The known trials; empty for a search that suggests them one by one.
    as_json : bool
        Whether to print JSON.
    suggested : int
        The number of trials that such a search will suggest.
    """
    if as_json:
        print_json([trial._asdict() for trial in trials])
        return
    if not trials:
        console.print(
            f"{suggested} trials, none of which is known yet: optuna suggests each from what those before "
            "it have reached, and what other sweeps have finished is taken over then"
        )
        return
    table = Table("trial", "setting", "taken over from")
    for trial in trials:
        table.add_row(trial.number, one_line(trial.label), one_line(trial.taken_over))
    console.print(table)
    taken = sum(bool(trial.taken_over) for trial in trials)
    console.print(f"{len(trials)} trials: {taken} taken over, {len(trials) - taken} to be run")
    for line in dict.fromkeys(trial.course for trial in trials if trial.course):
        console.print(line, soft_wrap=True)
    if any(trial.phase == "tuning" for trial in trials):
        console.print("these are tuned first; what is run then follows from what they reach")


def show_places(result: SweepResult) -> None:
    """Print the folder of a finished sweep, its report, and the addresses of its tracking pages."""
    from flray.tracking.client import ui_links

    console.print(f"sweep: {result.folder} (results.csv, summary.csv, trials/)")
    report = result.folder / "report"
    pictures = (report / "figures" / f"{name}.png" for name in ("differences", "curves"))
    if (picture := next((path for path in pictures if path.is_file()), None)) is not None:
        line = f"picture: {picture} (others beside it, each also as SVG and PDF)"
        console.print(line, soft_wrap=True)
    if (report / "report.html").is_file():
        console.print(f"report: {report / 'report.html'}", soft_wrap=True)
    if result.uri is not None:
        for line in ui_links(result.uri, result.folder):
            console.print(line, soft_wrap=True)
        console.print(
            f"in the charts: + before {result.folder.parent.name} {result.folder.name} shows its "
            "settings, score$ in the search of charts their mean curves"
        )
