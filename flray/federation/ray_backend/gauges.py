"""A federation's progress in Ray's own metrics, which its dashboard, Prometheus and Grafana show."""

from __future__ import annotations

import contextlib

from ray.util.metrics import Gauge

from flray.federation.federation import RoundResult
from flray.federation.spec import FederationSpec

_TAGS = ("name", "algorithm", "data", "seed")
_GAUGES: dict[str, Gauge] = {}
_WORDS = {
    "flray_round": "rounds done",
    "flray_score": "the method's main test value in the last round that measured it",
    "flray_samples_per_second": "training samples per second of the last round",
}


def publish(spec: FederationSpec, result: RoundResult) -> None:
    """Set the gauges after a round; a Ray without an agent for metrics has none."""
    config = spec.config
    tags = {
        "name": config.name,
        "algorithm": config.algorithm.name,
        "data": config.data.name,
        "seed": str(config.seed),
    }
    metric = spec.primary_metric
    values = {
        "flray_round": float(result.number),
        "flray_score": result.metrics.get(metric),
        "flray_samples_per_second": result.metrics.get("time/samples_per_second"),
    }
    with contextlib.suppress(Exception):  # whatever becomes of them, training goes on
        for name, value in values.items():
            if value is not None:
                if name not in _GAUGES:
                    _GAUGES[name] = Gauge(name, _WORDS[name], tag_keys=_TAGS)
                _GAUGES[name].set(value, tags=tags)
