"""Client tasks, their results, replies and failures, and the executors that run them, as a protocol."""

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from numpy.typing import NDArray

from flray import trees
from flray.algorithms.types import Stage
from flray.devices import GpuIdentity
from flray.errors import FlrayError, MethodError, RunFailedError, memory_is_short
from flray.trees import FlatTree, Packed

# The second has a name of its own since torch 2.8; before, it is any RuntimeError.
MACHINE_ERRORS: tuple[type[Exception], ...] = (
    torch.OutOfMemoryError,
    getattr(torch, "AcceleratorError", torch.OutOfMemoryError),
)
"""Errors of a device, and not of the client whose task met them; after the second none of its tasks succeeds."""


@dataclass(frozen=True)
class Failure:
    """A client task that failed.

    Attributes
    ----------
    what : str
        ``ValueError: text``, or why no result arrived.
    kind : {"error", "timeout"}
        Its code raised or its process died repeatedly, or no result arrived in time.
    where : str
        File and line; empty where unknown.
    trace : str
        The whole traceback.
    """

    what: str
    kind: Literal["error", "timeout"] = "error"
    where: str = ""
    trace: str = ""

    def __str__(self) -> str:
        return f"{self.what} at {self.where}" if self.where else self.what


class ClientError(MethodError):
    """A client's own code raised; the first line names client, round, exception, file and line."""


class NobodyAnsweredError(RunFailedError):
    """All clients of a round failed or timed out."""


class ServerLostError(RunFailedError):
    """The server actor died, or could not be started."""


class ObjectLostError(RunFailedError):
    """A client's state or reply was lost with its node; resuming from a checkpoint recovers it."""


def allocation(error: torch.OutOfMemoryError) -> str:
    """Return the beginning of an error of a GPU: memory ran out, and the size of the request."""
    return ". ".join(str(error).splitlines()[0].split(". ")[:2])


def error_summary(error: BaseException) -> str:
    """Return an error's type and first line, and advice if memory ran out."""
    what = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"out of memory ({allocation(error)}); a smaller local.batch_size needs less, and with a larger "
            "resources.gpus_per_actor fewer share a GPU"
        )
    if memory_is_short(error):
        return f"out of memory ({what}); a smaller local.batch_size or fewer resources.actors need less"
    return what


def describe_failure(error: BaseException) -> Failure:
    """Return an error as a failure, located at the innermost line outside installed libraries.

    If memory ran out, the line that asked for it does not help, so the failure has no traceback. Nor has
    an error of flray's own, which names its remedy, unless a method's code is at fault.
    """
    if isinstance(error, FlrayError) and not isinstance(error, MethodError):
        return Failure(str(error))
    short = isinstance(error, torch.OutOfMemoryError) or memory_is_short(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f
        for f in frames
        if "site-packages" not in f.filename
        and f.name != "__setattr__"  # refuses what its caller does
        and Path(f.filename).name != "client_runner.py"
        and not f.filename.startswith(sys.base_prefix)
    ]
    frame = (own or list(frames))[-1] if frames else None
    return Failure(
        what=error_summary(error),
        where=f"{frame.filename}:{frame.lineno}" if frame else "",
        trace="" if short else "".join(traceback.format_exception(error)),
    )


Kind = Literal["stage", "global", "personal", "unseen", "ask", "diagnostics", "sum"]
Ref = Any
"""A packed tree, or an executor's reference to one."""


class ClientTask(NamedTuple):
    """A client task; with its inputs it determines the result bit for bit.

    Attributes
    ----------
    kind : {"stage", "global", "personal", "unseen", "ask", "diagnostics", "sum"}
        ``stage``: a stage of a round. ``global``: an evaluation of the global model on one block of
        the common test set, or on a client's part with the client's statistics. ``personal``: of a
        client's personal model. ``unseen``: of the global model on an unseen client. ``ask``: of the
        model that a client would train, on its training samples. ``diagnostics``: those of a client.
        ``sum``: the weighted sum of an entry of several replies.
    client : int
        Index of the client, in `FederatedData.everyone`; -1 for the global model and for a sum.
    token : str
        Names the common message; a process unpacks it once for all tasks with the same token.
    cost : float
        Expected length in any unit, for scheduling only.
    """

    kind: Kind
    client: int
    round: int
    architecture: str
    stage: Stage = Stage()
    work: float = 1.0
    block: int = 0
    token: str = ""
    cost: float = 1.0


