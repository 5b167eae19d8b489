"""An actor killed while a round is run."""

from __future__ import annotations

import os
import signal
import threading
import time

from flray.federation.federation import Federation
from flray.federation.ray_backend.handle import RayFederation


def step_while_an_actor_is_killed(
    federation: RayFederation | Federation, actors: list[int], after: float = 0.15
) -> int:
    """Run a round, kill the first of its client actors so many seconds into it, and return the process that died."""
    victim = actors[0]
    killer = threading.Timer(after, os.kill, (victim, signal.SIGKILL))
    killer.start()
    began = time.monotonic()
    federation.step()
    killer.join()
    assert time.monotonic() - began > after, "the round was over before the actor was killed"
    return victim
