"""Losses of trials' processes, told to Tune as errors that it knows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ray.exceptions

from flray.federation.failures import ObjectLostError
from flray.federation.ray_backend import private
from flray.federation.ray_backend.losses import NODE_DIED, cause_of_loss, node_is_gone


@contextlib.contextmanager
def losses_are_known() -> Iterator[None]:
    """Show Tune the errors of lost processes as the kind of `RayActorError` that each is.

    If a process ran out of memory, Tune 2.60 takes the error for an internal fault, and one such
    trial would end the sweep. It counts a lost node as a crash as long as Ray reports only that the
    trial is unavailable.
    """
    private.check(*private.SWEEP)
    with (
        private.replaced(private.TRIAL_STARTS, _told),
        private.replaced(private.TRIAL_STEPS, _told),
    ):
        yield


def _told(handler: Callable[..., None]) -> Callable[..., None]:
    def handle(*tracked: Any, exception: Exception, **others: Any) -> None:
        handler(*tracked, exception=_known(exception), **others)

    return handle


def _known(error: Exception) -> Exception:
    known = error
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        advice = "fewer trials at once (sweep.concurrency) leave each of them more"
        known = ray.exceptions.RayActorError(error_msg=f"{cause_of_loss(error)}; {advice}")
    elif isinstance(getattr(error, "cause", None), ObjectLostError) or node_is_gone(error):
        # What is preempted counts for nothing.
        known = ray.exceptions.RayActorError(error_msg=NODE_DIED, preempted=True)
    return known