class ProcessUsage(NamedTuple):
    """The resources that a task's process had used when the task ended.

    Attributes
    ----------
    resident, peak : int
        Bytes of its memory, at the end and at most.
    gpu_peak : int
        Peak bytes of its GPU memory; 0 without a GPU.
    cpu : float
        Seconds of CPU.
    """

    resident: int = 0
    peak: int = 0
    gpu_peak: int = 0
    cpu: float = 0.0


@dataclass(frozen=True)
class TaskOutcome:
    """The small part of a task's result.

    Attributes
    ----------
    small : Packed or None
        The reply's small entries.
    entries : tuple of str
        Names of the entries in the large part.
    stateful : bool
        Whether the client has a state.
    predictions : dict of str to dict of str to ndarray
        For an evaluation: per test set, per-sample arrays.
    seconds : float
        Duration of the task in its process.
    up : int
        Bytes of the reply's tensors.
    usage : ProcessUsage
        Its process so far; nothing where the task failed.
    """

    failure: Failure | None = None
    small: Packed | None = None
    entries: tuple[str, ...] = ()
    stateful: bool = False
    predictions: dict[str, dict[str, NDArray[Any]]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    up: int = 0
    usage: ProcessUsage = field(default_factory=ProcessUsage)


class TaskInput(NamedTuple):
    """A client task with its inputs.

    Attributes
    ----------
    entry, parts : str, tuple of (str, float, Ref)
        Of a ``sum``: the name of the entry, and in client order architecture, weight, and a packed
        tree that has the entry.
    """

    client_task: ClientTask
    common: Ref = None
    private: Packed | None = None
    state: Ref = None
    entry: str = ""
    parts: tuple[tuple[str, float, Ref], ...] = ()

    def with_references(self, change: Callable[[Ref], Ref]) -> "TaskInput":
        """Return the task with each of its references changed."""
        return self._replace(
            common=change(self.common),
            state=change(self.state),
            parts=tuple((key, weight, change(part)) for key, weight, part in self.parts),
        )


class Message(NamedTuple):
    """A message to all clients.

    Attributes
    ----------
    stage : Stage
        The stage that it is sent for.
    token : str
        The name of the message; see `ClientTask`.
    handles : dict of str to Ref
        The message of each architecture, put once.
    sizes : dict of str to int
        Their bytes.
    """

    stage: Stage
    token: str
    handles: dict[str, Ref]
    sizes: dict[str, int]

    def bytes_of(self, job: TaskInput) -> int:
        """Return the bytes that a task's client is sent."""
        private = job.private.nbytes if job.private is not None else 0
        return self.sizes[job.client_task.architecture] + private


class TaskBlock(NamedTuple):
    """Tasks that one process runs in sequence: a single one, or those of a stage whose weights it adds up.

    Attributes
    ----------
    jobs : tuple of TaskInput
        In client order.
    summed : bool
        Whether the process returns the sum of their weights, and not the reply of the only task.
    """

    jobs: tuple[TaskInput, ...]
    summed: bool = False

    @property
    def cost(self) -> float:
        """Expected length, for scheduling."""
        return sum(job.client_task.cost for job in self.jobs)

    def with_references(self, change: Callable[[Ref], Ref]) -> "TaskBlock":
        """Return the block with each of its tasks' references changed."""
        return self._replace(jobs=tuple(job.with_references(change) for job in self.jobs))


class TaskResult(NamedTuple):
    """A client task with its outputs.

    Attributes
    ----------
    actor : int
        Number of the executor's process that ran it; a replacement keeps the number.
    """

    client_task: ClientTask
    outcome: TaskOutcome
    bulk: Ref = None
    state: Ref = None
    actor: int = 0


class TaskBlockResult(NamedTuple):
    """A block with its outputs.

    Attributes
    ----------
    results : tuple of TaskResult
        In client order; of a summed block without the replies, and where the first failure ends the
        federation, with none after it.
    sums : Ref
        Of a summed block the tree of `flray.algorithms.common.aggregation.BlockSum`, packed; None
        if no client sent weights.
    up : int
        Bytes of its tensors, which reach the server.
    """

    results: tuple[TaskResult, ...]
    sums: Ref = None
    up: int = 0

    @classmethod
    def of(
        cls,
        block: TaskBlock,
        outcomes: Sequence[TaskOutcome],
        bulk: Ref = None,
        states: Sequence[Ref] = (None,),
        *,
        up: int = 0,
        actor: int = 0,
    ) -> "TaskBlockResult":
        """Return a block's result from the outcomes of its process; `up` is the size of its sums."""
        results = tuple(
            TaskResult(
                job.client_task,
                done,
                bulk if done.entries else None,
                state if done.stateful else None,
                actor,
            )
            for job, done, state in zip(block.jobs, outcomes, states, strict=False)
        )
        return cls(results, bulk if block.summed else None, up or sum(one.up for one in outcomes))

    @classmethod
    def failed(cls, block: TaskBlock, failure: Failure) -> "TaskBlockResult":
        """Return the result of a failed block."""
        count = len(block.jobs)
        return cls.of(block, [TaskOutcome(failure)] * count, states=[None] * count)

    @property
    def references(self) -> tuple[Ref, ...]:
        """The executor's references to the outputs that it holds."""
        return self.sums, *(ref for one in self.results for ref in (one.bulk, one.state))


class Executor(Protocol):
    """Runs client tasks. Results come in the tasks' order, each as soon as it and all before it are done."""

    def put(self, packed: Packed) -> Ref:
        """Make a packed tree available to all processes. Default: the tree itself."""
        return packed

    def fetch(self, handle: Ref) -> Packed:
        """Return a packed tree. Default: what it was given."""
        packed: Packed = handle
        return packed

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Run all blocks, each in one process.

        Those unfinished after `timeout` seconds fail. If none finishes for `idle` seconds, those
        that are running fail, and those queued behind them are run.
        """

    def run_tasks(
        self, jobs: Sequence[TaskInput], idle: float | None = None
    ) -> Iterator[TaskResult]:
        """Run single tasks; see `run_blocks`."""
        for block in self.run_blocks([TaskBlock((job,)) for job in jobs], idle=idle):
            yield block.results[0]

    def watch_over(self, states: Callable[[], Iterable[Ref]], warn: Callable[[str], None]) -> None:
        """Copy client states off a node that is about to be drained. Default: nothing, all is in this process.

        Parameters
        ----------
        states : callable
            Returns the clients' states as they are.
        warn : callable
            Called with a line when it has happened.
        """
        return

    def gpus(self) -> list[GpuIdentity]:
        """Return the kinds of GPU that tasks are computed on."""

    def close(self) -> None:
        """Release all resources."""


class ClientReply:
    """A client's reply as aggregation sees it; see `flray.algorithms.types.Reply`."""

    def __init__(
        self, result: TaskResult, num_samples: int, fetch: Callable[[Ref], Packed]
    ) -> None:
        self.client, self.architecture = result.client_task.client, result.client_task.architecture
        self.num_samples = num_samples
        self._small = trees.unpack(result.outcome.small) if result.outcome.small is not None else {}
        self._large = frozenset(result.outcome.entries)
        self._bulk, self._fetch = result.bulk, fetch

    def __getitem__(self, entry: str) -> Any:
        return (
            trees.unpack(self._fetch(self._bulk))[entry]
            if entry in self._large
            else self._small[entry]
        )

    def get(self, entry: str, default: Any = None) -> Any:
        """Return an entry, or `default` where the client sent none."""
        return self[entry] if entry in self._large or entry in self._small else default

    def packed(self, entry: str) -> Ref | None:
        """Return a packed tree that has the entry, or the executor's reference to one; None without the entry."""
        if entry in self._large:
            return self._bulk
        return trees.pack({entry: self._small[entry]}) if self._small.get(entry) else None

    def flat(self, entry: str) -> FlatTree | None:
        """Return a large entry as one tensor of all its values; None for others."""
        return trees.flat_entry(self._fetch(self._bulk), entry) if entry in self._large else None


MOST_SMALL_BYTES = 65536
"""Bytes of an entry of a reply that is sent with the outcome, and not by reference."""


def split_small(tree: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a reply into entries sent with the outcome and entries sent by reference."""
    sizes = {name: trees.tensor_bytes({name: value}) for name, value in tree.items()}
    small = {name: value for name, value in tree.items() if sizes[name] <= MOST_SMALL_BYTES}
    return small, {name: value for name, value in tree.items() if name not in small}
