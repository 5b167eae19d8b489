"""Trials whose process Ray's memory monitor ended: they crashed, and are tried again as others that did."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import ray.exceptions
from ray.air.execution._internal import RayActorManager

from flray.federation.ray_backend.process_loss import cause_of_loss


@contextlib.contextmanager
def memory_losses_are_crashes() -> Iterator[None]:
    """Show Tune the error of an ended process that it knows, a `RayActorError`.

    The memory monitor's own is none. Tune 2.60 takes it for a fault of its own, and one trial
    without memory would end the sweep.
    """
    original = RayActorManager._actor_task_failed

    def failed(manager: RayActorManager, tracked_actor_task: object, exception: Exception) -> None:
        if isinstance(exception, ray.exceptions.OutOfMemoryError):
            exception = ray.exceptions.RayActorError(
                error_msg=f"{cause_of_loss(exception)}; fewer trials at once (sweep.concurrency) "
                "leave each of them more"
            )
        original(manager, tracked_actor_task, exception)

    RayActorManager._actor_task_failed = failed
    try:
        yield
    finally:
        RayActorManager._actor_task_failed = original
