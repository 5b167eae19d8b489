"""Terminal output: progress during a run, tables at its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from flray.errors import NO_TEXT, one_line
from flray.metrics import VIEWS, lower_is_better
from flray.runs import progress
from flray.runs.progress import console as console
from flray.tracking.client import ui_links

if TYPE_CHECKING:
    import pandas as pd

    from flray.api import PlannedTrial
    from flray.results.sweep import SweepResult
    from flray.runs.runner import Result


class SweepProgress(progress.SweepProgress):
    """The progress of a sweep, and at its end the values.

    Attributes
    ----------
    has_values : bool
        Whether what the sweep came to has been shown.
    """

    has_values = False

    def values(self, result: SweepResult) -> None:
        """Print what can be concluded and the table, once; the report follows."""
        self.has_values = True
        console.print(result.table())
        self.say("writing the report (the values above are final)")


def to_stderr(wanted: bool) -> None:
    """Send progress messages to the error stream, so that the output is JSON alone."""
    console.stderr = wanted


def print_json(found: object) -> None:
    """Print JSON on the output, with control characters in JSON's own form, and null in place of NaN and infinities."""
    finite = json.loads(json.dumps(found), parse_constant=lambda word: None)
    for line in json.dumps(finite, ensure_ascii=False, indent=1).split("\n"):
        print(NO_TEXT.sub(lambda control: f"\\u{ord(control[0]):04x}", line))


def make_table(
    title: str, headings: Iterable[str] = (), rows: Iterable[Iterable[str]] = ()
) -> Table:
    """Return a table of some rows, with its title on the left."""
    table = Table(*headings, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


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


def show_result(result: Result, as_json: bool = False) -> None:
    """Print a finished run's table, its folder and its digest."""
    reported, name = result.reported, result.experiment.algorithm.name
    metrics = reported.values
    if as_json:
        print_json(
            {
                "run": str(result.folder),
                "metric": result.metric,
                "value": metrics.get(result.metric),
                "reported": reported.text,
                "values": metrics,
                "sha256": result.sha256,
            }
        )
        return
    table = make_table(f"{name} {reported.text}")
    views = [v for v in VIEWS if any(m.rpartition("/")[0] == v for m in metrics)]
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
    for (
        view
    ) in views:  # the task's other measures: shares in percent, losses and distances as they are
        others = {
            name.removeprefix(f"{view}/"): value
            for name, value in metrics.items()
            if name.rpartition("/")[0] == view and name.rpartition("/")[2] not in (measure, "loss")
        }
        if others:
            line = ", ".join(
                f"{name} {value if lower_is_better(name) else 100 * value:.2f}"
                for name, value in others.items()
            )
            console.print(f"{view}: {line}")
    if result.positive:
        console.print(one_line(f"positive class: {result.positive}"))
    console.print(one_line(f"{result.metric}: {_course(result)}"))
    console.print(_format_costs(result.history))
    console.print(f"model SHA-256: {result.sha256}")
    console.print(f"run: {result.folder}")
    if result.experiment.tracking.uri is not None:
        for line in ui_links(result.experiment.tracking.uri, result.folder):
            console.print(line, soft_wrap=True)


def _course(result: Result) -> str:
    """Return the last, the last rounds' mean and the best value of a run's metric, in words."""
    metric, history = result.metric, result.history.set_index("round")
    values = history.reindex(columns=[metric])[metric].dropna()
    if values.empty:  # R2 of equal numbers, or the AUC of a label that no test sample has
        return "never measured, because these test samples do not define it"
    last = values.tail(result.experiment.evaluation.last)
    lower = lower_is_better(metric)
    best = (values.min(), values.idxmin()) if lower else (values.max(), values.idxmax())
    return (
        f"last {_format_percent(last.iloc[-1])}, mean of the last {len(last)} "
        f"{_format_percent(last.mean())}, best {_format_percent(best[0])} in round {best[1]}"
    )


def _format_costs(history: pd.DataFrame) -> str:
    """Return the costs of a round: median seconds, training samples per second, and the most memory of one process."""
    costs = f"{history['time/round'].median():.3g} s per round"
    if "time/samples_per_second" in history:
        pace = history["time/samples_per_second"].median()
        costs += f", {f'{pace:,.0f}' if pace >= 100 else f'{pace:.3g}'} training samples per second"
    names = ("memory/peak/server", "memory/peak/actor")
    peaks = [history[name].max() for name in names if name in history]
    return costs + (f", at most {max(peaks) / 2**20:,.0f} MiB in one process" if peaks else "")


def _format_percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


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
    rows = [(one.number, one_line(one.label), one_line(one.taken_over)) for one in trials]
    console.print(make_table("", ("trial", "setting", "taken over from"), rows))
    taken = sum(bool(trial.taken_over) for trial in trials)
    console.print(f"{len(trials)} trials: {taken} taken over, {len(trials) - taken} to be run")
    for line in dict.fromkeys(trial.course for trial in trials if trial.course):
        console.print(line, soft_wrap=True)
    if any(trial.phase == "tuning" for trial in trials):
        console.print("these are tuned first; what is run then follows from what they reach")


def show_places(result: SweepResult) -> None:
    """Print the folder of a finished sweep, its report, and the addresses of its tracking pages."""
    console.print(f"sweep: {result.folder} (results.csv, summary.csv, trials/)")
    report = result.folder / "report"
    pictures = (report / "figures" / f"{name}.png" for name in ("differences", "curves"))
    if (picture := next((path for path in pictures if path.is_file()), None)) is not None:
        line = f"picture: {picture} (others beside it, each also as SVG and PDF)"
        console.print(line, soft_wrap=True)
    if (report / "report.html").is_file():
        console.print(f"report: {report / 'report.html'}", soft_wrap=True)
    uri = result.data.config["experiment"]["tracking"]["uri"]
    if uri is not None:
        for line in ui_links(uri, result.folder):
            console.print(line, soft_wrap=True)
        console.print(
            f"in the charts: + before {result.folder.parent.name} {result.folder.name} shows its "
            "settings, score$ in the search of charts their mean curves"
        )
