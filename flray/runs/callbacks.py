"""Callbacks of a run, flray's and those that an experiment names: at its begin, each round, checkpoint and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flray import registry
from flray.callbacks.base import RunInfo
from flray.config.experiment import Experiment
from flray.errors import FlrayError
from flray.federation.diagnostic_files import (
    FINAL_DIAGNOSTICS,
    INITIAL_DIAGNOSTICS,
    encode,
    save_encoded,
)
from flray.federation.federation import FederationHandle, RoundResult
from flray.federation.spec import FederationSpec
from flray.metrics.names import clean_name
from flray.records import directory
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


class UserCallbacks(RunCallback):
    """Makes, calls and ends the callbacks of one run or trial.

    The journal records the rounds that they have seen, so that a resumed run gives them the missed
    rounds and none twice. A callback that raises is reported in one line and not called again
    before a resume, because a log must not stop a run.

    Parameters
    ----------
    journal : Journal
        The run's.
    experiment : Experiment
        Its settings.
    name, group : str
        See `flray.callbacks.base.RunInfo`.
    metric : str
        The method's own metric.
    say : callable
        Called with lines that the user should see.

    Raises
    ------
    FlrayError
        If one cannot be made.
    """

    def __init__(
        self,
        journal: Journal,
        experiment: Experiment,
        *,
        name: str,
        group: str,
        metric: str,
        say: Callable[[str], None],
    ) -> None:
        self._journal, self._say = journal, say
        self._seen = dict.fromkeys((one.name for one in experiment.callbacks), 0)
        if self._seen:
            self._seen |= {k: v for k, v in journal.called().items() if k in self._seen}
        settings = dict(directory.flatten_settings(experiment.model_dump(mode="json")))
        # In full: a service that callbacks write through may run in another folder.
        folder = journal.path.parent.resolve()
        self._items: dict[str, Any] = {}
        for choice in experiment.callbacks:
            info = RunInfo(
                folder,
                str(directory.read(folder)["uid"]),
                name,
                group,
                settings,
                metric,
                self._seen[choice.name],
            )
            with registry.callbacks.guarded(choice.name):
                self._items[choice.name] = registry.callbacks.get(choice.name)(
                    info, **choice.options
                )
                has = int(getattr(self._items[choice.name], "rounds_in_log", info.rounds_done))
            self._seen[choice.name] = min(has, info.rounds_done)

    def on_begin(self, rounds_done: int) -> None:
        """Give the callbacks the rounds that are recorded and that they have not seen."""
        if self._items:
            for event in self._journal.rounds():
                self._give(event["round"], event["metrics"])

    def on_round(self, result: RoundResult) -> None:
        """Give the callbacks a round."""
        self._give(result.number, result.metrics)

    def finish(self, status: str) -> None:
        """End the callbacks."""
        for name, item in list(self._items.items()):
            if (end := getattr(item, "end", None)) is not None:
                self._call(name, partial(end, status))
        self._items.clear()

    def _give(self, number: int, metrics: Mapping[str, float]) -> None:
        if not self._items:
            return
        cleaned = {clean_name(one): float(value) for one, value in metrics.items()}
        for name, item in list(self._items.items()):
            if number <= self._seen[name]:
                continue
            if self._call(name, partial(item.round, number, dict(cleaned))):
                self._seen[name] = number
                self._journal.record_call(name, number)

    def _call(self, name: str, call: Callable[[], object]) -> bool:
        """Call a callback; report what it raises, and forget it."""
        try:
            with registry.callbacks.guarded(name):
                call()
        except Exception as error:
            text = str(error) if isinstance(error, FlrayError) else f"{name}: {error!r}"
            self._say(f"{text}; it is not called again unless the run is resumed")
            del self._items[name]
            return False
        return True
