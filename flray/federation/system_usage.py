"""What the machine and the processes of a run were busy with, under MLflow's names for such metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping

import psutil

from flray.federation.round_metrics import MAX_CLIENT_METRICS


class SystemUsage:
    """Measures from round to round; MLflow shows ``system/`` metrics on a page of their own."""

    def __init__(self) -> None:
        self._time, self._own = time.perf_counter(), time.process_time()
        self._actors: dict[int, float] = {}
        psutil.cpu_percent()  # from now on

    def since_last_round(self, actors: Mapping[int, float]) -> dict[str, float]:
        """Return percentages of one CPU for the processes, of all CPUs for the machine, and its memory.

        Parameters
        ----------
        actors : mapping of int to float
            CPU seconds that each client actor has used so far; none of this process.
        """
        now, own = time.perf_counter(), time.process_time()
        elapsed = max(now - self._time, 1e-9)
        memory = psutil.virtual_memory()
        usage = {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": memory.used / 1e6,
            "system/system_memory_usage_percentage": memory.percent,
            "system/server/cpu_utilization_percentage": 100 * (own - self._own) / elapsed,
        }
        for number, used in sorted(actors.items()):
            before = self._actors.get(number, 0.0)
            since = used if used < before else used - before  # less: a new process
            if number in self._actors and len(actors) <= MAX_CLIENT_METRICS:
                usage[f"system/actor/{number}/cpu_utilization_percentage"] = 100 * since / elapsed
        self._time, self._own, self._actors = now, own, {**self._actors, **actors}
        return usage
