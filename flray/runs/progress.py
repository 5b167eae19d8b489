"""Progress protocols of runs and sweeps, and a null display."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from flray.federation.federation import RoundResult
from flray.federation.spec import FederationSpec

if TYPE_CHECKING:
    from flray.results.sweep import SweepResult

_LOG = logging.getLogger("flray")


def logged(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that shows a line and gives it to the logger ``flray`` too."""

    def say_and_log(line: str) -> None:
        _LOG.info(line)
        say(line)

    return say_and_log


class Progress(Protocol):
    """Displays the progress of a run."""

    def begin(self, spec: FederationSpec, done: int) -> None:
        """Show that the rounds start after `done`."""

    def round(self, finished: RoundResult, metric: str) -> None:
        """Show a finished round."""

    def say(self, line: str) -> None:
        """Show a line for the user."""

    def end(self) -> None:
        """Close the display."""


class SweepProgress(Protocol):
    """Displays the progress of a sweep."""

    def begin(self, total: int, done: int) -> None:
        """Show that `done` of `total` trials have ended already."""

    def trial_started(self, number: str, label: str, rounds_done: int) -> None:
        """Show that a trial runs; `rounds_done` is above 0 if it resumes after an interruption."""

    def round(
        self, number: str, label: str, done: int, rounds: int, score: float, left: float
    ) -> None:
        """Show a trial's finished round: its score (NaN before the first), and seconds left for the whole sweep."""

    def trial_done(
        self, number: str, label: str, status: str, rounds_done: int, score: float
    ) -> None:
        """Show that a trial is finished, stopped (early) or failed."""

    def standing(self, line: str) -> None:
        """Show how the sweep stands; said again whenever a trial begins or ends."""

    def values(self, result: SweepResult) -> None:
        """Show what all trials came to; figures and report follow."""

    def say(self, line: str) -> None:
        """Show a line for the user."""

    def end(self) -> None:
        """Close the display."""


class NullProgress:
    """A display that shows nothing, for runs and sweeps."""

    def begin(self, *info: Any) -> None:
        """Do nothing."""

    def trial_started(self, *info: Any) -> None:
        """Do nothing."""

    def round(self, *info: Any) -> None:
        """Do nothing."""

    def trial_done(self, *info: Any) -> None:
        """Do nothing."""

    def standing(self, *info: Any) -> None:
        """Do nothing."""

    def values(self, *info: Any) -> None:
        """Do nothing."""

    def say(self, line: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""
