"""Tasks on actors: short ones go several to a call, few replies wait; a process that is gone costs no bit."""

import math
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray import exceptions

from flray import trees
from flray.algorithms.common import aggregation
from flray.algorithms.common.aggregation import average
from flray.algorithms.types import Stage
from flray.config.start import load_plugins
from flray.federation import FederationSpec, messages
from flray.federation.federation import Federation, RoundResult, inline_federation
from flray.federation.messages import ClientReply, ClientTask, ServerLostError, TaskBlock, TaskInput
from flray.federation.ray_backend import executor as scheduling
from flray.federation.ray_backend import losses
from flray.federation.ray_backend.executor import SCHEDULING_WINDOW, RayExecutor, TaskScheduler
from flray.federation.ray_backend.nodes import ship_user_modules
from flray.federation.ray_backend.pool import PoolWorker, ReplyInCall
from flray.federation.worker.client_runner import InlineExecutor
from flray.functional import weighted_mean
from flray.records import Journal
from flray.runs.loop import RoundLoop, RoundRecorder
from flray.runs.progress import Progress
from tests.end_to_end.pool import Pools, inline_digest, pids
from tests.helpers import Settings, built
from tests.messages import refused


def a_reply(client: int, tree: dict[str, Any]) -> ClientReply:
    outcome = messages.TaskOutcome(entries=("weights",))
    packed = trees.pack({"weights": tree})
    result = messages.TaskResult(ClientTask("stage", client, 0, "a"), outcome, packed)
    return ClientReply(result, client + 3, lambda bulk: bulk)


