"""Callbacks of a run: at its beginning, after each round, before a checkpoint and at its end."""

from __future__ import annotations

from pathlib import Path

from flray.federation.diagnostic_files import (
    FINAL_DIAGNOSTICS,
    INITIAL_DIAGNOSTICS,
    encode,
    save_encoded,
)
from flray.federation.federation import FederationHandle, RoundResult
from flray.federation.spec import FederationSpec
from flray.records.journal import Journal
from flray.runs.progress import Progress


class RunCallback:
    """Hooks into a run, called in list order; by default they do nothing."""

    def on_begin(self, rounds_done: int) -> None:
        """Handle the start of the rounds after `rounds_done`."""

    def on_round(self, result: RoundResult) -> None:
        """Handle a finished round."""

    def on_checkpoint(self, round_: int) -> None:
        """Handle a checkpoint of this round before it is written."""

    def on_end(self) -> None:
        """Handle the end of the last round."""


class JournalCallback(RunCallback):
    """Records every round for the history and MLflow.

    First in the list: a checkpoint must never contain a round that the history lacks. Writing
    wakes the exporter to MLflow.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def on_round(self, result: RoundResult) -> None:
        """Record a round."""
        self._journal.record_round(result.number, result.metrics)

    def on_checkpoint(self, round_: int) -> None:
        """Sync the journal to disk before the checkpoint is written."""
        self._journal.sync()


class ProgressCallback(RunCallback):
    """Shows the rounds to the user."""

    def __init__(self, progress: Progress, spec: FederationSpec, metric: str) -> None:
        self._progress, self._spec, self._metric = progress, spec, metric

    def on_begin(self, rounds_done: int) -> None:
        """Show the round that the run resumes from."""
        self._progress.begin(self._spec, rounds_done)

    def on_round(self, result: RoundResult) -> None:
        """Show a round."""
        self._progress.round(result, self._metric)


class DiagnosticsCallback(RunCallback):
    """Saves diagnostics of the initial and the final models (``tracking.features``)."""

    def __init__(self, federation: FederationHandle, folder: Path) -> None:
        self._federation, self._folder = federation, folder

    def on_begin(self, rounds_done: int) -> None:
        """Save those of the initial models."""
        if rounds_done == 0:
            self._save(self._folder / INITIAL_DIAGNOSTICS, final=False)

    def on_end(self) -> None:
        """Save those of the final models."""
        self._save(self._folder / FINAL_DIAGNOSTICS, final=True)

    def _save(self, path: Path, final: bool) -> None:
        if not path.exists() and (found := self._federation.diagnostics(final)):
            save_encoded(encode(found), path)
