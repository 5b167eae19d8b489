"""Callbacks of a run: what happens at its beginning, after each round, at a checkpoint and at its end."""

from __future__ import annotations

from pathlib import Path

from flray.federation.diagnostics import (
    FINAL_DIAGNOSTICS,
    INITIAL_DIAGNOSTICS,
    encode,
    save_encoded,
)
from flray.federation.federation import RoundResult
from flray.federation.handle import FederationHandle
from flray.federation.spec import FederationSpec
from flray.runs.journal import Journal
from flray.runs.progress import Progress


class RunCallback:
    """Is told of a run's course, in the order of the list it stands in; by default it does nothing."""

    def on_begin(self, rounds_done: int) -> None:
        """Take note that the rounds after `rounds_done` are about to be run."""

    def on_round(self, result: RoundResult) -> None:
        """Take note of a round that has ended."""

    def on_checkpoint(self, round_: int) -> None:
        """Take note that a checkpoint of this round is about to be written."""

    def on_end(self) -> None:
        """Take note that all rounds are done."""


class JournalCallback(RunCallback):
    """Records every round, for the history and for MLflow.

    It stands first: a checkpoint must never know of a round that the history lacks. Whoever sends
    the journal to MLflow is woken by it.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def on_round(self, result: RoundResult) -> None:
        """Record a round."""
        self._journal.record_round(result.number, result.metrics)

    def on_checkpoint(self, round_: int) -> None:
        """Have the journal on the disk before the checkpoint is."""
        self._journal.sync()


class ProgressCallback(RunCallback):
    """Shows the rounds to the user."""

    def __init__(self, progress: Progress, spec: FederationSpec, metric: str) -> None:
        self._progress, self._spec, self._metric = progress, spec, metric

    def on_begin(self, rounds_done: int) -> None:
        """Show from where the run goes on."""
        self._progress.begin(self._spec, rounds_done)

    def on_round(self, result: RoundResult) -> None:
        """Show a round."""
        self._progress.round(result, self._metric)


class DiagnosticsCallback(RunCallback):
    """Saves what figures need of the first and the last models (``tracking.features``)."""

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
