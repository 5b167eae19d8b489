"""The texts of a sweep: its status while it runs, then its tables, its report and the parent run's tags."""

import contextlib
import io
import logging
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from rich.console import Console

from flray.errors import FlrayError
from flray.metrics.names import lower_is_better
from flray.records import directory
from flray.records.journal import Journal, read_events
from flray.results.choices import tuning_frame
from flray.results.formatting import csv_text
from flray.results.sweep import TEST, SweepResult
from flray.runs.session import NOTE, list_files
from flray.tuning.space import TrialSpec, setting_title
from flray.tuning.trial_store import ENDED_STATUSES, TrialFolder, complete_settings, trial_folders

REPORT = "report"
RESULTS, SUMMARY, TABLE, TUNING = "results.csv", "summary.csv", "table.txt", "tuning.csv"
_NOTE_LENGTH = 4000
CURVES = "curves.csv"
"""A row per trial and round."""


def finish(
    folder: Path, journal: Journal, show: Callable[[SweepResult], None] = lambda result: None
) -> SweepResult:
    """Write the tables of a sweep whose trials have all ended, and attach them to its runs.

    Parameters
    ----------
    folder : Path
        The sweep's folder.
    journal : Journal
        The parent run's.
    show : callable, optional
        Called once the tables are written.
    """
    result = SweepResult(folder)
    _write(folder, {RESULTS: result.results, SUMMARY: result.summary})
    (folder / TABLE).write_text(text_table(result), encoding="utf-8")
    show(result)
    for trial in trial_folders(folder):
        _list_trial(trial)
    tuning = {TUNING: tuning_frame(result.data)} if result.data.tuning else {}
    _write(folder, {CURVES: result.curves, **tuning})
    for name in (directory.CONFIG, RESULTS, SUMMARY, CURVES, TABLE, *tuning):
        journal.artifact(name)
    statuses = result.results["status"].value_counts()
    best, tags = result.best, {"score": "score", "score.std": "score_std", "test": TEST}
    journal.tags(
        {
            **{f"trials.{name}": str(int(statuses.get(name, 0))) for name in ENDED_STATUSES},
            **{
                f"best.{name}": f"{best[key]:.6g}"
                for name, key in tags.items()
                if not math.isnan(best.get(key, math.nan))
            },
        }
    )
    complete_settings(folder)
    journal.tags({NOTE: _note(result)})
    label = result.label(result.summary.iloc[0])
    journal.tags({"best": label, "best.metric": ", ".join(result.metrics)})
    return result


def _write(folder: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    for name, table in tables.items():
        (folder / name).write_text(csv_text(table), encoding="utf-8", newline="")


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


def add_report(folder: Path, journal: Journal) -> None:
    """Write a sweep's report and list it for MLflow; the sweep finishes even if its report fails."""
    from flray.reporting.build import make  # start-up: scikit-learn and matplotlib, at the end only

    try:
        made = make(folder, folder / REPORT)
    except Exception as error:
        journal.tags({"report.failed": f"{type(error).__name__}: {error}"[:400]})
        return
    for path in (*made.files, *made.pictures):
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


def _list_trial(trial: TrialFolder) -> None:
    """List a trial's files for MLflow, once, with its model if that is wanted."""
    events = read_events(trial.path / directory.JOURNAL)
    if any(one["type"] == "artifact" and one["path"] == directory.CONFIG for one in events):
        return
    with Journal(trial.path / directory.JOURNAL) as journal:
        tracking = directory.read_config(trial.path)["experiment"].get("tracking") or {}
        if tracking.get("model") and trial.status == "finished":
            from flray.runs.export import save_mlflow_models  # torch.fx

            save_mlflow_models(trial.path, journal, logging.getLogger("flray").info)
        list_files(trial.path, journal)


class Standing:
    """The status of a sweep: its trials' statuses and scores so far.

    Parameters
    ----------
    sweep : Path
        The sweep's folder; trials that ended before are read from there.
    points : mapping of str to TrialSpec
        The trials by number; new ones may be added while the sweep runs.
    """

    def __init__(self, sweep: Path, points: Mapping[str, TrialSpec]) -> None:
        self._points = points
        # The status, score and metric of each trial, and the title and key of its setting: titles
        # agree if only the later digits of a number differ.
        self._trials: dict[str, tuple[str, float, str, tuple[str, str]]] = {}
        for number in points:
            with contextlib.suppress(FlrayError):  # a search creates some folders later
                folder = TrialFolder(sweep, number)
                scores = folder.scores()
                metric = str(folder.identity.get("metric") or "")
                self.add(number, folder.status, scores[-1][1] if scores else math.nan, metric)

    def add(self, number: str, status: str, score: float, metric: str) -> None:
        """Record a trial's status and its score (NaN if it has none)."""
        point = self._points[number]
        self._trials[number] = status, score, metric, (setting_title(point), point.key)

    def line(self) -> str:
        """Return the numbers of ended, running and failed trials, and the best setting with its interval."""
        found = Counter(status for status, *_ in self._trials.values())
        ended = sum(found[status] for status in ENDED_STATUSES)
        parts = [f"{ended} of {len(self._points)} trials ended", f"{found['running']} running"]
        parts += [f"{found['failed']} failed"] if found["failed"] else []
        best = self.best()
        return ", ".join(parts) + (f"; best so far: {best}" if best else "")

    def best(self) -> str:
        """Return the best setting of those that ended, with the interval of its mean; empty while none has.

        Scores of different metrics say nothing of each other: with global and clients' own models in
        one sweep, that is the best by each.
        """
        ended = {
            number: (score, metric, setting)
            for number, (status, score, metric, setting) in self._trials.items()
            if status == "finished" and not math.isnan(score)
        }
        compared = {n: one for n, one in ended.items() if self._points[n].phase != "tuning"}
        found: dict[str, dict[tuple[str, str], list[float]]] = {}
        for score, metric, setting in (compared or ended).values():
            found.setdefault(metric, {}).setdefault(setting, []).append(score)
        if len(found) == 1:
            return _best(*found.popitem())
        return "; ".join(
            f"by {metric}: {_best(metric, settings)}" for metric, settings in sorted(found.items())
        )


def _best(metric: str, settings: Mapping[tuple[str, str], list[float]]) -> str:
    """Return the best of settings by the mean of their scores, with its interval."""
    sign = -1 if lower_is_better(metric) else 1
    (title, _), scores = max(
        settings.items(), key=lambda item: (sign * statistics.fmean(item[1]), item[0])
    )
    mean = statistics.fmean(scores)
    if len(scores) == 1 or not math.isfinite(mean):
        return f"{title}, {mean:.4f} ({len(scores)} seed{'s' if len(scores) > 1 else ''})"
    from scipy import special  # start-up: not before a setting has two seeds

    half = statistics.stdev(scores) / math.sqrt(len(scores))
    half *= float(special.stdtrit(len(scores) - 1, 0.975))
    interval = f"95 % interval {mean - half:.4f} to {mean + half:.4f}"
    return f"{title}, {mean:.4f} ({interval}, {len(scores)} seeds)"
