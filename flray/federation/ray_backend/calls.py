"""Calls of client actors by what is scheduled: single tasks, whole blocks, sums of replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flray.federation.failures import Failure
from flray.federation.messages import (
    Ref,
    SumResult,
    SumTask,
    TaskBlock,
    TaskBlockResult,
    TaskInput,
    TaskOutcome,
    TaskResult,
    failed_block,
)
from flray.federation.ray_backend.handles import (
    ClientHandle,
    MultipleResults,
    ObjectRef,
    Place,
    ReplyInCall,
)
from flray.federation.ray_backend.pool import InFlight
from flray.federation.ray_backend.scheduler import TaskScheduler


class SingleTasks(TaskScheduler[TaskInput, TaskResult]):
    """Single tasks: one call of `flray.federation.ray_backend.executor.RayExecutor.run_tasks`."""

    unit = "task"

    def _call(self, actor: ClientHandle, jobs: Sequence[TaskInput]) -> list[ObjectRef]:
        return _send(actor.run, jobs)

    def _answers(
        self, jobs: Sequence[TaskInput], outcome: Any, call: InFlight, actor: int
    ) -> list[TaskResult]:
        outcomes: list[TaskOutcome] = outcome
        for job, done in zip(jobs, outcomes, strict=True):
            self._pool.note_pace(job, done.seconds)
        return [
            TaskResult(
                job.client_task,
                done,
                bulk=ReplyInCall(call.bulk, place, len(jobs))
                if done.failure is None and done.entries
                else None,
                state=state if done.failure is None and done.stateful else None,
                actor=actor,
            )
            for place, (job, done, state) in enumerate(
                zip(jobs, outcomes, call.states, strict=True)
            )
        ]

    def _expected_seconds(self, job: TaskInput) -> float:
        return self._pool.expected_seconds(job)

    def _failure(self, job: TaskInput, failure: Failure) -> TaskResult:
        return TaskResult(job.client_task, TaskOutcome(job.client_task.client, failure=failure))


class BlockTasks(TaskScheduler[TaskBlock, TaskBlockResult]):
    """Whole blocks: one call of `flray.federation.ray_backend.executor.RayExecutor.run_blocks`."""

    unit = "block"

    def _call(self, actor: ClientHandle, jobs: Sequence[TaskBlock]) -> list[ObjectRef]:
        (block,) = jobs
        return _send(actor.run_block, block.jobs)

    def _answers(
        self, jobs: Sequence[TaskBlock], outcome: Any, call: InFlight, actor: int
    ) -> list[TaskBlockResult]:
        (job,) = jobs
        outcomes, up = outcome
        results = tuple(
            TaskResult(one.client_task, done, state=state if done.stateful else None, actor=actor)
            for one, done, state in zip(job.jobs, outcomes, call.states, strict=False)
        )
        return [TaskBlockResult(results, None if up is None else call.bulk, up or 0)]

    def _failure(self, job: TaskBlock, failure: Failure) -> TaskBlockResult:
        return failed_block(job, failure)


class SumTasks(TaskScheduler[SumTask, SumResult]):
    """Sums of replies: one call of `flray.federation.ray_backend.executor.RayExecutor.add_up`."""

    unit = "sum"

    def _call(self, actor: ClientHandle, jobs: Sequence[SumTask]) -> list[ObjectRef]:
        (task,) = jobs
        calls: dict[int, tuple[int, ObjectRef]] = {}
        parts: list[tuple[str, float, Ref]] = []
        for architecture, weight, part in task.parts:
            if isinstance(part, ReplyInCall):
                number, _ = calls.setdefault(id(part.call), (len(calls), part.call))
                part = Place(number, part.place)
            parts.append((architecture, weight, part))
        held = [call for _, call in calls.values()]
        return list(actor.add_up.options(num_returns=2).remote(task.entry, parts, *held))

    def _answers(
        self, jobs: Sequence[SumTask], outcome: Any, call: InFlight, actor: int
    ) -> list[SumResult]:
        return [SumResult(call.bulk, outcome)]

    def _failure(self, job: SumTask, failure: Failure) -> SumResult:
        return SumResult(failure=failure)


def _send(method: MultipleResults, jobs: Sequence[TaskInput]) -> list[ObjectRef]:
    """Call an actor's method with jobs; return references to its results, and to each client's state.

    Ray resolves references that are arguments of their own, so the jobs hold indices into these
    instead. A state is a separate object: it is sent alone to the actor that runs its client next.
    """
    objects: list[Ref] = []
    places: dict[int, int] = {}

    def place(handle: Ref) -> int | None:
        if handle is None:
            return None
        if id(handle) not in places:
            places[id(handle)] = len(objects)
            objects.append(handle)
        return places[id(handle)]

    placed = [replace(one, common=place(one.common), state=place(one.state)) for one in jobs]
    return list(method.options(num_returns=2 + len(placed)).remote(placed, *objects))
