"""Early stopping: a federation ends once a metric has not got better for long, or is good enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flray.config.experiment import Stop
from flray.metrics.direction import lower_is_better


class EarlyStop:
    """Decides after each evaluated round; what it knows is part of a checkpoint, so a resume decides alike.

    Parameters
    ----------
    settings : Stop
        When.
    metric : str
        By what.

    Attributes
    ----------
    reason : str
        Why the federation ends; empty while it goes on.
    """

    def __init__(self, settings: Stop, metric: str) -> None:
        self._settings, self._metric = settings, metric
        self._sign = -1.0 if lower_is_better(metric) else 1.0
        self._best: float | None = None
        self._waited = 0
        self.reason = ""

    def add(self, metrics: Mapping[str, float]) -> None:
        """Take note of a round; one without an evaluation changes nothing."""
        value = metrics.get(self._metric, math.nan)
        if math.isnan(value) or self.reason:
            return
        settings, gain = self._settings, self._settings.min_delta
        if self._best is None or self._sign * (value - self._best) > gain:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if settings.target is not None and self._sign * (value - settings.target) >= 0:
            self.reason = f"{self._metric} is {value:.4g}, as good as stop.target"
        elif settings.patience is not None and self._waited >= settings.patience:
            self.reason = (
                f"{self._metric} was not above {self._best:.4g}"
                if self._sign > 0
                else f"{self._metric} was not below {self._best:.4g}"
            ) + f" in {self._waited} evaluations"

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, as a plain tree."""
        return {"best": self._best, "waited": self._waited, "reason": self.reason}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._best, self._waited = state.get("best"), int(state.get("waited", 0))
        self.reason = str(state.get("reason", ""))
