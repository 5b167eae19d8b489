"""One session of Ray Tune over the unfinished trials."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray import tune

from flray.config.experiment import Config
from flray.federation.failures import ObjectLostError
from flray.federation.ray_backend import private
from flray.federation.ray_backend.losses import NODE_DIED, cause_of_loss, node_is_gone
from flray.records import directory
from flray.records.trial_checkpoints import TUNE, remove_old_checkpoints
from flray.tuning.callback import TrialRecorder, TuneTrial
from flray.tuning.checkpoint_store import CheckpointStore, start_keeper
from flray.tuning.phases import metric_of
from flray.tuning.resources import TrialResources, user_components
from flray.tuning.search import Asha, OptunaSearch
from flray.tuning.space import TrialSpec
from flray.tuning.trial import FederationTrial, SweepContext
from flray.tuning.trial_store import TERMINAL_STATUSES, TrialFolder, trial_folders

ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
"""Disables Tune's own tables and logs: the journals contain everything."""


def run_trials(
    config: Config,
    sweep: Path,
    resources: TrialResources,
    points: dict[str, TrialSpec],
    create: Callable[[Sequence[TrialSpec]], object],
    recorder: TrialRecorder,
    *,
    until: int | None = None,
    other_gpus: bool = False,
    joined: bool = False,
) -> None:
    """Run the unfinished trials in a new session of Tune, until all have ended or the user interrupts.

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
    points : dict of str to TrialSpec
        The trials so far by number; a search that suggests adds to it.
    create : callable
        Creates the folders of trials, and copies trials that have been run already.
    recorder : TrialRecorder
        Records the trials.
    until : int, optional
        The number of rounds that trials pause after.
    other_gpus : bool
        Whether trials may continue on other GPUs than they began on.
    joined : bool
        Whether Ray is a cluster that was joined, whose nodes may not see the folder.
    """
    settings, mirror = config.sweep, directory.remote_uri(sweep, config.experiment.output)
    store, keeper = CheckpointStore(f"{mirror or sweep.resolve()}/{TUNE}"), None
    # The nodes of a Ray on this machine alone see the folder.
    if mirror is None and (joined or len(ray.nodes()) > 1):
        uid = directory.read(sweep)["uid"]
        store, keeper = CheckpointStore(store.uri, uid), start_keeper(uid)
    shared = SweepContext(
        config,
        resources.share(),
        user_components(),
        store,
        uuid.uuid4().hex,
        other_gpus,
        resources.step_seconds,
    )

    def describe(point: TrialSpec) -> dict[str, Any]:
        """Return a trial's Tune configuration."""
        return {
            "number": point.number,
            "values": point.values,
            "bundles": resources.bundles(point.experiment),
            "recorded": TrialFolder(sweep, point.number).rounds_recorded(),
            "until": until,
            "metric": metric_of(config, point),
        }

    def suggested(made: Sequence[TrialSpec]) -> None:
        resources.check(made)
        create(made)

    folders = {folder.number: folder for folder in trial_folders(sweep)}
    over = {number for number, folder in folders.items() if folder.status in TERMINAL_STATUSES}
    scores = {number: folder.scores() for number, folder in folders.items()}
    left = [point for number, point in points.items() if number not in over]
    for point in left:
        if scores.get(point.number):
            remove_old_checkpoints(store.uri, point.number)
    # A search suggests no more trials than can run.
    search, most = None, None if settings.concurrency == "auto" else int(settings.concurrency)
    space, samples = {"point": tune.grid_search([describe(point) for point in left])}, 1
    if settings.search == "optuna":
        search, most = (
            OptunaSearch(config, sweep, points, suggested, describe),
            most or resources.slots,
        )
        space, samples = {}, settings.samples * len(settings.seeds)
    # Tune writes its own state, as pickles, which nothing reads.
    with tempfile.TemporaryDirectory() as state, warnings.catch_warnings(), losses_are_known():
        warnings.simplefilter("ignore")
        tune.Tuner(
            tune.with_resources(tune.with_parameters(FederationTrial, shared=shared), _resources),
            param_space=space,
            tune_config=tune.TuneConfig(
                search_alg=search,
                scheduler=None if settings.scheduler is None else Asha(config, points, scores),
                num_samples=samples,
                max_concurrent_trials=most,
                reuse_actors=True,
                trial_name_creator=_name,
                trial_dirname_creator=_name,
            ),
            run_config=tune.RunConfig(
                storage_path=state,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=settings.max_failures),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                callbacks=[recorder],
            ),
        ).fit()
    del keeper


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


@contextlib.contextmanager
def losses_are_known() -> Iterator[None]:
    """Show Tune the errors of lost processes as the kind of `RayActorError` that each is.

    If a process ran out of memory, Tune 2.60 takes the error for an internal fault, and one such
    trial would end the sweep. It counts a lost node as a crash as long as Ray reports only that the
    trial is unavailable.
    """
    private.check(*private.SWEEP)
    with (
        private.replaced(private.TRIAL_STARTS, _told),
        private.replaced(private.TRIAL_STEPS, _told),
    ):
        yield


def _told(handler: Callable[..., None]) -> Callable[..., None]:
    def handle(*tracked: Any, exception: Exception, **others: Any) -> None:
        handler(*tracked, exception=_known(exception), **others)

    return handle


def _known(error: Exception) -> Exception:
    known = error
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        advice = "fewer trials at once (sweep.concurrency) leave each of them more"
        known = ray.exceptions.RayActorError(error_msg=f"{cause_of_loss(error)}; {advice}")
    elif isinstance(getattr(error, "cause", None), ObjectLostError) or node_is_gone(error):
        # What is preempted counts for nothing.
        known = ray.exceptions.RayActorError(error_msg=NODE_DIED, preempted=True)
    return known
