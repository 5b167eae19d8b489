"""The state of a federation between rounds: models, the method's state, the clients' states."""

import contextlib
import math
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import psutil
import torch

from flray import registry, trees
from flray.algorithms.base import ClientInfo, Server, Stage
from flray.algorithms.common.samples import ResidentModel
from flray.config.experiment import Stop
from flray.devices import READ_SECONDS, keep_freed_memory, make_repeatable, memory_lately
from flray.errors import FlrayError, MethodError, disk_is_full
from flray.federation import FederationSpec, messages
from flray.federation.unused import unused_line
from flray.federation.worker.resources import WorkerResources, default_device, thread_count
from flray.metrics import AUTO, VALIDATION, lower_is_better, score_metric
from flray.trees import Packed

MAX_CLIENT_METRICS = 100
"""With more clients (or actors) than this only summaries over them are tracked per round."""


Item = TypeVar("Item")


def each_within(
    context: Callable[[], contextlib.AbstractContextManager[None]], items: Iterable[Item]
) -> Iterator[Item]:
    """Yield items; each is computed or awaited in a new context."""
    left = iter(items)
    while True:
        with context():
            try:
                item = next(left)
            except StopIteration:
                return
        yield item


class SystemUsage:
    """Measures CPU and memory from round to round; MLflow shows ``system/`` metrics on a separate page."""

    def __init__(self) -> None:
        self._time, self._own = time.perf_counter(), time.process_time()
        self._before: dict[int, float] = {}
        self._cpu: dict[int, float] = {}
        self._peaks: dict[str, dict[int, float]] = {"actor": {}, "gpu": {}}
        psutil.cpu_percent()  # from now on
        self._next_reading, self._machine = 0.0, dict[str, float]()

    def add(self, result: messages.TaskResult) -> None:
        """Add what the process of a task, training or evaluation, had used when it was done."""
        actor, usage = result.actor, result.outcome.usage
        if usage.cpu:
            self._cpu[actor] = max(usage.cpu, self._cpu.get(actor, 0.0))
        for peaks, peak in (
            (self._peaks["actor"], usage.peak),
            (self._peaks["gpu"], usage.gpu_peak),
        ):
            if peak:
                peaks[actor] = max(float(peak), peaks.get(actor, 0.0))

    def since_last_round(self, *, inline: bool) -> dict[str, float]:
        """Return percentages of one CPU for the processes, of all CPUs for the machine, and their memory.

        Parameters
        ----------
        inline : bool
            Whether the tasks were run by this process, whose CPU is not counted twice.
        """
        now, own = time.perf_counter(), time.process_time()
        elapsed = max(now - self._time, 1e-9)
        if now >= self._next_reading:
            memory, self._next_reading = psutil.virtual_memory(), now + READ_SECONDS
            self._machine = {
                "system/cpu_utilization_percentage": psutil.cpu_percent(),
                "system/system_memory_usage_megabytes": memory.used / 1e6,
                "system/system_memory_usage_percentage": memory.percent,
            }
        resident, peak = memory_lately()
        usage = {
            **self._machine,
            "system/server/cpu_utilization_percentage": 100 * (own - self._own) / elapsed,
            "memory/server": float(resident),
            "memory/peak/server": float(peak),
        }
        for kind, peaks in self._peaks.items():
            if peaks:
                usage[f"memory/peak/{kind}"] = max(peaks.values())
            if len(peaks) <= MAX_CLIENT_METRICS:
                usage.update({f"memory/peak/{kind}/{n}": peak for n, peak in sorted(peaks.items())})
            peaks.clear()
        for number, used in sorted(self._cpu.items()):
            before = self._before.get(number, 0.0)
            since = used if used < before else used - before  # less: a new process
            if not inline and number in self._before and len(self._cpu) <= MAX_CLIENT_METRICS:
                usage[f"system/actor/{number}/cpu_utilization_percentage"] = 100 * since / elapsed
        self._time, self._own = now, own
        self._before.update(self._cpu)
        self._cpu = {}
        return usage


