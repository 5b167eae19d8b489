"""Client actors that outlive the federations they serve, as a process and its imports cost seconds; and their ends."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from flray.federation import FederationSpec
from flray.federation.federation import Federation, inline_federation
from flray.federation.messages import TaskBlock
from flray.federation.ray_backend.executor import RayExecutor
from flray.federation.state import Notify
from tests.helpers import Settings, built, steady


def world_of(digits: Settings, method: Any, **changes: Any) -> FederationSpec:
    some = {"algorithm": method, "participation": {"fraction": 0.75}}
    return built({**digits, **some}, **changes)


def inline_digest(spec: FederationSpec) -> str:
    federation = inline_federation(spec)
    for _ in range(spec.config.rounds):
        federation.step()
    return federation.sha256()


Answer = TypeVar("Answer")


def ask(executor: RayExecutor, question: Callable[[Any], Answer]) -> list[Answer]:
    calls = [worker.actor.__ray_call__.remote(question) for worker in executor.workers]
    answers: list[Answer] = ray.get(calls)
    return answers


def pids(executor: RayExecutor) -> list[int]:
    return ask(executor, lambda actor: os.getpid())


class Pool:
    """Client actors, which start with the first federation; the server's side runs in this process."""

    def __init__(self, actors: int) -> None:
        self.actors = actors
        self.executor: RayExecutor | None = None
        self.group: PlacementGroup | None = None

    def executor_for(self, spec: FederationSpec) -> RayExecutor:
        # Next to no CPU, so that several pools find room on the same Ray.
        resources = spec.config.resources.model_copy(update={"cpus_per_actor": 0.1})
        config = spec.config.model_copy(update={"resources": resources})
        put = ray.put(spec)
        if self.executor is None:
            self.group = placement_group([{"CPU": 0.1}] * self.actors)
            self.executor = RayExecutor(put, config, self.actors, 0, self.group)
        else:
            self.executor.reset(put, config)
        return self.executor

    def federation(self, spec: FederationSpec, warn: Notify = print) -> Federation:
        return Federation(spec, self.executor_for(spec), warn)

    def run_federation(self, spec: FederationSpec) -> Federation:
        federation = self.federation(spec)
        for _ in range(spec.config.rounds):
            federation.step()
        return federation

    def same_as_inline(self, spec: FederationSpec) -> tuple[Federation, set[str]]:
        """Compare the bits and numbers of all rounds with those of one process; return what was compared."""
        here, there = inline_federation(spec, print), self.federation(spec)
        for _ in range(spec.config.rounds):
            ours, theirs = (steady(federation.step().metrics) for federation in (here, there))
            assert {n: repr(v) for n, v in ours.items()} == {n: repr(theirs[n]) for n in ours}
        assert there.sha256() == here.sha256()
        return there, {*ours}

    def close(self) -> None:
        if self.executor is not None and self.group is not None:
            self.executor.close()
            remove_placement_group(self.group)


class Pools(dict[int, Pool]):
    """Pools by their number of actors, made when first asked for."""

    def __missing__(self, actors: int) -> Pool:
        self[actors] = Pool(actors)
        return self[actors]


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
            victims.append(pids(executor)[0])
            os.kill(victims[0], signal.SIGKILL)
        yield from run(blocks, *limits, **more)

    monkeypatch.setattr(executor, "run_blocks", watched)
    return victims
