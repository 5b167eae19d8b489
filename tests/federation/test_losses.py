"""What is done about a process that is gone: the run goes on from its checkpoint, as long as it gets anywhere."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from flray.cli.main import invoke
from flray.federation.federation import Federation, RoundResult, inline_federation
from flray.federation.messages import ObjectLostError, ServerLostError, error_summary
from flray.federation.ray_backend import losses
from flray.federation.worker.client_runner import InlineExecutor
from flray.records.journal import Journal
from flray.runs import runner
from flray.runs.loop import RoundLoop, RoundRecorder
from flray.runs.progress import Progress
from tests.end_to_end.pool import Pools, pids
from tests.helpers import built
from tests.messages import refused


class Dying(Federation):
    """A federation in this process that is lost before some of its calls, as one on Ray is."""

    def __init__(self, spec: Any, steps: dict[int, int], restores: int = 0) -> None:
        super().__init__(spec, InlineExecutor(spec), print)
        self.steps, self.restores = steps, restores

    def step(self) -> RoundResult:
        """Be lost before a round as often as it says."""
        upcoming = self.rounds_done + 1
        if self.steps.get(upcoming, 0) > 0:
            self.steps[upcoming] -= 1
            raise (ServerLostError("gone") if upcoming % 2 else ObjectLostError("gone"))
        return super().step()

    def restore(self, folder: Path) -> int:
        """Be lost while going to a checkpoint as often as it says."""
        if self.restores > 0:
            self.restores -= 1
            raise ServerLostError("gone")
        return super().restore(folder)


def run_federation(
    tmp_cwd: Path, digits: dict[str, Any], name: str, steps: dict[int, int], **losses: int
) -> tuple[str, Journal]:
    # No checkpoint is due before the last round: what is saved is saved because of the losses.
    content = {**digits, "rounds": 6, "checkpoint": {"every": 100}}
    spec = built(content)
    journal = Journal(tmp_cwd / name / "journal.jsonl")
    recorder = RoundRecorder(journal, spec.config, name="", group="", metric="", say=print)
    return RoundLoop(spec, Dying(spec, dict(steps), **losses), recorder, Progress()).run(), journal


def test_a_run_outlives_losses_with_rounds_between(tmp_cwd: Path, digits: dict[str, Any]) -> None:
    whole, _ = run_federation(tmp_cwd, digits, "whole", {})
    digest, journal = run_federation(tmp_cwd, digits, "lost", {2: 3, 3: 3, 4: 3, 6: 3}, restores=1)
    assert digest == whole
    assert [event["round"] for event in journal.rounds()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("steps", "restores"), [({3: 99}, 0), ({}, 4)])
def test_a_run_that_gets_nowhere_ends_as_failed(
    tmp_cwd: Path, digits: dict[str, Any], steps: dict[int, int], restores: int
) -> None:
    refused(run_federation, tmp_cwd, digits, "lost", steps, restores=restores)


def test_a_failed_run_is_one_line_and_exit_code_1(
    digits: dict[str, Any],
    tmp_cwd: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def lose(*arguments: Any, **settings: Any) -> None:
        raise ServerLostError("the server actor died: gone")

    monkeypatch.setattr(runner, "start", lose)
    Path("x.yaml").write_text(yaml.safe_dump({"experiment": digits}))
    assert invoke(["run", "x.yaml"]) == 1
    assert capsys.readouterr().err == "flray: the server actor died: gone\n"


def test_every_way_in_which_ray_ends_a_process_is_a_loss() -> None:
    from ray import exceptions

    for error in (
        exceptions.OutOfMemoryError("low on memory"),
        exceptions.ActorDiedError(),
        exceptions.ActorUnavailableError("", None),
        exceptions.WorkerCrashedError(),
        exceptions.NodeDiedError(""),
    ):
        assert isinstance(error, losses.ACTOR_DIED_ERRORS)
    assert "memory monitor" in losses.last_line(
        exceptions.OutOfMemoryError("1 worker(s) were killed\n...")
    )


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(2**60),
        lambda: bytearray(2**62),
        lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA")),
    ],
)
def test_a_lack_of_memory_is_told_as_what_it_is(allocate: Any) -> None:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        list(allocate())
    on_gpu = isinstance(caught.value, torch.OutOfMemoryError)
    what = "CUDA)" if on_gpu else type(caught.value).__name__
    assert error_summary(caught.value).startswith(f"out of memory ({what}")
    assert error_summary(ValueError("a\nb")) == "ValueError: a"


def test_the_servers_sums_do_not_depend_on_the_environments_threads(digits: dict[str, Any]) -> None:
    spec = built(digits)
    executor = InlineExecutor(spec)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)  # as OMP_NUM_THREADS=3 does for a process on Ray
        Federation(spec, executor)
        assert torch.get_num_threads() == 1  # resources.cpus_per_actor
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_an_actor_ended_by_the_memory_monitor_is_replaced(
    digits: dict[str, Any], pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor watches the whole machine, so a test cannot have it strike; its error comes by a real reference."""
    import ray

    from flray.federation.ray_backend import executor as scheduling

    spec = built(digits, faults={"attempts": 2})
    whole = inline_federation(spec, print)
    whole.step()
    executor = pools[1].executor_for(spec)

    @ray.remote(num_cpus=0, num_returns=3, max_retries=0)
    def end() -> None:
        raise ray.exceptions.OutOfMemoryError(
            "1 worker(s) were killed due to the node running low on memory."
        )

    left, send = {2: 1}, scheduling._send

    def ended(actor: Any, blocks: Any) -> list[Any]:
        task = blocks[0].jobs[0].client_task
        if left.get(task.client, 0) and task.kind == "stage":
            left[task.client] -= 1
            return list(end.remote())
        return send(actor, blocks)

    monkeypatch.setattr(scheduling, "_send", ended)
    first = pids(executor)
    federation = Federation(spec, executor)
    assert federation.step().metrics["cohort/left_out"] == 0
    assert federation.sha256() == whole.sha256()
    assert sum(left.values()) == 0
    assert pids(executor) != first
    left[0] = 2  # faults.attempts
    refused(federation.step)
