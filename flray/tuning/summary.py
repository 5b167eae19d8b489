"""Summary of a finished sweep: tables, figures, and the parent run's metrics."""

from __future__ import annotations

import io
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from flray.config.experiment import Config
from flray.drawing.canvas import save_figure
from flray.drawing.charts import draw_scores
from flray.files.csv_files import csv_text
from flray.records import directory
from flray.records.events import read_events
from flray.records.journal import Journal
from flray.results.choices import tuning_frame
from flray.results.sweep import TEST, SweepResult
from flray.runs.figures import draw_figures
from flray.runs.mlflow_model import save_mlflow_models
from flray.runs.session import NOTE
from flray.startup import usable_cpus
from flray.tuning.trial_store import (
    RESULTS,
    SUMMARY,
    TABLE,
    TrialFolder,
    complete_settings,
    trial_folders,
)

OVERVIEW_LIMIT, REPORT, TUNING = 40, "report", "tuning.csv"
_NOTE_LENGTH = 4000
CURVES = "curves.csv"
"""A row per trial and round."""
TRIALS_PER_PROCESS = 20
"""Trials whose figures take about ten times as long as starting a process for them."""
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


def draw_trials(folder: Path, notify: Callable[[str], None]) -> None:
    """Draw the figures of each trial that has none, as for a single run, and list them for MLflow.

    Parameters
    ----------
    folder : Path
        The sweep's folder.
    notify : callable
        Called with a line if the drawing takes long.
    """
    left = [trial.number for trial in trial_folders(folder) if not _is_listed(trial)]
    count = min(usable_cpus(), len(left) // TRIALS_PER_PROCESS)
    if count > 1:
        notify(f"the figures of {len(left)} trials are drawn, in {count} processes")
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", __name__, str(folder.resolve())]
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        environment = os.environ | {"PYTHONPATH": path}
        processes = [
            subprocess.Popen([*command, *left[start::count]], env=environment, **quiet)
            for start in range(count)
        ]
        try:
            for process in processes:
                process.wait()
        finally:
            for process in processes:
                process.kill()
                process.wait()
    _draw(folder, left)  # all of few, and what a process that failed left


def _draw(folder: Path, numbers: Sequence[str]) -> None:
    for trial in (TrialFolder(folder, number) for number in numbers):
        if _is_listed(trial):
            continue
        with Journal(trial.path / directory.JOURNAL) as journal:
            tracking = directory.read_config(trial.path)["experiment"].get("tracking") or {}
            if tracking.get("model") and trial.status == "finished":
                save_mlflow_models(trial.path, journal, logging.getLogger("flray").info)
            draw_figures(trial.path, journal, str(trial.identity.get("metric") or ""))


def _is_listed(trial: TrialFolder) -> bool:
    return any(
        event["type"] == "artifact" and event["path"] == directory.CONFIG
        for event in read_events(trial.path / directory.JOURNAL)
    )


if __name__ == "__main__":
    _draw(Path(sys.argv[1]), sys.argv[2:])
