"""What the machine and the processes of a run were busy with, under MLflow's names for such metrics."""

from __future__ import annotations

import time

import psutil

from flray.federation.memory import peak_bytes, resident_bytes
from flray.federation.messages import TaskResult
from flray.federation.round_metrics import MAX_CLIENT_METRICS


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
