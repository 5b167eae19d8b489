"""Check every setting of a sweep against its data, and divide the machine among the trials."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from flray import registry
from flray.config.experiment import Experiment
from flray.devices import GpuIdentity, distinct, gpu_identity
from flray.errors import ConfigError, ConfigErrors
from flray.federation import SharedDataset
from flray.federation.building import build_spec, dataset_for
from flray.federation.evaluation import check_metric
from flray.federation.ray_backend.nodes import held_by_others, ship_user_modules
from flray.federation.ray_backend.placement import Plan, PoolPlanner, uses_ray
from flray.metrics import AUTO, score_metric
from flray.tuning.space import TrialSpec

Bundles = list[dict[str, float]]
PROBE_REACH = 2
"""A measured batch serves those of more than its size divided by this: a larger one takes more memory."""
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
    metrics : mapping of str to str
        What the sweep chooses by and reports, by the setting that names it; auto: each method's primary metric.
    searching : bool
        Whether settings are suggested while trials hold the GPUs: then a measured batch serves all smaller ones.
    """

    def __init__(
        self,
        available: Mapping[str, float],
        trials: int,
        concurrency: int | str,
        metrics: Mapping[str, str] | None = None,
        searching: bool = False,
    ) -> None:
        self._reach = math.inf if searching else PROBE_REACH
        named = (metrics or {}).items()
        self._metrics = {where: metric for where, metric in named if metric != AUTO}
        self._available = dict(available)
        self._held = held_by_others()
        self._trials = trials
        self._concurrency = None if concurrency == "auto" else int(concurrency)
        self._data: dict[str, SharedDataset] = {}
        self._references: dict[str, Any] = {}
        self._planned: dict[tuple[str, int], tuple[Experiment, PoolPlanner, Plan]] = {}

    def replan(self, trials: int, available: Mapping[str, float]) -> list[str]:
        """Plan anew for the remaining trials, on the nodes that there are now; return the plans in words."""
        have = {kind: available.get(kind, 0.0) for kind in ("CPU", "GPU")}
        same = all(have[kind] == self._available.get(kind, 0.0) for kind in have)
        self._trials, self._available = max(1, trials), have
        before, self._planned = self._planned, {}
        for key, (experiment, planner, _) in before.items():
            if same:
                self._planned[key] = experiment, planner, self._plan(experiment, planner)
            else:
                self.plan(experiment)
        return list(dict.fromkeys(str(plan) for *_, plan in self._planned.values()))

    def check(self, points: Iterable[TrialSpec]) -> None:
        """Reject settings that do not fit their data or the machine.

        Raises
        ------
        ConfigErrors
            One line per setting.
        """
        errors: dict[str, ConfigError] = {}
        for point in sorted(points, key=lambda point: -point.experiment.local.batch_size):
            try:
                self.bundles(point.experiment)
            except ConfigError as error:
                errors[str(error)] = error
        if errors:
            raise ConfigErrors(list(errors.values()))

    def plan(self, experiment: Experiment) -> Plan:
        """Return the plan of a trial, as if all remaining trials were of its kind.

        Raises
        ------
        FlrayError
            If the experiment cannot be run.
        """
        structure, size = _structure(experiment), experiment.local.batch_size
        near = (n for of, n in self._planned if of == structure and size <= n < self._reach * size)
        key = structure, min(near, default=size)
        if key not in self._planned:
            spec = build_spec(experiment, self.dataset(experiment))
            for where, chosen in self._metrics.items():
                check_metric(spec, score_metric(chosen, spec.primary_metric), where)
            planner = PoolPlanner(spec, self._available, held=self._held)
            self._planned[key] = experiment, planner, self._plan(experiment, planner)
        return self._planned[key][-1]

    def bundles(self, experiment: Experiment) -> Bundles:
        """Return a trial's resource bundles: Tune's head bundle, then one bundle per client actor.

        A trial with one actor runs its clients in the head bundle, unless a client may have
        to be stopped (`faults.round_timeout`) or the user asked for the actor.

        Raises
        ------
        FlrayError
            If the experiment cannot be run.
        """
        plan = self.plan(experiment)
        asked = experiment.resources.actors != "auto" or experiment.faults.round_timeout is not None
        if plan.actors == 1 and not (asked and uses_ray(experiment)):
            # Server and only client actor in one process: identical results, no waiting.
            return [plan.bundle]
        return [{"GPU": plan.server_gpu} if plan.server_gpu else {}, *[plan.bundle] * plan.actors]

    def gpus(self, experiment: Experiment) -> list[GpuIdentity] | None:
        """Return the kinds of GPU that a trial would compute on; None if this process cannot know them."""
        if not any(bundle.get("GPU") for bundle in self.bundles(experiment)):
            return []
        return distinct([gpu_identity(torch.device("cuda"))]) if torch.cuda.is_available() else None

    @property
    def slots(self) -> int:
        """Number of concurrent trials that the resources allow."""
        rooms = [
            math.floor((self._available.get(kind, 1.0) - self._held.get(kind, 0.0)) / need + 1e-9)
            for experiment, *_ in self._planned.values()
            for bundles in (self.bundles(experiment),)
            for kind in ("CPU", "GPU")
            if (need := sum(bundle.get(kind, 0.0) for bundle in bundles))
        ]
        return max(1, min([*rooms, self._trials, self._concurrency or self._trials]))

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

    def dataset(self, experiment: Experiment) -> SharedDataset:
        """Return a trial's data set."""
        key = data_key(experiment)
        if key not in self._data:
            self._data[key] = SharedDataset.of(dataset_for(experiment))
        return self._data[key]

    def _plan(self, experiment: Experiment, planner: PoolPlanner) -> Plan:
        alone = {} if uses_ray(experiment) else {"actors": 1}  # one process runs all clients
        return planner.plan(None, self._trials, self._concurrency, **alone)


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

    Real-valued options of the method and most details of local training do not; the batch is compared apart.
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
    algorithm = {k: v for k, v in content["algorithm"].items() if not isinstance(v, float)}
    content |= {
        "algorithm": algorithm,
        **experiment.evaluation.model_dump(mode="json", include={"validation", "others"}),
        **experiment.local.model_dump(include={"precision", "compile", "clients_per_step"}),
        "block": experiment.aggregation.block,
        "optimizer": str(experiment.local.optimizer),
    }
    return json.dumps(content, sort_keys=True)
