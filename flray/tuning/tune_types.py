"""Types of the Ray Tune objects that flray reads, because Tune has no types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

# What a trial's step returned, with what Tune adds.
Report = dict[str, Any]


class RunMetadata(Protocol):
    """Tune's record of a trial's errors."""

    pickled_error_filename: str | None
    num_failures: int


class Saving(Protocol):
    """A checkpoint that is being written."""

    def resolve(self) -> object | None:
        """Wait for it; None if it could not be written."""


class TemporaryState(Protocol):
    """Tune's temporary state of a trial: its checkpoint in progress."""

    saving_to: Saving | None


class TuneTrial(Protocol):
    """A trial as Tune sees it; its text is its number."""

    config: dict[str, Any]
    status: str
    last_result: Report | None
    run_metadata: RunMetadata
    temporary_state: TemporaryState
    error_file: str | None

    def on_checkpoint(self, checkpoint_result: object) -> None:
        """Take note of a checkpoint that was written."""


class Controller(Protocol):
    """Tune's loop over trials."""

    def _schedule_trial_save(self, trial: TuneTrial, result: Report | None) -> Saving | None:
        """Begin to write a trial's checkpoint."""


class EarlyStopRule(Protocol):
    """A scheduler of Tune that compares rounds."""

    def on_trial_add(self, controller: Controller, trial: object) -> None:
        """Take note of a trial."""

    def on_trial_result(self, controller: Controller, trial: object, result: Report) -> str:
        """Decide on a trial after a round."""

    def on_trial_complete(
        self, controller: Controller, trial: object, result: Mapping[str, Any]
    ) -> None:
        """Take note that a trial has ended."""

    def on_trial_error(self, controller: Controller, trial: object) -> None:
        """Take note that a trial has crashed."""

    def on_trial_remove(self, controller: Controller, trial: object) -> None:
        """Take note that a trial is gone."""
