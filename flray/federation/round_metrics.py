"""Per-round metrics for tracking: the clients' reports, and the CPU and memory use of machine and processes."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import psutil

from flray.algorithms.server import Server
from flray.devices.process import peak_bytes, resident_bytes
from flray.federation.messages import TaskResult

MAX_CLIENT_METRICS = 100
"""With more clients (or actors) than this only summaries over them are tracked per round."""

ADDITIVE_METRICS = ("steps", "samples")
"""Metrics that are summed over a round's stages and clients."""


PHASES = ("ask", "send", "train", "receive", "aggregate", "evaluate")
"""What a round's seconds are spent on; nothing is asked unless a sampler does."""


@dataclass
class Cohort:
    """The clients of a round.

    Attributes
    ----------
    clients : list of int
        The participants, sorted.
    works : dict of int to float
        Each participant's share of the local work.
    asked : list of int
        The clients that only answered a query of the sampler.
    down, up : int
        Bytes of the queries. For participants the answer alone counts, because they get the model
        anyway.
    """

    clients: list[int]
    works: Mapping[int, float]
    asked: list[int] = field(default_factory=list)
    down: int = 0
    up: int = 0


class RoundMetrics:
    """Observes one round: its clients' metrics, the server's, its seconds and bytes.

    Parameters
    ----------
    server : Server
        For names and the cohort.

    Attributes
    ----------
    left_out, diverged : set of int
        Clients that failed, and those whose loss is not finite.
    seconds : dict of str to float
        By phase, each without those of the others within it.
    bytes : dict of str to int
        To and from the clients, ``down`` and ``up``.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._began = server, time.perf_counter()
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.bytes = {"up": 0, "down": 0}
        self._asked: dict[str, float] = {}
        self._further: dict[str, float] = {}
        self.metrics: dict[str, dict[int, float]] = {}
        self.left_out: set[int] = set()
        self.diverged: set[int] = set()
        self.resident: dict[int, float] = {}

    def add(self, result: TaskResult) -> None:
        """Add one client's outcome of a stage: steps and samples are summed, others are the last stage's."""
        if result.outcome.metrics.get("steps") and not math.isfinite(
            result.outcome.metrics["loss"]
        ):
            self.diverged.add(result.client_task.client)
        client = result.client_task.client
        for name, value in {**result.outcome.metrics, "seconds": result.outcome.seconds}.items():
            values = self.metrics.setdefault(name, {})
            if name in (*ADDITIVE_METRICS, "seconds"):
                values[client] = values.get(client, 0.0) + value
            elif client not in values or not math.isnan(value):
                values[client] = value
        self.resident[client] = float(result.outcome.usage.resident)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of a block to a phase, without those that it adds to others."""
        began, within = time.perf_counter(), sum(self.seconds.values())
        yield
        others = sum(self.seconds.values()) - within
        self.seconds[phase] += time.perf_counter() - began - others

    def add_cohort(self, cohort: Cohort) -> None:
        """Add what asking clients for the choice of a cohort took."""
        self.bytes = {"up": cohort.up, "down": cohort.down}
        if cohort.up:
            self._asked = {
                "cohort/asked": float(len(cohort.asked)),
                "bytes/asked": float(cohort.down + cohort.up),
            }
        else:
            del self.seconds["ask"]

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add the server's own metrics, or those of an evaluation."""
        self._further |= {name: float(value) for name, value in metrics.items()}

    def summary(self) -> dict[str, float]:
        """Return everything that is tracked of the round, which ends with this."""
        metrics = self._of_clients() | self._asked | self._further
        metrics |= {f"time/{name}": seconds for name, seconds in self.seconds.items()}
        metrics["time/round"] = time.perf_counter() - self._began
        if metrics.get("train/samples") and self.seconds["train"]:
            metrics["time/samples_per_second"] = metrics["train/samples"] / self.seconds["train"]
        return metrics | {f"bytes/{name}": float(count) for name, count in self.bytes.items()}

    def _of_clients(self) -> dict[str, float]:
        """Return means over the cohort and single clients' values."""
        server = self._server
        summary = {
            "cohort/size": float(len(server.cohort)),
            "cohort/left_out": float(len(self.left_out)),
        }
        if self.resident:
            summary["memory/client"] = max(self.resident.values())
        for name, values in sorted(self.metrics.items()):
            if name in ADDITIVE_METRICS:
                summary[f"train/{name}"] = float(sum(values.values()))
                continue
            known = {c: v for c, v in sorted(values.items()) if not math.isnan(v)}
            if known:
                total = sum(server.clients[c].num_samples for c in known)
                summary[f"train/{name}"] = (
                    sum(v * server.clients[c].num_samples for c, v in known.items()) / total
                )
            if len(server.clients) <= MAX_CLIENT_METRICS and name != "seconds":
                summary.update(
                    {f"train/{name}/client/{server.clients[c].name}": v for c, v in known.items()}
                )
        return summary


class SystemUsage:
    """Measures CPU and memory from round to round; MLflow shows ``system/`` metrics on a separate page."""

    def __init__(self) -> None:
        self._time, self._own = time.perf_counter(), time.process_time()
        self._before: dict[int, float] = {}
        self._cpu: dict[int, float] = {}
        self._peaks: dict[str, dict[int, float]] = {"actor": {}, "gpu": {}}
        psutil.cpu_percent()  # from now on

    def add(self, result: TaskResult) -> None:
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
        memory = psutil.virtual_memory()
        usage = {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": memory.used / 1e6,
            "system/system_memory_usage_percentage": memory.percent,
            "system/server/cpu_utilization_percentage": 100 * (own - self._own) / elapsed,
            "memory/server": float(resident_bytes()),
            "memory/peak/server": float(peak_bytes()),
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
