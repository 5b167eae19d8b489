"""A client actor killed while a stage is run."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest

from flray.federation.messages import TaskBlock
from flray.federation.ray_backend.executor import RayExecutor


def kill_an_actor(
    executor: RayExecutor,
    when: Callable[[Any], bool],
    cpu_seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> list[int]:
    """Kill the first actor in the first call for whose first task `when` holds; return where its process id will be.

    It has computed for so many CPU seconds by then; 0: it is killed before the tasks go out.
    """
    run, victims = executor.run_blocks, list[int]()

    def watched(blocks: Sequence[TaskBlock], *limits: Any, **more: Any) -> Iterator[Any]:
        if victims or not blocks or not when(blocks[0].jobs[0]):
            yield from run(blocks, *limits, **more)
            return
        victims.append(executor.pids()[0])
        killer = threading.Thread(target=_kill, args=(victims[0], cpu_seconds))
        killer.start()
        if not cpu_seconds:
            killer.join()
        yield from run(blocks, *limits, **more)
        assert not killer.is_alive(), "the stage was over before the actor was killed"

    monkeypatch.setattr(executor, "run_blocks", watched)
    return victims


def _kill(victim: int, cpu_seconds: float) -> None:
    process = psutil.Process(victim)
    end, deadline = process.cpu_times().user + cpu_seconds, time.monotonic() + 300
    while cpu_seconds and process.cpu_times().user < end and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(victim, signal.SIGKILL)
