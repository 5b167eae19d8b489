"""Per-round metrics that clients report for tracking."""

from __future__ import annotations

import math

from flray.algorithms.server import Server
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
