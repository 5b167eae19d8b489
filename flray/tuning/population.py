"""Population based training: members train in step and copy each other, the same again in a resumed sweep."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from flray import rng
from flray.config.experiment import Config
from flray.config.sweep import Choice, Domain, Grid, LogUniform, Pbt, RandInt, Uniform
from flray.federation.ray_backend import private
from flray.tuning.tune_types import Controller, TuneTrial

TIME = "training_iteration"
"""What of a trial's result counts its rounds."""


class Population(PopulationBasedTraining):  # type: ignore[misc]
    """Tune's synchronous population based training, with the same exchanges whatever is slow or interrupted.

    Tune draws from one global stream, and assumes that a population resumed in the middle has had
    no exchange yet: members would then copy each other at different rounds, and lose those in
    between.

    Parameters
    ----------
    config : Config
        The sweep.
    settings : Pbt
        Its scheduler.
    start : int
        The round of the exchange that all members resume from: they report it again, and the
        exchange is repeated.
    """

    def __init__(self, config: Config, settings: Pbt, start: int) -> None:
        super().__init__(
            time_attr=TIME,
            metric="score",
            mode=config.sweep.mode,
            perturbation_interval=settings.perturbation_interval,
            quantile_fraction=settings.quantile,
            custom_explore_fn=Bounds(config.space),
            hyperparam_mutations={
                "point": {"values": {p: mutation(d) for p, d in config.space.items()}}
            },
            # In step: members copy each other at the same round, so no member's history has a gap.
            synch=True,
            log_config=False,
        )
        private.check_inherited(self, *private.POPULATION)
        self._seed = config.sweep.seed
        if start:
            self._next_perturbation_sync = start

    def on_trial_add(self, controller: Controller, trial: TuneTrial, **options: Any) -> None:
        """Add a member, new or tried again after a crash: its next exchange is the population's next."""
        super().on_trial_add(controller, trial, **options)
        self._trial_state[trial].last_perturbation_time = (
            self._next_perturbation_sync - self._perturbation_interval
        )

    def _checkpoint_or_exploit(
        self,
        trial: TuneTrial,
        controller: Controller,
        upper: Sequence[TuneTrial],
        lower: Sequence[TuneTrial],
    ) -> None:
        state, saving = self._trial_state[trial], trial.temporary_state.saving_to
        if saving is not None and trial in upper:
            # Tune would save it once more, and count one of the two: the next checkpoint would
            # get the name of the one that others may still have to read.
            state.last_checkpoint = saving
            return
        if trial in lower and trial.status == "RUNNING":
            # Tune would write no checkpoint, from which the population could go on after a kill,
            # or forget the one that is being written, and give the next the same name.
            saving = saving or controller._schedule_trial_save(trial, result=state.last_result)
            if saving is not None and (saved := saving.resolve()) is not None:
                trial.on_checkpoint(saved)
            trial.temporary_state.saving_to = None
        key = rng.key(
            self._seed, "sampling", round=state.last_train_time, extra=f"population/{trial}"
        )
        before, numbers = random.getstate(), np.random.get_state()
        random.seed(key)
        np.random.seed(key % 2**32)  # Tune resamples intervals from this
        try:
            super()._checkpoint_or_exploit(trial, controller, upper, lower)
        finally:
            random.setstate(before)
            np.random.set_state(numbers)

    def _get_new_config(
        self, trial: TuneTrial, trial_to_clone: TuneTrial
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the configuration of a member that copies another: only its values change.

        It includes the course of its scores, because its newest checkpoint may be older than this round.
        """
        config, operations = super()._get_new_config(trial, trial_to_clone)
        course = json.loads(self._trial_state[trial].last_result["report"])["course"]
        values = config["point"]["values"]
        point = {**trial.config["point"], "values": values, "course": course}
        return {**config, "point": point}, operations


def mutation(domain: Domain) -> Any:
    """Return a domain in Tune's form, for resampling by population based training."""
    match domain:
        case Grid():
            return list(domain.grid)
        case Choice():
            return list(domain.choice)
        case Uniform():
            return tune.uniform(*domain.uniform)
        case LogUniform():
            return tune.loguniform(*domain.loguniform)
        case RandInt():
            return tune.randint(*domain.randint)


class Bounds:
    """Limits perturbed values to their domains.

    Parameters
    ----------
    space : mapping of str to Domain
        The domains, by path.
    """

    def __init__(self, space: Mapping[str, Domain]) -> None:
        self._ends: dict[str, tuple[float, float]] = {}
        for path, domain in space.items():
            match domain:
                case Uniform():
                    self._ends[path] = domain.uniform
                case LogUniform():
                    self._ends[path] = domain.loguniform
                case RandInt():
                    self._ends[path] = (domain.randint[0], domain.randint[1] - 1)

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration with its values within bounds, changed in place."""
        values = config["point"]["values"]
        for path, (low, high) in self._ends.items():
            values[path] = min(max(values[path], low), high)
        return config
