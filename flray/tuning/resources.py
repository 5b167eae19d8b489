"""Check every setting of a sweep against its data, and divide the machine among the trials."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from flray import registry
from flray.config.experiment import Experiment
from flray.devices.process import GpuIdentity, distinct, gpu_identity
from flray.errors import ConfigError, ConfigErrors
from flray.federation.building import build_spec, dataset_for
from flray.federation.evaluation import check_metric
from flray.federation.ray_backend.nodes import ship_user_modules
from flray.federation.ray_backend.placement import Plan, PoolPlanner, uses_ray
from flray.federation.spec import FederationSpec, SharedDataset
from flray.metrics.summary import AUTO, score_metric
from flray.tuning.space import TrialSpec

Bundles = list[dict[str, float]]
DRIVER_SECONDS = 0.015
"""What Tune and the recording of rounds take of the driver's one thread for a step."""


class TrialResources:
    """Loads each data set once and plans each trial.

    Parameters
    ----------
    available : mapping
        ``"CPU"`` and ``"GPU"`` of the machine or cluster.
    trials : int
        Trials in all.
    concurrency : int or "auto"
        Trials at once.
    metrics : sequence of str
        What the sweep chooses by and reports; auto: each method's primary metric.
    """

    def __init__(
        self,
        available: Mapping[str, float],
        trials: int,
        concurrency: int | str,
        metrics: Sequence[str] = (AUTO,),
    ) -> None:
        self._metrics = [metric for metric in metrics if metric != AUTO]
        self._available = dict(available)
        self._slots = trials if concurrency == "auto" else min(int(concurrency), trials)
        self._data: dict[str, SharedDataset] = {}
        self._references: dict[str, Any] = {}
        self._bundles: dict[str, Bundles] = {}

    def check(self, points: Iterable[TrialSpec]) -> None:
        """Reject settings that do not fit their data or the machine.

        Raises
        ------
        ConfigErrors
            One line per setting.
        """
        errors: dict[str, ConfigError] = {}
        for point in points:
            try:
                self.bundles(point.experiment)
            except ConfigError as error:
                errors[str(error)] = error
        if errors:
            raise ConfigErrors(list(errors.values()))

    def bundles(self, experiment: Experiment) -> Bundles:
        """Return a trial's resource bundles: Tune's head bundle, then one bundle per client actor.

        A trial with one actor runs its clients in the head bundle, unless a client may have
        to be stopped (`faults.round_timeout`) or the user asked for the actor.

        Raises
        ------
        FlrayError
            If the experiment cannot be run.
        """
        key = _structure(experiment)
        if key not in self._bundles:
            spec = build_spec(experiment, self._load(experiment))
            for chosen in self._metrics:
                metric = score_metric(chosen, spec.primary_metric)
                check_metric(spec, metric, "sweep.metric")
            self._bundles[key] = self._bundles_for(experiment, spec)
        return self._bundles[key]

    def fingerprint(self, experiment: Experiment) -> str:
        """Return the fingerprint of a trial's data set."""
        return self._load(experiment).fingerprint

    def gpus(self, experiment: Experiment) -> list[GpuIdentity] | None:
        """Return the kinds of GPU that a trial would compute on; None if this process cannot know them."""
        if not any(bundle.get("GPU") for bundle in self.bundles(experiment)):
            return []
        return distinct([gpu_identity(torch.device("cuda"))]) if torch.cuda.is_available() else None

    @property
    def slots(self) -> int:
        """Number of concurrent trials that the resources allow."""
        rooms = [
            math.floor(self._available.get(kind, 1.0) / need + 1e-9)
            for bundles in self._bundles.values()
            for kind in ("CPU", "GPU")
            if (need := sum(bundle.get(kind, 0.0) for bundle in bundles))
        ]
        return max(1, min([*rooms, self._slots]))

    @property
    def step_seconds(self) -> float:
        """The minimum duration of a trial's step: all concurrent trials together take half of the driver's time."""
        return max(1.0, 2 * DRIVER_SECONDS * self.slots)

    def share(self) -> dict[str, Any]:
        """Put the data sets into Ray's object store, once each, and return their references by `data_key`."""
        import ray

        for key, data in self._data.items():
            if key not in self._references:
                self._references[key] = [
                    ray.put(data.outline),
                    ray.put(data.samples),
                    data.fingerprint,
                ]
        return self._references

    def _load(self, experiment: Experiment) -> SharedDataset:
        key = data_key(experiment)
        if key not in self._data:
            self._data[key] = SharedDataset.of(dataset_for(experiment))
        return self._data[key]

    def _bundles_for(self, experiment: Experiment, spec: FederationSpec) -> Bundles:
        """Plan a trial's bundles: as many concurrent trials as fit, spare CPUs become client actors."""
        planner = PoolPlanner(spec, self._available)
        if not uses_ray(experiment):
            return [planner.plan(actors="auto").bundle]
        own = planner.plan()
        server = {"GPU": own.server_gpu} if own.server_gpu else {}
        if experiment.resources.actors != "auto":
            return [server, *[own.bundle] * own.actors]
        own, actors = self._spread(planner, experiment, spec.cohort_size)
        server = {"GPU": own.server_gpu} if own.server_gpu else {}
        if actors == 1 and experiment.faults.round_timeout is None:
            # Server and only client actor in one process: identical results, no waiting.
            return [own.bundle]
        return [server, *[own.bundle] * actors]

    def _spread(
        self, planner: PoolPlanner, experiment: Experiment, cohort: int
    ) -> tuple[Plan, int]:
        """Return the pool and the actors of each of as many equal trials as keep most GPUs, then CPUs, busy."""
        smallest = planner.plan(cohort=cohort * self._slots).gpus_per_actor
        shares = [smallest]
        if smallest and experiment.resources.gpus_per_actor == "auto":
            shares = [1.0 / number for number in range(round(1.0 / smallest), 0, -1)]
        best: tuple[tuple[int, int, int], Plan, int] | None = None
        for share in shares:
            pool = planner.plan(cohort=10**9, gpus_per_actor=share)
            servers = int(pool.server_gpu > 0)  # each trial's server has a share as well
            most = max(1, min(self._slots, pool.actors))
            for at_once in range(most, 0, -1) if share else (most,):
                actors = math.floor((pool.actors + servers) / at_once) - servers
                actors = max(1, min(actors, cohort))
                busy = math.ceil(at_once * (actors + servers) * share - 1e-9)
                value = (busy, at_once * actors, at_once)
                if best is None or value > best[0]:
                    best = value, pool, actors
        assert best is not None
        return best[1], best[2]


def data_key(experiment: Experiment) -> str:
    """Return a key that is equal for two experiments iff they use the same data set."""
    return json.dumps(
        experiment.model_dump(include={"data", "public", "subset"}), sort_keys=True, default=str
    )


def user_components() -> dict[str, dict[str, Any]]:
    """Return the user's components by kind, ready for processes that lack the user's files."""
    ship_user_modules()
    return {kind: entries.added() for kind, entries in registry.ALL.items()}


def _structure(experiment: Experiment) -> str:
    """Return the settings that decide whether an experiment fits its data, and its resource needs.

    Real-valued options of the method and the details of local training do not.
    """
    content = experiment.model_dump(
        mode="json",
        include={
            "data",
            "public",
            "subset",
            "partition",
            "split",
            "shift",
            "model",
            "models",
            "participation",
            "resources",
            "algorithm",
        },
    )
    content["algorithm"] = {
        k: v for k, v in content["algorithm"].items() if not isinstance(v, float)
    }
    content |= experiment.evaluation.model_dump(mode="json", include={"validation", "others"})
    content["precision"] = experiment.local.precision
    return json.dumps(content, sort_keys=True)