def a_tree(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.rand(7, 5, generator=draw, dtype=torch.float64).to(dtype),
        "seen": torch.tensor(seed * 3, dtype=torch.int64),
        "bias": torch.randn(3, generator=draw).to(dtype),
        "none": torch.zeros(0, dtype=dtype),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("count", "waiting"), [(1, 0), (2, 0), (5, 0), (5, 200), (1, 1e9), (5, 1e9)]
)
def test_one_tensor_of_all_has_the_bits_of_each_alone(
    dtype: torch.dtype, count: int, waiting: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregation, "WAITING_BYTES", waiting)
    all_trees = [a_tree(seed, dtype) for seed in range(count)]
    replies = [a_reply(client, tree) for client, tree in enumerate(all_trees)]
    assert all(reply.flat("weights") is not None for reply in replies)
    mean = average(replies, lambda reply: reply.num_samples)["a"]
    wanted = weighted_mean(all_trees, [client + 3 for client in range(count)])
    assert list(mean) == list(wanted)
    for name, tensor in wanted.items():
        assert mean[name].dtype == tensor.dtype and mean[name].shape == tensor.shape
        assert torch.equal(mean[name], tensor)


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("weightless", [False, True])
def test_a_reply_laid_out_differently_is_added_all_the_same(at: int, weightless: bool) -> None:
    all_trees = [a_tree(seed) for seed in range(4)]
    other = {name: all_trees[at][name] for name in reversed(all_trees[at])}
    sent = [other if client == at else tree for client, tree in enumerate(all_trees)]
    replies = [a_reply(client, tree) for client, tree in enumerate(sent)]
    weights = [0.0 if weightless and client < 2 else client + 3.0 for client in range(4)]
    mean = average(replies, lambda reply: weights[reply.client])["a"]
    wanted = weighted_mean(all_trees, weights)
    assert mean.keys() == wanted.keys()
    assert all(torch.equal(mean[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("networks", ["a", "ab"])
def test_few_bytes_of_replies_wait(networks: str) -> None:
    """What a reply has besides weights stays in memory with them."""
    held: list[Any] = []
    alive: list[int] = []

    def replies() -> Iterator[ClientReply]:
        for client in range(8):
            packed = trees.pack({"weights": a_tree(client), "features": torch.zeros(3 * 2**18)})
            held.append(weakref.ref(packed.data))
            task = ClientTask("stage", client, 0, networks[client % len(networks)])
            outcome = messages.TaskOutcome(entries=("weights", "features"))
            result = messages.TaskResult(task, outcome, packed)
            del packed
            yield ClientReply(result, 1, lambda bulk: bulk)
            alive.append(sum(one() is not None for one in held))

    average(replies(), lambda _: 1.0)
    assert (max(alive) > 1) == (networks == "a") and max(alive) <= 4


def test_what_is_no_tree_of_one_kind_of_float_is_added_by_tensors() -> None:
    mixed = {"a": torch.ones(3), "b": torch.ones(3, dtype=torch.float64)}
    nested = {"a": torch.ones(3), "more": {"b": torch.ones(2)}}
    scalar = {"a": torch.ones(3), "n": 3}
    for tree in (mixed, nested, scalar, {}):
        assert a_reply(0, tree).flat("weights") is None
    mean = average([a_reply(0, mixed), a_reply(1, mixed)], lambda _: 1.0)["a"]
    assert mean["b"].dtype == torch.float64
    assert average([a_reply(0, {})], lambda _: 1.0) == {}
    wrong = {**a_tree(1), "bias": torch.zeros(4)}  # different shapes are refused by name
    refused(average, [a_reply(0, a_tree(0)), a_reply(1, wrong)], lambda _: 1.0)


CLIENTS = 192


def many_clients(digits: Settings, **changes: Any) -> FederationSpec:
    local = {"epochs": 1, "batch_size": 2}
    return built(digits, partition={"name": "iid", "clients": CLIENTS}, local=local, **changes)


OWN = '''
import os

from flray import register_algorithm
from flray.algorithms.base import Algorithm

MARK = {mark!r}

@register_algorithm("ends-its-process")
class Ending(Algorithm):
    """Ends the process of one client, once."""

    def loss(self, client, batch):
        if client.id == 150 and not os.path.exists(MARK):
            open(MARK, "w").close()
            os._exit(1)
        return super().loss(client, batch)
'''


@pytest.mark.slow
def test_short_tasks_share_calls_and_a_process_that_ends_costs_its_neighbours_nothing(
    digits: Settings, pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN.format(mark=str(mark := tmp_path / "mark")))
    load_plugins([str(tmp_path / "own.py")])
    mark.touch()
    ship_user_modules()
    # One attempt: of a call with several tasks nobody knows which one was at fault.
    own = {"algorithm": "ends-its-process", "rounds": 2, "faults": {"attempts": 1}}
    spec = many_clients(digits, **own)
    calls: list[int] = []
    send = scheduling._send
    monkeypatch.setattr(scheduling, "_send", lambda *of: calls.append(len(of[1])) or send(*of))
    monkeypatch.setattr(scheduling, "CALL_SECONDS", 60.0)  # however busy this machine is
    federation = pools[2].federation(spec)
    federation.step()
    mark.unlink()
    federation.step()
    assert federation.sha256() == inline_digest(spec)
    assert max(calls) > 4 and len(calls) < sum(calls) / 3
    assert mark.exists()


def test_a_call_s_replies_are_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = object.__new__(RayExecutor)
    packed = [trees.pack({"a": torch.full((3,), float(i))}) for i in range(3)]
    asked: list[object] = []
    monkeypatch.setattr(executor, "_get", lambda call: asked.append(call) or packed, raising=False)
    call = object()
    for place in range(3):
        assert executor.fetch(ReplyInCall(call, place, 3)) is packed[place]
    assert asked == [call]


def test_what_one_stage_takes_says_nothing_of_another() -> None:
    pool = object.__new__(RayExecutor)
    pool._pace = {}
    tasks = (ClientTask("stage", 0, 0, "a", Stage(x), cost=10.0) for x in ("train", "publish"))
    train, publish = (TaskBlock((TaskInput(task),)) for task in tasks)
    assert pool.expected_seconds(publish) == math.inf
    pool.note_pace(publish, 0.02)
    assert pool.expected_seconds(publish) == pytest.approx(0.02)
    assert pool.expected_seconds(train) == math.inf
    pool.note_pace(publish, 0.07)
    assert pool.expected_seconds(publish) == pytest.approx(0.03)  # a fifth of the way


def blocks_of(spec: FederationSpec, executor: RayExecutor) -> list[TaskBlock]:
    weights = spec.build("lenet").state_dict()
    common = executor.put(trees.pack({"weights": dict(weights)}))
    numbers = range(CLIENTS)
    tasks = [ClientTask("stage", n, 0, "lenet", Stage(), token="a", cost=float(n)) for n in numbers]
    return [TaskBlock((TaskInput(task, common),)) for task in tasks]


@pytest.mark.slow
@pytest.mark.parametrize(("large", "most"), [(False, SCHEDULING_WINDOW), (True, 6)])
def test_replies_do_not_pile_up(
    digits: Settings, pools: Pools, large: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first clients have the least work and so would come last; the others' replies must not wait for them."""
    if large:  # as if a reply filled the memory: two waiting and one at each actor
        monkeypatch.setattr(scheduling, "MAX_BUFFERED_REPLY_BYTES", 1)
    spec = many_clients(digits)
    executor = pools[2].executor_for(spec)
    run_tasks = TaskScheduler(executor, blocks_of(spec, executor))
    held, clients = 0, []
    for result in run_tasks.results():
        clients.append(result.results[0].client_task.client)
        calls = [call for worker in executor.workers for call in worker.waiting]
        under_way = sum(len(call.positions) for call in calls)
        held = max(held, len(run_tasks._done) + under_way)
    assert clients == list(range(CLIENTS)) and held <= most


@pytest.mark.slow
def test_a_look_takes_all(digits: Settings, pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look goes over the calls of all actors, so that one for every result would be quadratic in them."""
    spec = many_clients(digits)
    executor = pools[2].executor_for(spec)
    scheduler = TaskScheduler(executor, blocks_of(spec, executor))
    actors = [worker.actor for worker in executor.workers]
    many = [PoolWorker(actors[i % 2], None, number=i, bundle=0) for i in range(CLIENTS // 2)]
    monkeypatch.setattr(executor, "workers", many)
    scheduler._fill_queues()
    calls = [call.outcome for worker in many for call in worker.waiting]
    assert len(calls) == CLIENTS
    assert len(ray.wait(calls, num_returns=CLIENTS, timeout=300)[0]) == CLIENTS
    looked, wait = list[int](), ray.wait

    def counted(references: Any, **options: Any) -> Any:
        looked.append(len(references))
        return wait(references, **options)

    monkeypatch.setattr(ray, "wait", counted)
    assert len(list(scheduler.results())) == CLIENTS and looked == [CLIENTS]


class Dying(Federation):
    """A federation in this process that is lost before some of its calls, as one on Ray is."""

    def __init__(self, spec: Any, steps: dict[int, int], restores: int = 0) -> None:
        super().__init__(spec, InlineExecutor(spec), print)
        self.steps, self.restores = steps, restores

    def step(self) -> RoundResult:
        upcoming = self.rounds_done + 1
        if self.steps.get(upcoming, 0) > 0:
            self.steps[upcoming] -= 1
            raise (ServerLostError("gone") if upcoming % 2 else messages.ObjectLostError("gone"))
        return super().step()

    def restore(self, folder: Path) -> int:
        if self.restores > 0:
            self.restores -= 1
            raise ServerLostError("gone")
        return super().restore(folder)


def lossy(digits: Any, name: str, steps: dict[int, int], **losses: int) -> tuple[str, Journal]:
    # No checkpoint is due before the last round: what is saved is saved because of the losses.
    spec = built(digits, rounds=6, checkpoint={"every": 100})
    journal = Journal(Path(name) / "journal.jsonl")
    recorder = RoundRecorder(journal, spec.config, name="", group="", metric="", say=print)
    return RoundLoop(spec, Dying(spec, dict(steps), **losses), recorder, Progress()).run(), journal


def test_a_run_outlives_losses_unless_it_gets_nowhere(tmp_cwd: Path, digits: Settings) -> None:
    whole, _ = lossy(digits, "whole", {})
    digest, journal = lossy(digits, "outlived", {2: 3, 3: 3, 4: 3, 6: 3}, restores=1)
    assert digest == whole and [event["round"] for event in journal.rounds()] == [1, 2, 3, 4, 5, 6]
    refused(lossy, digits, "lost", {3: 99})
    refused(lossy, digits, "nowhere", {}, restores=4)


def test_every_way_in_which_ray_ends_a_process_is_a_loss() -> None:
    memory = exceptions.OutOfMemoryError("1 worker(s) were killed\n...")
    actor = exceptions.ActorDiedError(), exceptions.ActorUnavailableError("", None)
    for error in (memory, *actor, exceptions.WorkerCrashedError(), exceptions.NodeDiedError("")):
        assert isinstance(error, losses.ACTOR_DIED_ERRORS)
    assert "memory monitor" in losses.last_line(memory)


def test_a_lack_of_memory_is_told_as_what_it_is() -> None:
    for allocate in (lambda: torch.empty(2**60), lambda: bytearray(2**62)):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            allocate()
        what = type(caught.value).__name__
        assert messages.error_summary(caught.value).startswith(f"out of memory ({what}")
    assert messages.error_summary(torch.OutOfMemoryError("CUDA")).startswith("out of memory (CUDA)")
    assert messages.error_summary(ValueError("a\nb")) == "ValueError: a"


def test_the_servers_sums_do_not_depend_on_the_environments_threads(digits: Settings) -> None:
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
    digits: Settings, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor watches the whole machine, so a test cannot have it strike; its error comes by a real reference."""
    spec = built(digits, faults={"attempts": 2})
    whole = inline_federation(spec, print)
    whole.step()
    executor = pools[1].executor_for(spec)

    @ray.remote(num_cpus=0, num_returns=3, max_retries=0)
    def end() -> None:
        raise ray.exceptions.OutOfMemoryError("1 worker(s) were killed due to low memory.")

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
    assert federation.sha256() == whole.sha256() and sum(left.values()) == 0
    assert pids(executor) != first
    left[0] = 2  # faults.attempts
    refused(federation.step)
