"""The end of a sweep: tables, figures, and what the parent run shows."""

from __future__ import annotations

import io
import math
from pathlib import Path

from rich.console import Console

from flray.config.experiment import Config
from flray.files.csv_files import csv_text
from flray.results.sweep import SweepResult, scores_by_label
from flray.runs import directory
from flray.runs.figures import draw_figures
from flray.runs.journal import Journal, history_of, read_events
from flray.tracking import plots
from flray.tuning.trial_store import RESULTS, SUMMARY, TABLE, TrialFolder, trial_folders

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
    for trial in trial_folders(folder):
        _trial_figures(trial)
    made = [directory.CONFIG, RESULTS, SUMMARY, TABLE]
    scores = dict(list(scores_by_label(result))[:OVERVIEW_LIMIT])
    if scores:
        figures = folder / directory.FIGURES
        figures.mkdir(exist_ok=True)
        metrics = sorted(set(result.results["metric"].dropna()))
        name = (
            metrics[0]
            if len(metrics) == 1
            else " or ".join(sorted({m.rsplit("/", 1)[-1] for m in metrics}))
        )
        plots.sweep_overview(scores, name, figures / "overview.png", title=config.experiment.name)
        made.append(f"{directory.FIGURES}/overview.png")
    for name in made:
        journal.artifact(name, directory.FIGURES if name.startswith(directory.FIGURES) else "")
    made_report = _report(folder, journal)
    for name in made_report:
        journal.artifact(f"{REPORT}/{name}", REPORT)
    statuses = result.results["status"].value_counts()
    metrics_ = {
        f"trials/{name}": float(statuses.get(name, 0)) for name in ("finished", "stopped", "failed")
    }
    best = result.best
    metrics_ |= {
        name: float(best[key])
        for name, key in (("best/score", "score"), ("best/score/std", "score_std"))
        if not math.isnan(best[key])
    }
    if history_of(journal.rounds()).drop(columns="round").to_dict("records")[-1:] != [metrics_]:
        journal.record_round(
            config.experiment.rounds, metrics_, replace=True
        )  # a failed trial may have been mended
    journal.tags({"best": result.label(result.summary.iloc[0])})
    return result


def _report(folder: Path, journal: Journal) -> list[str]:
    """Write the report and return its files; a sweep whose figures cannot be drawn is finished all the same."""
    from flray.reporting import make

    try:
        return [path.name for path in make(folder, folder / REPORT).files]
    except Exception as error:
        journal.tags({"report.failed": f"{type(error).__name__}: {error}"[:400]})
        return []


def text_table(result: SweepResult) -> str:
    """Return the sweep's table as plain text."""
    buffer = io.StringIO()
    Console(file=buffer, width=200, highlight=False, markup=False, emoji=False).print(
        result.table()
    )
    return buffer.getvalue()


def _trial_figures(trial: TrialFolder) -> None:
    """Draw a trial's figures, those of a single run, and list them for MLflow, once."""
    listed = {
        event["path"]
        for event in read_events(trial.path / directory.JOURNAL)
        if event["type"] == "artifact"
    }
    if directory.CONFIG in listed:
        return
    with Journal(trial.path / directory.JOURNAL) as journal:
        draw_figures(trial.path, journal, str(trial.identity.get("metric") or ""))
