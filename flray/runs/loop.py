"""The loop over a run's rounds: step, callbacks, checkpoint, recovery from losses and interrupts."""

import contextlib
import time
from collections.abc import Iterator

from flray.config.experiment import Checkpointing
from flray.federation.diagnostic_files import (
    FINAL_DIAGNOSTICS,
    INITIAL_DIAGNOSTICS,
    encode,
    save_encoded,
)
from flray.federation.failures import ObjectLostError, ServerLostError
from flray.federation.federation import FederationHandle, RoundResult
from flray.federation.spec import FederationSpec
from flray.records import directory
from flray.runs.callbacks import RoundRecorder
from flray.runs.progress import Progress, logged

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
    federation : FederationHandle
        Its federation.
    recorder : RoundRecorder
        Gets every round, before a checkpoint of it is written.
    progress : Progress
        The display.
    """

    def __init__(
        self,
        spec: FederationSpec,
        federation: FederationHandle,
        recorder: RoundRecorder,
        progress: Progress,
    ) -> None:
        self._spec, self._federation, self._recorder = spec, federation, recorder
        self._folder, self._progress = recorder.journal.path.parent, progress
        self._notify = logged(progress.say)
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
                self._notify(
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
                        f"{error}; {self._losses} losses with no finished round in between; go on "
                        f"with: "
                        f"flray resume {self._folder}"
                    ) from error
                what = "the server actor died" if isinstance(error, ServerLostError) else str(error)
                self._notify(f"{what}; going on from the last checkpoint")

    def _run_to_end(self) -> str:
        self._done = self._saved_round = self._federation.restore(
            self._folder / directory.CHECKPOINT
        )
        if not self._begun:
            self._begun = True
            self._recorder.begin()
            self._progress.begin(self._spec, self._done)
            if self._done == 0:
                self._save_diagnostics(INITIAL_DIAGNOSTICS, final=False)
        self._ended = self._federation.has_ended()
        while not self._ended:
            result = self._federation.step()
            self._take(result)
            self._checkpoint(result.leaving)
        self._save_diagnostics(FINAL_DIAGNOSTICS, final=True)
        return self._federation.sha256()

    def _save_diagnostics(self, name: str, final: bool) -> None:
        """Save diagnostics of the initial or the final models, if they are wanted."""
        path = self._folder / name
        wanted = self._spec.config.tracking.features and not path.exists()
        if wanted and (found := self._federation.diagnostics(final)):
            save_encoded(encode(found), path)

    def _take(self, result: RoundResult) -> None:
        self._done, self._ended = result.number, result.last
        self._recorder.round(result.number, result.metrics)
        self._progress.round(result, self._spec.primary_metric)

    def _checkpoint(self, leaving: bool) -> None:
        at_once = self._ended or self._losses > 0 or leaving
        if leaving and not self._warned:
            self._warned = True
            self._notify(
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
        self._notify("stopping")
        finished = self._federation.wait_for_round()
        if finished is not None:
            self._take(finished)
        if self._federation.between_rounds and self._done > self._saved_round:
            self._save()
        if self._saved_round == 0:
            self._notify("no round has been saved yet; the run will begin anew")
        elif self._saved_round > 0:
            self._notify(
                f"the checkpoint holds round {self._saved_round} of {self._spec.config.rounds}"
            )
