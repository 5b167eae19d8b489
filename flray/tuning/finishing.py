"""The end of a sweep: tables, figures, and what the parent run shows."""

from __future__ import annotations

import io
import math
from pathlib import Path

from rich.console import Console

from flray import rundir
from flray.config import Config
from flray.csvfiles import csv_text
from flray.federation.portrait import AFTER, BEFORE, PARTITION
from flray.tracking import plots
from flray.tracking.journal import Journal, history_of, read_events
from flray.tuning.result import CLIENT, SweepResult, scores_by_label
from flray.tuning.trials import RESULTS, SUMMARY, TABLE, TrialFolder, folders

OVERVIEW_LIMIT, REPORT = 40, "report"


def finish(folder: Path, config: Config, journal: Journal) -> SweepResult:
    """Write the tables and figures of a sweep whose trials have all ended, and give them to its runs.

    Parameters
    ----------
    folder : Path
        The sweep's folder.
    config : Config
        The sweep.
    journal : Journal
        The parent run's.
    """
    result = SweepResult(folder)
    (folder / RESULTS).write_text(csv_text(result.results), encoding="utf-8", newline="")
    (folder / SUMMARY).write_text(csv_text(result.summary), encoding="utf-8", newline="")
    (folder / TABLE).write_text(text_table(result), encoding="utf-8")
    for trial in folders(folder):
        _trial_figures(trial, result)
    made = [rundir.CONFIG, RESULTS, SUMMARY, TABLE]
    scores = dict(list(scores_by_label(result))[:OVERVIEW_LIMIT])
    if scores:
        figures = folder / rundir.FIGURES
        figures.mkdir(exist_ok=True)
        metrics = sorted(set(result.results["metric"].dropna()))
        name = metrics[0] if len(metrics) == 1 else " or ".join(sorted({m.rsplit("/", 1)[-1] for m in metrics}))
        plots.sweep_overview(scores, name, figures / "overview.png", title=config.experiment.name)
        made.append(f"{rundir.FIGURES}/overview.png")
    for name in made:
        journal.artifact(name, rundir.FIGURES if name.startswith(rundir.FIGURES) else "")
    made_report = _report(folder, journal)
    for name in made_report:
        journal.artifact(f"{REPORT}/{name}", REPORT)
    statuses = result.results["status"].value_counts()
    metrics_ = {f"trials/{name}": float(statuses.get(name, 0)) for name in ("finished", "stopped", "failed")}
    best = result.best
    metrics_ |= {name: float(best[key]) for name, key in (("best/score", "score"), ("best/score/std", "score_std"))
                 if not math.isnan(best[key])}
    if history_of(journal.rounds()).drop(columns="round").to_dict("records")[-1:] != [metrics_]:
        journal.record_round(config.experiment.rounds, metrics_, replace=True)  # a failed trial may have been mended
    journal.tags({"best": result.label(result.summary.iloc[0])})
    return result


def _report(folder: Path, journal: Journal) -> list[str]:
    """Write the report and return its files; a sweep whose figures cannot be drawn is finished all the same."""
    from flray.report import make

    try:
        return [path.name for path in make(folder, folder / REPORT).files]
    except Exception as error:
        journal.tags({"report.failed": f"{type(error).__name__}: {error}"[:400]})
        return []


def text_table(result: SweepResult) -> str:
    """Return the sweep's table as plain text."""
    buffer = io.StringIO()
    Console(file=buffer, width=200, highlight=False, markup=False, emoji=False).print(result.table())
    return buffer.getvalue()


def _trial_figures(trial: TrialFolder, result: SweepResult) -> None:
    """Draw a trial's curves and its clients, and list them for MLflow, once."""
    listed = {event["path"] for event in read_events(trial.path / rundir.JOURNAL) if event["type"] == "artifact"}
    if rundir.CONFIG in listed:
        return
    history = result.history(trial.number)
    row = next(row for row in result.results.to_dict("records") if row["trial"] == trial.number)
    made: list[str] = []
    figures = trial.path / rundir.FIGURES
    figures.mkdir(exist_ok=True)
    measure = str(row["metric"]).split("/")[2] if str(row["metric"]).count("/") >= 2 else "accuracy"
    curves = [name for view in ("global/common", "global/local", "personal/local", "personal/others")
              if (name := f"{view}/{measure}") in history.columns]
    if curves:
        plots.learning_curves(history, curves, figures / "curves.png")
        made.append("curves.png")
    clients = {str(name).removeprefix(CLIENT): float(value) for name, value in row.items()
               if str(name).startswith(CLIENT) and not math.isnan(value)}
    if clients:
        plots.client_bars(clients, measure, figures / "clients.png")
        made.append("clients.png")
    with Journal(trial.path / rundir.JOURNAL) as journal:
        for name in made:
            journal.artifact(f"{rundir.FIGURES}/{name}", rundir.FIGURES)
        for name in (rundir.CONFIG, *(n for n in (PARTITION, BEFORE, AFTER) if (trial.path / n).exists())):
            journal.artifact(name)