class EarlyStop:
    """Decides after each evaluated round; checkpoints hold its state, so that a resume decides alike.

    Parameters
    ----------
    settings : Stop
        The conditions of the stop.
    metric : str
        The metric that decides.

    Attributes
    ----------
    metric : str
        The same.
    reason : str
        The reason for the end; empty while the federation continues.
    """

    def __init__(self, settings: Stop, metric: str) -> None:
        self._settings, self.metric = settings, metric
        self._sign = -1.0 if lower_is_better(metric) else 1.0
        self._best: float | None = None
        self._waited = 0
        self.reason = ""

    def add(self, metrics: Mapping[str, float]) -> None:
        """Take note of a round; one without an evaluation changes nothing."""
        value = metrics.get(self.metric, math.nan)
        if math.isnan(value) or self.reason:
            return
        settings, gain = self._settings, self._settings.min_delta
        if self._best is None or self._sign * (value - self._best) > gain:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if settings.target is not None and self._sign * (value - settings.target) >= 0:
            self.reason = f"{self.metric} is {value:.4g}, as good as stop.target"
        elif settings.patience is not None and self._waited >= settings.patience:
            side = "above" if self._sign > 0 else "below"
            found = f"{self.metric} was not {side} {self._best:.4g}"
            self.reason = f"{found} in {self._waited} evaluations"

    def state(self) -> dict[str, Any]:
        """Return the state that `restore` needs, as a plain tree."""
        return {"best": self._best, "waited": self._waited, "reason": self.reason}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state`."""
        self._best, self._waited = state.get("best"), int(state.get("waited", 0))
        self.reason = str(state.get("reason", ""))


Notify = Callable[[str], None]
"""A callback for one line that the user should see."""


class StoredFile(NamedTuple):
    """A file of clients' states in a checkpoint: its name, its SHA-256, and how many states are in it."""

    name: str
    digest: str
    states: int


class StoredState(NamedTuple):
    """The place of a client's state in the last checkpoint, and the round that last replaced it."""

    file: StoredFile
    version: int


class FederationState:
    """A federation's state between rounds, and the executor of its client tasks.

    Parameters
    ----------
    spec : FederationSpec
        The resolved experiment.
    executor : Executor
        Runs the clients' tasks.
    warn : callable
        Called with one line for events such as a client left out.
    device : torch.device, optional
        Where the server trains, if the method does; default: the GPU that this process has, if the
        experiment uses one.
    warned : iterable of str
        Subjects of warnings that were shown before.

    Attributes
    ----------
    server : Server
        Models, the method's state, clients.
    number : int
        The round that the method's hooks belong to, from 1: the one under way, or the last.
    states : list of Ref
        The clients' states, by client; None before the first.
    versions : list of int
        The round that last replaced each client's state.
    tested : dict of int to (int, mapping)
        The predictions of personal models that depend on a client's state alone, and its version.
    stored : dict of int to StoredState
        The clients' states of the last checkpoint that was written or restored.
    usage : SystemUsage
        The resources that the processes used in the round so far.
    sampler : callable
        Chooses the clients of a round.
    sampler_state : dict
        The sampler's memory.
    """

    def __init__(
        self,
        spec: FederationSpec,
        executor: messages.Executor,
        warn: Notify = print,
        device: torch.device | None = None,
        warned: Iterable[str] = (),
    ) -> None:
        keep_freed_memory()
        spec.register_components()
        self.spec, self.executor, self.warn = spec, executor, warn
        self.sampler = registry.samplers.get(spec.config.participation.sampler.name)
        self._warned, self.number = set(warned), 1  # a reset begins no new run
        self._device = device or default_device(spec)
        make_repeatable(self._device, **spec.repeatable)
        self.reset()
        executor.watch_over(lambda: self.states, warn)

    def reset(self) -> None:
        """Reset to the state before round 1."""
        config, algorithm = self.spec.config, self.spec.algorithm
        residents = {
            key: ResidentModel(
                self.spec.build(key), algorithm.shared, config.aggregation.buffers == "local"
            )
            for key in self.spec.architectures
        }
        for key, resident in residents.items():
            if "batch_norm" in algorithm.shared and not resident.batch_norm:
                line = f"{key} has no batch norm: {config.algorithm.name} keeps nothing of it at the clients"
                self.warn_once(line, line)
        with self.hook("unused"):
            if line := unused_line(self.spec):
                self.warn_once("unused", line)
        counts = (
            torch.from_numpy(self.spec.data.class_counts())
            if self.spec.data.has_classes
            else torch.zeros(len(self.spec.data.clients), 0, dtype=torch.int64)
        )
        self.server = Server(
            config=config,
            clients=tuple(
                ClientInfo(c.name, c.domain, len(c.train), counts[i], self.spec.architecture_of[i])
                for i, c in enumerate(self.spec.data.clients)
            ),
            models={key: resident.initial for key, resident in residents.items()},
            shared_names={key: resident.shared for key, resident in residents.items()},
            parameter_names={
                key: frozenset(resident.parameters) for key, resident in residents.items()
            },
            num_classes=self.spec.data.num_classes,
            num_public=len(self.spec.data.public) if self.spec.data.public is not None else 0,
            weighting=self.spec.weighting,
            notify=self.warn,
            warned=self._warned,
        )
        # The server's sums too: their last bits must not depend on OMP_NUM_THREADS of the user's
        # environment.
        torch.set_num_threads(thread_count(config))
        if algorithm.trains_at_server:
            resources = WorkerResources(self.spec, self._device)
            self.server.model_for, self.server.public = resources.resident, resources.public
        with self.hook("server_setup"):
            algorithm.server_setup(self.server)
        self.usage = SystemUsage()
        self.sampler_state: dict[str, Any] = {}
        self.early_stop = self._early_stop()
        self.states: list[messages.Ref] = [None] * len(self.spec.data.clients)
        self.versions: list[int] = [0] * len(self.spec.data.clients)
        self.stored: dict[int, StoredState] = {}
        self.tested: dict[int, tuple[int, Any]] = {}

    def warn_once(self, subject: str, line: str) -> None:
        """Warn of a subject, unless this federation did before."""
        if subject not in self._warned:
            self._warned.add(subject)
            self.warn(line)

    def _early_stop(self) -> EarlyStop | None:
        stop = self.spec.config.stop
        if stop is None:
            return None
        held = any(len(client.val) for client in self.spec.data.clients)
        chosen = VALIDATION if stop.metric == AUTO and held else stop.metric
        return EarlyStop(stop, score_metric(chosen, self.spec.primary_metric))

    @property
    def rounds_done(self) -> int:
        """Number of finished rounds."""
        return self.server.round

    def has_ended(self) -> bool:
        """Return whether no round remains: all were run, or early stopping ended the federation."""
        stopped = self.early_stop is not None and bool(self.early_stop.reason)
        return stopped or self.server.round >= self.spec.config.rounds

    def message(self, stage: Stage) -> messages.Message:
        """Return the common message of a stage."""
        with self.hook("send"):
            extra = self.spec.algorithm.send(self.server, stage)
        shared = {
            key: {n: value for n, value in weights.items() if n in self.server.shared_names[key]}
            for key, weights in self.server.models.items()
        }
        return self._put(
            stage, {key: {**({"weights": w} if w else {}), **extra} for key, w in shared.items()}
        )

    def whole_models(self, stage: Stage) -> messages.Message:
        """Return the global models as a message, for tests of them."""
        return self._put(stage, {key: {"weights": w} for key, w in self.server.models.items()})

    def _put(self, stage: Stage, contents: Mapping[str, Mapping[str, Any]]) -> messages.Message:
        message = messages.Message(stage, uuid.uuid4().hex, {}, {})
        for key, content in contents.items():
            packed = trees.pack(content)
            message.handles[key], message.sizes[key] = self.executor.put(packed), packed.nbytes
        return message

    def sum_task(
        self, entry: str, parts: Sequence[tuple[str, float, messages.Ref]]
    ) -> messages.TaskInput:
        """Return the task of adding up an entry of replies; see `flray.federation.messages.TaskInput`."""
        task = messages.ClientTask("sum", -1, self.server.round, "", cost=float(len(parts)))
        return messages.TaskInput(task, entry=entry, parts=tuple(parts))

    def model_tasks(self) -> list[messages.TaskInput]:
        """Return the tasks that evaluate the global models: of each architecture, one per chunk of samples."""
        models = self.whole_models(Stage())
        alike = messages.ClientTask("global", -1, self.server.round, "", token=models.token)
        return [
            messages.TaskInput(
                alike._replace(architecture=key, stage=Stage(f"evaluate {key}"), block=block),
                models.handles[key],
            )
            for key in sorted(models.handles)
            for block in range(len(self.spec.evaluated))
        ]

    def tasks_for(
        self,
        kind: messages.Kind,
        clients: Iterable[int],
        message: messages.Message,
        works: Mapping[int, float] = MappingProxyType({}),
    ) -> list[messages.TaskInput]:
        """Return a task with its inputs for each of some clients; unseen ones get the message alone.

        Parameters
        ----------
        kind : str
            As in `flray.federation.messages.ClientTask`.
        clients : iterable of int
            Their numbers.
        message : Message
            The common message.
        works : mapping of int to float
            Each one's share of the local work; default: all of it.
        """
        data, tasks = self.spec.data, []
        everything = len(data.test) if self.spec.config.evaluation.others else None
        with self.hook("send_private"):
            for client in clients:
                rows, work = data.everyone[client], works.get(client, 1.0)
                private, state = None, None
                if client < len(self.states):
                    architecture = self.server.clients[client].architecture
                    extra = self.spec.algorithm.send_private(self.server, client, message.stage)
                    private, state = trees.pack(extra) if extra else None, self.states[client]
                else:
                    (architecture,) = message.handles
                trains = kind in ("stage", "ask")
                cost = len(rows.train) * work if trains else float(everything or len(rows.test))
                task = messages.ClientTask(
                    kind,
                    client,
                    self.server.round,
                    architecture,
                    message.stage,
                    work,
                    token=message.token,
                    cost=cost,
                )
                common = message.handles[architecture]
                tasks.append(messages.TaskInput(task, common, private, state))
        return tasks

    def sha256(self) -> str:
        """Return one digest of the learned state: global models, server and client states."""
        states = (
            {str(client): trees.unpack(self.executor.fetch(handle))}
            for client, handle in enumerate(self.states)
            if handle is not None
        )
        return trees.sha256(self.server.models, self.server.state, *states)

    def snapshot(self) -> dict[str, Any]:
        """Return the server's side as a tree (client states are saved apart, see `flray.federation.checkpoint`)."""
        tree = {
            "models": self.server.models,
            "state": self.server.state,
            "round": self.server.round,
            **({"sampler": self.sampler_state} if self.sampler_state else {}),
            **({"stop": self.early_stop.state()} if self.early_stop is not None else {}),
        }
        sampler = f"sampler {self.spec.config.participation.sampler.name}"
        for state, *where in (
            (self.server.state, "server.state"),
            (self.sampler_state, "sampling.state", sampler),
        ):
            with self.hook(*where):
                dict(trees.flatten(state))  # it may be of any type
        return tree

    def load_snapshot(
        self, tree: Mapping[str, Any], states: Mapping[int, Packed], versions: Sequence[int]
    ) -> None:
        """Restore a snapshot and its client states."""
        copied = trees.clone(tree)
        self.server.models, self.server.round = copied["models"], copied["round"]
        self.number = max(self.server.round, 1)
        self.server.state = copied["state"]
        self.sampler_state = copied.get("sampler", {})
        if self.early_stop is not None:
            self.early_stop.restore(copied.get("stop", {}))
        self.states = [
            self.executor.put(states[i]) if i in states else None for i in range(len(self.states))
        ]
        self.versions, self.tested = list(versions), {}

    @contextlib.contextmanager
    def hook(self, name: str, owner: str = "") -> Iterator[None]:
        """Run a hook at the server.

        Parameters
        ----------
        name : str
            The hook's name.
        owner : str
            Whose hook it is; default: the method's.

        Raises
        ------
        MethodError
            The first line names owner, round, hook, exception, file and line; the traceback follows.
            An error of the machine is its cause.
        """
        try:
            yield
        except FlrayError:
            raise
        except Exception as error:
            ray = sys.modules.get("ray")
            if disk_is_full(error) or (ray and isinstance(error, ray.exceptions.RayError)):
                raise  # while the hook waited for client replies
            failure = messages.describe_failure(error)
            names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            # The default of `aggregate` calls `apply`, which the method may have as its only hook.
            if name == "aggregate" and ("aggregate", "apply") in pairwise(names):
                name = "apply"
            line = f"{owner or self.spec.config.algorithm.name} at the server, round {self.number}, {name}: {failure}"
            machine = error if isinstance(error, messages.MACHINE_ERRORS) else None
            raise MethodError(f"{line}\n{failure.trace}".rstrip()) from machine

    def leave_out(self, who: str, failure: messages.Failure, *, needed: bool = False) -> None:
        """Continue without a failed client; raise a `ClientError` if it is needed, or `faults` say so."""
        skipped = self.spec.config.faults.on_client_error == "skip" or failure.kind == "timeout"
        if needed or not skipped:
            raise messages.ClientError(f"{who}: {failure}\n{failure.trace}".rstrip())
        self.warn(f"left out: {who}: {failure}")
