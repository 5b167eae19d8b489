"""A client actor killed while a stage is run."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flray.federation.messages import TaskBlock
from flray.federation.ray_backend.executor import RayExecutor

DYING = """
import os
import signal
from pathlib import Path

from flray import register_algorithm, registry


@register_algorithm("dies-once")
class DiesOnce(registry.algorithms.get({method!r})):
    def train(self, client):
        trained, mark = super().train(client), Path({mark!r})
        if (client.round, client.id) == (1, {client}) and not mark.exists():
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return trained
"""
"""A method whose process is gone once, in round 2, with what a client has trained."""


def dies_once(method: str, folder: Path, client: int) -> dict[str, Any]:
    """Return the settings of a method that is killed in a folder's current experiment."""
    text = DYING.format(method=method, mark=str(folder / "victim"), client=client)
    (folder / "dies_once.py").write_text(text)
    return {"algorithm": "dies-once", "plugins": [str(folder / "dies_once.py")]}


def kill_an_actor(
    executor: RayExecutor, when: Callable[[Any], bool], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Kill the first actor before the tasks of the first call for whose first task `when` holds; return its process."""
    run, victims = executor.run_blocks, list[int]()

    def watched(blocks: Sequence[TaskBlock], *limits: Any, **more: Any) -> Iterator[Any]:
        if blocks and not victims and when(blocks[0].jobs[0]):
            victims.append(executor.pids()[0])
            os.kill(victims[0], signal.SIGKILL)
        yield from run(blocks, *limits, **more)

    monkeypatch.setattr(executor, "run_blocks", watched)
    return victims
