"""The loop over a run's rounds: step, journal and callbacks, checkpoint, recovery from losses and interrupts."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flray import registry
from flray.callbacks import RunInfo
from flray.config.experiment import Checkpointing, Experiment
from flray.errors import FlrayError
from flray.federation import FederationSpec
from flray.federation.federation import Federation, RoundResult
from flray.federation.messages import ObjectLostError, ServerLostError
from flray.federation.worker.diagnostics import encode, save_encoded
from flray.metrics import clean_name
from flray.records import Journal, directory

if TYPE_CHECKING:
    from flray.federation.ray_backend.handle import RayFederation
    from flray.runs.progress import Progress


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
        See `flray.callbacks.RunInfo`.
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
            call = partial(item.round, number, dict(cleaned))
            if number > self._seen[name] and self._call(name, call):
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


MAX_LOSSES = 3
"""Consecutive losses of the server or of clients' states, with no finished round in between, that a run survives."""


class CheckpointPolicy:
    """Tells when the next checkpoint of a run or trial is due.

    Parameters
    ----------
    settings : Checkpointing
        ``checkpoint`` of the experiment.

    Attributes
    ----------
    saved_at : float
        The monotonic time of the last checkpoint; at first, of the beginning.
    """

    def __init__(self, settings: Checkpointing) -> None:
        self._settings, self._pause = settings, settings.pause(0.0)
        self.saved_at = time.monotonic()

    def due(self, done: int) -> bool:
        """Return whether a checkpoint is due after so many rounds."""
        pause_is_over = time.monotonic() - self.saved_at >= self._pause
        return done % self._settings.every == 0 and pause_is_over

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Measure how long the block takes to write a checkpoint."""
        begun = time.monotonic()
        yield
        self.saved_at = time.monotonic()
        self._pause = self._settings.pause(self.saved_at - begun)


class RoundLoop:
    """The loop over rounds with journal and checkpoints.

    Parameters
    ----------
    spec : FederationSpec
        The experiment.
    federation : Federation or RayFederation
        Its federation.
    recorder : RoundRecorder
        Gets every round, before a checkpoint of it is written.
    progress : Progress
        The display.
    """

    def __init__(
        self,
        spec: FederationSpec,
        federation: "Federation | RayFederation",
        recorder: RoundRecorder,
        progress: "Progress",
    ) -> None:
        self._spec, self._federation, self._recorder = spec, federation, recorder
        self._folder, self._progress = recorder.journal.path.parent, progress
        self._done, self._ended = 0, False
        self._policy, self._saved_round = CheckpointPolicy(spec.config.checkpoint), -1
        self._begun = self._warned = False
        self._losses = 0

    def run(self) -> str:
        """Run the remaining rounds; on Ctrl-C save before stopping.

        Returns
        -------
        str
            SHA-256 of the learned state.

        Raises
        ------
        RunFailedError
            If the server's process or clients' states were lost `MAX_LOSSES` + 1 times with no
            finished round in between, or a client failed.
        """
        try:
            return self._run_with_recovery()
        except KeyboardInterrupt:
            try:
                self._save_after_interrupt()
            except KeyboardInterrupt:
                pass
            except Exception as error:  # a signal to the process group also ends Ray's processes
                self._progress.tell(
                    f"the round under way is lost, it will be run again ({type(error).__name__})"
                )
            raise

    def _run_with_recovery(self) -> str:
        """Run the remaining rounds; after a loss resume from the last checkpoint.

        The first round after a loss is saved at once, whatever the checkpoint's settings, and only
        that counts as progress: so a run survives any number of losses, and one that meets the
        same loss every time ends.
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
                        f"{error}; {self._losses} losses with no finished round in between; go on with: flray resume "
                        f"{self._folder}"
                    ) from error
                what = "the server actor died" if isinstance(error, ServerLostError) else str(error)
                self._progress.tell(f"{what}; going on from the last checkpoint")

    def _run_to_end(self) -> str:
        self._done = self._saved_round = self._federation.restore(
            self._folder / directory.CHECKPOINT
        )
        if not self._begun:
            self._begun = True
            self._recorder.begin()
            self._progress.begin(self._spec, self._done)
            if self._done == 0:
                self._save_diagnostics(directory.INITIAL_DIAGNOSTICS, final=False)
        self._ended = self._federation.has_ended()
        while not self._ended:
            result = self._federation.step()
            self._take(result)
            self._checkpoint(result.leaving)
        self._save_diagnostics(directory.FINAL_DIAGNOSTICS, final=True)
        return self._federation.sha256()

    def _save_diagnostics(self, name: str, final: bool) -> None:
        """Save diagnostics of the initial or the final models, if they are wanted."""
        path = self._folder / name
        # The final ones anew: those of a run with fewer rounds may be there, in its bucket say.
        wanted = self._spec.config.tracking.features and (final or not path.exists())
        if wanted and (found := self._federation.diagnostics(final)):
            save_encoded(encode(found), path)

    def _take(self, result: RoundResult) -> None:
        self._recorder.round(result.number, result.metrics)
        self._done, self._ended = result.number, result.last
        self._progress.round(result, self._spec.primary_metric)

    def _checkpoint(self, leaving: bool) -> None:
        at_once = self._ended or self._losses > 0 or leaving
        if leaving and not self._warned:
            self._warned = True
            self._progress.tell(
                "this node will soon be gone (Ray drains it): from now on every round is saved; "
                f"elsewhere go on with: flray resume {self._folder}"
            )
        if at_once or self._policy.due(self._done):
            self._save()

    def _save(self) -> None:
        self._recorder.journal.sync()
        with self._policy.saving():
            keep = self._spec.config.checkpoint.keep
            self._federation.save(self._folder / directory.CHECKPOINT, keep)
        self._saved_round = self._done
        self._losses = 0

    def _save_after_interrupt(self) -> None:
        """Save the last complete round; Ray finishes the current one first, in this process it is repeated later."""
        self._progress.tell("stopping")
        finished = self._federation.wait_for_round()
        if finished is not None and finished.number > self._done:
            self._take(finished)
        if finished is not None and self._done > self._saved_round:
            self._save()
        if self._saved_round == 0:
            self._progress.tell("no round has been saved yet; the run will begin anew")
        elif self._saved_round > 0:
            self._progress.tell(
                f"the checkpoint holds round {self._saved_round} of {self._spec.config.rounds}"
            )
