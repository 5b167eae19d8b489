"""Summary of a finished sweep: tables, figures, and the parent run's metrics."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from flray.config.experiment import Config
from flray.drawing.canvas import save_figure
from flray.drawing.charts import draw_scores
from flray.files.csv_files import csv_text
from flray.records import directory
from flray.records.journal import Journal
from flray.results.choices import tuning_frame
from flray.results.sweep import TEST, SweepResult
from flray.runs.session import NOTE
from flray.tuning.setting_runs import complete_settings
from flray.tuning.trial_figures import draw_trials
from flray.tuning.trial_store import RESULTS, SUMMARY, TABLE

OVERVIEW_LIMIT, REPORT, TUNING = 40, "report", "tuning.csv"
_NOTE_LENGTH = 4000
CURVES = "curves.csv"
"""A row per trial and round."""
ReportWriter = Callable[[Path, Path], Sequence[Path]]
"""A function that writes a sweep folder's report into another folder, and returns its files."""


def finish(
    folder: Path,
    config: Config,
    journal: Journal,
    write_report: ReportWriter | None = None,
    notify: Callable[[str], None] = lambda line: None,
    show: Callable[[SweepResult], None] = lambda result: None,
) -> SweepResult:
    """Write the tables and figures of a sweep whose trials have all ended, and attach them to its runs.

    Parameters
    ----------
    folder : Path
        The sweep's folder.
    config : Config
        The sweep.
    journal : Journal
        The parent run's.
    write_report : callable, optional
        Writes the report of a sweep's folder into another folder and returns its files.
    notify : callable
        Called with a line on what takes long.
    show : callable, optional
        Called once the tables are written, before the figures and the report, which take longer.
    """
    result = SweepResult(folder)
    (folder / RESULTS).write_text(csv_text(result.results), encoding="utf-8", newline="")
    (folder / SUMMARY).write_text(csv_text(result.summary), encoding="utf-8", newline="")
    (folder / TABLE).write_text(text_table(result), encoding="utf-8")
    show(result)
    draw_trials(folder, notify)
    (folder / CURVES).write_text(csv_text(result.curves), encoding="utf-8", newline="")
    made = [directory.CONFIG, RESULTS, SUMMARY, CURVES, TABLE]
    if result.data.tuning:
        made.append(TUNING)
        text = csv_text(tuning_frame(result.data))
        (folder / TUNING).write_text(text, encoding="utf-8", newline="")
    scores = dict(list(result.scores().items())[:OVERVIEW_LIMIT])
    if scores:
        names = sorted({metric.rpartition("/")[2] for metric in result.metrics})
        name = result.metrics[0] if len(result.metrics) == 1 else " or ".join(names)
        figure = draw_scores(scores, name, config.experiment.name)
        save_figure(figure, folder / directory.FIGURES / "overview.png")
        made.append(f"{directory.FIGURES}/overview.png")
    for name in made:
        journal.artifact(name, directory.FIGURES if name.startswith(directory.FIGURES) else "")
    if write_report is not None:
        _add_report(folder, journal, write_report)
    statuses = result.results["status"].value_counts()
    tags = {
        f"trials.{name}": str(int(statuses.get(name, 0)))
        for name in ("finished", "stopped", "failed")
    }
    best = result.best
    tags |= {
        name: f"{best[key]:.6g}"
        for name, key in (
            ("best.score", "score"),
            ("best.score.std", "score_std"),
            ("best.test", TEST),
        )
        if key in best and not math.isnan(best[key])
    }
    journal.tags(tags)
    complete_settings(folder)
    journal.tags({NOTE: _note(result)})
    journal.tags({"best": result.label(result.summary.iloc[0])})
    return result


def _note(result: SweepResult) -> str:
    """Return the description that MLflow shows of a sweep: its conclusions and its table, as Markdown."""
    lines = [f"- {line}" for line in result.conclusions]
    lines += ["", f"| setting | {', '.join(result.metrics)} | seeds |", "|:--|--:|--:|"]
    for _, row in result.summary.iterrows():
        spread = "" if math.isnan(row["score_std"]) else f" ± {row['score_std']:.4f}"
        label = result.label(row).replace("|", "\\|")
        lines.append(f"| {label} | {row['score']:.4f}{spread} | {int(row['seeds'])} |")
    while len(text := "\n".join(lines)) > _NOTE_LENGTH:
        lines.pop()
    return text


def _add_report(folder: Path, journal: Journal, write_report: ReportWriter) -> None:
    """Write the report and list it for MLflow; the sweep finishes even if its report fails."""
    try:
        files = write_report(folder, folder / REPORT)
    except Exception as error:
        journal.tags({"report.failed": f"{type(error).__name__}: {error}"[:400]})
        return
    for path in files:
        place = path.relative_to(folder)
        journal.artifact(place.as_posix(), place.parent.as_posix())


def text_table(result: SweepResult) -> str:
    """Return the conclusions of a sweep, and its table, as plain text."""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=200, highlight=False, markup=False, emoji=False, soft_wrap=True
    )
    console.print(result.table())
    return buffer.getvalue()
