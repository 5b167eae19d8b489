"""Progress protocols of runs and sweeps, and a null display."""

import logging
from collections.abc import Callable
from typing import Any, Protocol

from flray.federation.federation import RoundResult
from flray.federation.spec import FederationSpec

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
