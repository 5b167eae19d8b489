"""The rounds of a run or trial: into its journal, and to the callbacks that its experiment names."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flray import registry
from flray.callbacks.base import RunInfo
from flray.config.experiment import Experiment
from flray.errors import FlrayError
from flray.metrics.names import clean_name
from flray.records import directory
from flray.records.journal import Journal


class RoundRecorder:
    """Records the rounds of a run or trial in its journal, and gives them to the experiment's callbacks.

    The journal records which rounds these have seen, so that a resumed run gives them the missed
    rounds and none twice. A callback that raises is reported in one line and not called again
    before a resume, because a log must not stop a run.

    Parameters
    ----------
    journal : Journal
        The run's. Writing wakes the exporter to MLflow.
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
        If a callback cannot be made.
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
        self.journal, self._say = journal, say
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

    def begin(self) -> None:
        """Give the callbacks the rounds that are recorded and that they have not seen."""
        if self._items:
            for event in self.journal.rounds():
                self._give(event["round"], event["metrics"])

    def round(self, number: int, metrics: Mapping[str, float]) -> bool:
        """Record a round, then give it to the callbacks; return whether the journal lacked it."""
        recorded = self.journal.record_round(number, metrics)
        self._give(number, metrics)
        return recorded

    def end(self, status: str) -> None:
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
                self.journal.record_call(name, number)

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
