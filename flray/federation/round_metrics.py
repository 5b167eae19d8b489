"""Per-round metrics for tracking: those that clients report, and what machine and processes were busy with."""

from __future__ import annotations

import math
import time

import psutil

from flray.algorithms.server import Server
from flray.federation.memory import peak_bytes, resident_bytes
from flray.federation.messages import TaskResult

MAX_CLIENT_METRICS = 100
"""With more clients (or actors) than this only summaries over them are tracked per round."""

ADDITIVE_METRICS = ("steps", "samples")
"""Metrics that are summed over a round's stages and clients."""


class RoundMetrics:
    """The clients' metrics of one round.

    Parameters
    ----------
    server : Server
        For names and the cohort.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
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
        for name, value in result.outcome.metrics.items():
            values, client = self.metrics.setdefault(name, {}), result.client_task.client
            if name in ADDITIVE_METRICS:
                values[client] = values.get(client, 0.0) + value
            elif client not in values or not math.isnan(value):
                values[client] = value
        self.metrics.setdefault("seconds", {}).setdefault(result.client_task.client, 0.0)
        self.metrics["seconds"][result.client_task.client] += result.outcome.seconds
        self.resident[result.client_task.client] = float(result.outcome.usage.resident)

    def summary(self) -> dict[str, float]:
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
    """Measures from round to round; MLflow shows ``system/`` metrics on a page of their own."""

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
