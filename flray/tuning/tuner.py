"""One session of Ray Tune over the unfinished trials."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune

from flray.config.experiment import Config
from flray.records import directory
from flray.records.trial_checkpoints import TUNE, remove_old_checkpoints
from flray.tuning.callback import TrialRecorder
from flray.tuning.checkpoint_store import CheckpointStore, start_keeper
from flray.tuning.phases import metric_of
from flray.tuning.resources import TrialResources, user_components
from flray.tuning.search import OptunaSearch, scheduler
from flray.tuning.space import TrialSpec, Values, trial_specs
from flray.tuning.trial import FederationTrial, SweepContext
from flray.tuning.trial_store import TERMINAL_STATUSES, TrialFolder, trial_folders
from flray.tuning.tune_losses import losses_are_known
from flray.tuning.tune_types import TuneTrial

ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "600",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
"""Disables Tune's own tables and logs: the journals contain everything."""


class SweepTuner:
    """Starts a fresh Tune run over the unfinished trials.

    Tune can restore a run, but writes its state every ten seconds, not atomically, and without the
    scheduler's state. The trials' folders are exact at every moment, so a resume reads these.

    Parameters
    ----------
    config : Config
        The sweep.
    sweep : Path
        Its folder.
    resources : TrialResources
        Data and plans.
    known : dict of str to TrialSpec
        The trials so far by number; a search that suggests adds to it.
    create : callable
        Creates the folders of trials, and copies trials that have been run already.
    other_gpus : bool
        Whether trials may continue on other GPUs than they began on.
    joined : bool
        Whether Ray is a cluster that was joined, whose nodes may not see the folder.
    """

    def __init__(
        self,
        config: Config,
        sweep: Path,
        resources: TrialResources,
        known: dict[str, TrialSpec],
        create: Callable[[Sequence[TrialSpec]], object],
        other_gpus: bool = False,
        joined: bool = False,
    ) -> None:
        self._config, self._sweep, self._resources, self._points = config, sweep, resources, known
        self._create, self._other_gpus = create, other_gpus
        self._until: int | None = None
        mirror = directory.remote_uri(sweep, config.experiment.output)
        self._storage = str((sweep / TUNE).resolve()) if mirror is None else f"{mirror}/{TUNE}"
        self._store, self._keeper = CheckpointStore(self._storage), None
        # The nodes of a Ray on this machine alone see the folder.
        if mirror is None and (joined or len(ray.nodes()) > 1):
            uid = directory.read(sweep)["uid"]
            self._store, self._keeper = CheckpointStore(self._storage, uid), start_keeper(uid)
        self._over = [f.number for f in trial_folders(sweep) if f.status in TERMINAL_STATUSES]

    def run(self, callback: TrialRecorder, until: int | None = None) -> None:
        """Run until all trials have ended or the user interrupts.

        Parameters
        ----------
        callback : TrialRecorder
            Records them.
        until : int, optional
            The number of rounds that trials pause after.
        """
        config, sweep = self._config, self._config.sweep
        self._until = until
        left = [point for number, point in self._points.items() if number not in self._over]
        scores = {folder.number: folder.scores() for folder in trial_folders(self._sweep)}
        for number in (point.number for point in left if scores.get(point.number)):
            remove_old_checkpoints(self._storage, number)
        searching = sweep.search == "optuna"
        search = (
            OptunaSearch(config, self._suggested(scores), self._suggest, self._configuration)
            if searching
            else None
        )
        # Tune writes its own state, as pickles, which nothing reads.
        with tempfile.TemporaryDirectory() as state, warnings.catch_warnings(), losses_are_known():
            warnings.simplefilter("ignore")
            tune.Tuner(
                self._trainable(),
                param_space={}
                if searching
                else {"point": tune.grid_search([self._point(point) for point in left])},
                tune_config=tune.TuneConfig(
                    search_alg=search,
                    scheduler=scheduler(config, self._points, scores, self._over),
                    num_samples=sweep.samples * len(sweep.seeds) if searching else 1,
                    max_concurrent_trials=self._concurrency(searching),
                    reuse_actors=True,
                    trial_name_creator=_name,
                    trial_dirname_creator=_name,
                ),
                run_config=tune.RunConfig(
                    storage_path=state,
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=sweep.max_failures),
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                    callbacks=[callback],
                ),
            ).fit()

    def _trainable(self) -> Any:
        shared = SweepContext(
            self._config,
            self._resources.share(),
            user_components(),
            self._store,
            uuid.uuid4().hex,
            self._other_gpus,
            self._resources.step_seconds,
        )
        return tune.with_resources(tune.with_parameters(FederationTrial, shared=shared), _resources)

    def _concurrency(self, searching: bool) -> int | None:
        """Return the limit of concurrent trials; a search algorithm suggests no more than can run."""
        if self._config.sweep.concurrency != "auto":
            return int(self._config.sweep.concurrency)
        return self._resources.slots if searching else None

    def _configuration(self, point: TrialSpec) -> dict[str, Any]:
        return {"point": self._point(point)}

    def _point(self, point: TrialSpec) -> dict[str, Any]:
        """Return a trial's Tune configuration."""
        return {
            "number": point.number,
            "values": point.values,
            "bundles": self._resources.bundles(point.experiment),
            "recorded": TrialFolder(self._sweep, point.number).rounds_recorded(),
            "until": self._until,
            "metric": metric_of(self._config, point),
        }

    def _suggest(self, setting: Values, position: int) -> tuple[list[TrialSpec], list[float]]:
        """Create the trials of a new suggestion, on disk first; return those left, and the others' scores."""
        made = trial_specs(self._config, [setting], first=position)
        self._resources.check(made)
        self._points.update({point.number: point for point in made})
        self._create(made)
        folders = [TrialFolder(self._sweep, point.number) for point in made]
        over = {f.number: f.scores() for f in folders if f.status in TERMINAL_STATUSES}
        left = [point for point in made if point.number not in over]
        return left, [scores[-1][1] for scores in over.values() if scores]

    def _suggested(
        self, scores: Mapping[str, list[tuple[int, float]]]
    ) -> list[tuple[Values, list[TrialSpec], list[float]]]:
        ordered = list(self._points.values())
        seeds = len(self._config.sweep.seeds)
        groups = [ordered[i : i + seeds] for i in range(0, len(ordered), seeds)]
        return [
            (
                group[0].setting,
                [p for p in group if p.number not in self._over],
                [
                    scores[p.number][-1][1]
                    for p in group
                    if p.number in self._over and scores[p.number]
                ],
            )
            for group in groups
        ]


def _name(trial: TuneTrial) -> str:
    return str(trial.config["point"]["number"])


def _resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    return tune.PlacementGroupFactory(
        [dict(bundle) for bundle in config["point"]["bundles"]], strategy="PACK"
    )


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Keep Ray's and Tune's own reports off the terminal; the recorder notifies the user."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.train", "ray.air", "ray.data")]
    levels = [logger.level for logger in loggers]
    os.environ.update(ENVIRONMENT)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
