"""Types of the Ray Tune objects that flray reads, because Tune has no types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

# What a trial's step returned, with what Tune adds.
Report = dict[str, Any]


class TuneTrial(Protocol):
    """A trial as Tune sees it; its text is its number."""

    config: dict[str, Any]
    last_result: Report | None
    error_file: str | None


class EarlyStopRule(Protocol):
    """A scheduler of Tune that compares rounds."""

    def on_trial_add(self, controller: object, trial: object) -> None:
        """Take note of a trial."""

    def on_trial_result(self, controller: object, trial: object, result: Report) -> str:
        """Decide on a trial after a round."""

    def on_trial_complete(
        self, controller: object, trial: object, result: Mapping[str, Any]
    ) -> None:
        """Take note that a trial has ended."""

    def on_trial_error(self, controller: object, trial: object) -> None:
        """Take note that a trial has crashed."""

    def on_trial_remove(self, controller: object, trial: object) -> None:
        """Take note that a trial is gone."""
