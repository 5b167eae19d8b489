"""What a sweep shows while it runs."""

from __future__ import annotations

from typing import Protocol


class SweepProgress(Protocol):
    """Shows how far a sweep is."""

    def begin(self, total: int, done: int) -> None:
        """Show that `done` of `total` trials have ended already."""

    def trial_started(self, number: str, label: str, rounds_done: int) -> None:
        """Show that a trial runs; `rounds_done` is above 0 where it goes on after an interruption."""

    def round(
        self, number: str, label: str, done: int, rounds: int, score: float, left: float
    ) -> None:
        """Show a trial's finished round: its score (NaN before the first), and seconds left for the whole sweep."""

    def trial_done(
        self, number: str, label: str, status: str, rounds_done: int, score: float
    ) -> None:
        """Show that a trial is finished, stopped (early) or failed."""

    def say(self, line: str) -> None:
        """Show a line for the user."""

    def end(self) -> None:
        """Take away what is shown."""


class NullProgress:
    """A progress display that shows nothing."""

    def begin(self, total: int, done: int) -> None:
        """Do nothing."""

    def trial_started(self, number: str, label: str, rounds_done: int) -> None:
        """Do nothing."""

    def round(
        self, number: str, label: str, done: int, rounds: int, score: float, left: float
    ) -> None:
        """Do nothing."""

    def trial_done(
        self, number: str, label: str, status: str, rounds_done: int, score: float
    ) -> None:
        """Do nothing."""

    def say(self, line: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""
