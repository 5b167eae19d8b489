"""The loop over a run's rounds: step, journal, checkpoint, and what the user sees of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from flray.federation.diagnostics import (
    FINAL_DIAGNOSTICS,
    INITIAL_DIAGNOSTICS,
    encode,
    save_encoded,
)
from flray.federation.failures import ObjectLostError, ServerLostError
from flray.federation.federation import RoundResult
from flray.federation.handle import FederationHandle
from flray.federation.spec import FederationSpec
from flray.metrics.names import primary_metric_name
from flray.runs import directory
from flray.runs.journal import Journal

MAX_LOSSES = 3
"""Losses of the server or of clients' states that a run outlives with no finished round in between."""


class Progress(Protocol):
    """Shows how far a run is."""

    def begin(self, spec: FederationSpec, done: int) -> None:
        """Show that the rounds start after `done`."""

    def round(self, finished: RoundResult, metric: str) -> None:
        """Show a finished round."""

    def say(self, line: str) -> None:
        """Show a line for the user."""

    def end(self) -> None:
        """Take away what is shown."""


class NullProgress:
    """A progress display that shows nothing."""

    def begin(self, spec: FederationSpec, done: int) -> None:
        """Do nothing."""

    def round(self, finished: RoundResult, metric: str) -> None:
        """Do nothing."""

    def say(self, line: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class RoundLoop:
    """The loop over rounds with journal and checkpoints.

    Parameters
    ----------
    spec : FederationSpec
        What is run.
    federation : Running
        Where it runs.
    folder : Path
        The run's folder.
    journal : Journal
        Gets every round before a checkpoint knows of it, so that no round is ever missing from the
        history.
    progress : Progress
        What the user sees.
    """

    def __init__(
        self,
        spec: FederationSpec,
        federation: FederationHandle,
        folder: Path,
        journal: Journal,
        progress: Progress,
    ) -> None:
        self._spec, self._federation, self._folder, self._journal = (
            spec,
            federation,
            folder,
            journal,
        )
        self._progress = progress
        self._done = 0
        self._saved_at = time.monotonic()
        self._saved_round = -1
        self._begun = False
        self._losses = 0

    def run(self) -> str:
        """Run what is left; on Ctrl-C save before giving up.

        Returns
        -------
        str
            SHA-256 of everything learnt.

        Raises
        ------
        RunFailedError
            If the server's process or clients' states were lost `MAX_LOSSES` + 1 times with no
            finished round in between, or a client failed.
        """
        try:
            return self._run_despite_losses()
        except KeyboardInterrupt:
            try:
                self._save_after_interrupt()
            except KeyboardInterrupt:
                pass
            except Exception as error:  # a signal to all processes takes Ray's with it
                self._progress.say(
                    f"the round under way is lost, it will be played again ({type(error).__name__})"
                )
            raise

    def _run_despite_losses(self) -> str:
        """Run what is left, and after a loss go on from the last checkpoint.

        The first round after a loss is saved at once, whatever the checkpoint's settings, and only
        that counts as progress: so a run outlives any number of losses, and one that would meet the
        same loss for ever ends.
        """
        while True:
            try:
                if self._losses:
                    self._federation.restart()
                return self._run_to_end()
            except (ServerLostError, ObjectLostError) as error:
                self._losses += 1
                if self._losses > MAX_LOSSES:
                    raise type(error)(
                        f"{error}; {self._losses} losses with no finished round in between; go on "
                        f"with: "
                        f"flray resume {self._folder}"
                    ) from error
                what = "the server actor died" if isinstance(error, ServerLostError) else str(error)
                self._progress.say(f"{what}; going on from the last checkpoint")

    def _run_to_end(self) -> str:
        self._done = self._saved_round = self._federation.restore(
            self._folder / directory.CHECKPOINT
        )
        if not self._begun:
            self._begun = True
            self._progress.begin(self._spec, self._done)
        metric = primary_metric(self._spec)
        if self._done == 0:
            self._diagnose(False)
        while self._done < self._spec.config.rounds:
            self._round(metric)
        self._diagnose(True)
        return self._federation.sha256()

    def _diagnose(self, final: bool) -> None:
        path = self._folder / (FINAL_DIAGNOSTICS if final else INITIAL_DIAGNOSTICS)
        if self._spec.config.tracking.features and not path.exists():
            found = self._federation.diagnostics(final)
            if found:
                save_encoded(encode(found), path)

    def _round(self, metric: str) -> None:
        finished = self._federation.step()
        self._done = finished.number
        self._journal.record_round(finished.number, finished.metrics)
        self._progress.round(finished, metric)
        self._checkpoint()

    def _checkpoint(self) -> None:
        settings = self._spec.config.checkpoint
        last = self._done == self._spec.config.rounds or self._losses > 0
        due = (
            self._done % settings.every == 0
            and time.monotonic() - self._saved_at >= settings.min_seconds
        )
        if last or due:
            self._save()

    def _save(self) -> None:
        self._journal.sync()
        self._federation.save(
            self._folder / directory.CHECKPOINT, self._spec.config.checkpoint.keep
        )
        self._saved_at, self._saved_round = time.monotonic(), self._done
        self._losses = 0

    def _save_after_interrupt(self) -> None:
        """Save the last whole round; on Ray the one under way ends first, in this process it is played again later."""
        self._progress.say("stopping")
        finished = self._federation.wait_for_round()
        if finished is not None:
            self._done = finished.number
            self._journal.record_round(finished.number, finished.metrics)
        if self._federation.between_rounds and self._done > self._saved_round:
            self._save()
        if self._saved_round == 0:
            self._progress.say("no round has been saved yet; the run will begin anew")
        elif self._saved_round > 0:
            self._progress.say(
                f"the checkpoint holds round {self._saved_round} of {self._spec.config.rounds}"
            )


def primary_metric(spec: FederationSpec) -> str:
    """Return the name of the method's own measure."""
    return primary_metric_name(spec.algorithm.views, spec.task.metric)
