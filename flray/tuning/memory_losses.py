"""Trials whose process Ray's memory monitor ended are tried again by Tune, as after other crashes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ray.exceptions
from ray.tune.execution import tune_controller

from flray.federation.ray_backend.process_loss import cause_of_loss

HANDLERS = ("_actor_start_failed", "_actor_task_failed")
"""Where Tune takes the errors of trials' processes: of those that start, and of their steps."""


@contextlib.contextmanager
def memory_losses_are_crashes() -> Iterator[None]:
    """Show Tune the error of an ended process that it knows, a `RayActorError`.

    The memory monitor's own is none. Tune 2.60 takes it for a fault of its own, and one trial
    without memory would end the sweep. Does nothing where Tune's inside is another.
    """
    manager = getattr(tune_controller, "RayActorManager", None)
    originals = {name: getattr(manager, name) for name in HANDLERS if hasattr(manager, name)}
    for name, original in originals.items():
        setattr(manager, name, _told(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(manager, name, original)


def _told(handler: Callable[..., None]) -> Callable[..., None]:
    def handle(*tracked: Any, exception: Exception, **others: Any) -> None:
        if isinstance(exception, ray.exceptions.OutOfMemoryError):
            exception = ray.exceptions.RayActorError(
                error_msg=f"{cause_of_loss(exception)}; fewer trials at once (sweep.concurrency) "
                "leave each of them more"
            )
        handler(*tracked, exception=exception, **others)

    return handle
