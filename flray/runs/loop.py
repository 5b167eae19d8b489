"""The loop over a run's rounds: step, callbacks, checkpoint, recovery from losses and interrupts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from flray.federation.failures import ObjectLostError, ServerLostError
from flray.federation.federation import FederationHandle, RoundResult
from flray.federation.spec import FederationSpec
from flray.federation.state import Notify
from flray.records import directory
from flray.runs.callbacks import RunCallback

MAX_LOSSES = 3
"""Consecutive losses of the server or of clients' states, with no finished round in between, that a run survives."""


class RoundLoop:
    """The loop over rounds with journal and checkpoints.

    Parameters
    ----------
    spec : FederationSpec
        The experiment.
    federation : FederationHandle
        Its federation.
    folder : Path
        The run's folder.
    callbacks : sequence of RunCallback
        Called in order for every round, before a checkpoint of it is written.
    notify : callable
        Called with lines that the user should see.
    """

    def __init__(
        self,
        spec: FederationSpec,
        federation: FederationHandle,
        folder: Path,
        callbacks: Sequence[RunCallback],
        notify: Notify,
    ) -> None:
        self._spec, self._federation, self._folder = spec, federation, folder
        self._callbacks, self._notify = callbacks, notify
        self._done, self._ended = 0, False
        self._saved_at, self._pause = time.monotonic(), spec.config.checkpoint.pause(0.0)
        self._saved_round = -1
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
            for callback in self._callbacks:
                callback.on_begin(self._done)
        self._ended = self._federation.has_ended()
        while not self._ended:
            result = self._federation.step()
            self._take(result)
            self._checkpoint(result.leaving)
        for callback in self._callbacks:
            callback.on_end()
        return self._federation.sha256()

    def _take(self, result: RoundResult) -> None:
        self._done, self._ended = result.number, result.last
        for callback in self._callbacks:
            callback.on_round(result)

    def _checkpoint(self, leaving: bool) -> None:
        settings = self._spec.config.checkpoint
        at_once = self._ended or self._losses > 0 or leaving
        if leaving and not self._warned:
            self._warned = True
            self._notify(
                "this node will soon be gone (Ray drains it): from now on every round is saved; "
                f"elsewhere go on with: flray resume {self._folder}"
            )
        due = self._done % settings.every == 0 and time.monotonic() - self._saved_at >= self._pause
        if at_once or due:
            self._save()

    def _save(self) -> None:
        for callback in self._callbacks:
            callback.on_checkpoint(self._done)
        settings, begun = self._spec.config.checkpoint, time.monotonic()
        self._federation.save(self._folder / directory.CHECKPOINT, settings.keep)
        self._saved_at, self._saved_round = time.monotonic(), self._done
        self._pause = settings.pause(self._saved_at - begun)
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
