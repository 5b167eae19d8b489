"""One session of Ray Tune over the unfinished trials, with the sweep's search and stopping rule."""

import contextlib
import itertools
import json
import math
import tempfile
import uuid
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from flray import ray_private as private
from flray import rng
from flray.config.experiment import Config
from flray.errors import FlrayError
from flray.federation.messages import ObjectLostError
from flray.federation.ray_backend.losses import NODE_DIED, cause_of_loss, node_is_gone
from flray.process import environment, quiet_logs
from flray.records import directory
from flray.tuning.callback import TrialRecorder, TuneTrial
from flray.tuning.checkpoint_store import CheckpointStore, start_keeper
from flray.tuning.phases import metric_of
from flray.tuning.resources import TrialResources, user_components
from flray.tuning.space import TrialSpec, Values, trial_specs
from flray.tuning.trial import FederationTrial, SweepContext
from flray.tuning.trial_store import ENDED_STATUSES, TERMINAL_STATUSES, TrialFolder, trial_folders
from flray.tuning.units import suggestions

ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",
}
"""Disables Tune's own tables, logs and saved state: the journals contain everything.

Tune saves its state at the beginning and the end even so."""
MAX_ATTEMPTS = 50
"""Consecutive suggestions that are infeasible, or were tried before, until the search gives up or ends."""


class Asha(FIFOScheduler):  # type: ignore[misc]
    """Asynchronous successive halving of comparable trials, across sessions.

    At each rung a trial stops if its score is below the quantile of those that were there before.
    Tune's own scheduler forgets the trials of earlier sessions.

    Parameters
    ----------
    config : Config
        The sweep.
    points : mapping of str to TrialSpec
        The trials by number; a search that suggests adds to it.
    past : mapping of str to sequence of (int, float)
        Rounds and scores of trials from earlier sessions. A driver that was killed after the last
        of them may not have decided, or not recorded that.
    """

    def __init__(
        self,
        config: Config,
        points: Mapping[str, TrialSpec],
        past: Mapping[str, Sequence[tuple[int, float]]],
    ) -> None:
        super().__init__()
        rule = config.sweep.scheduler
        assert rule is not None
        self._rule, self._points = rule, points
        self._sign = 1.0 if config.sweep.mode == "max" else -1.0
        self._reached: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        rounds = config.experiment.rounds
        first = min(rule.grace_period, rounds)
        count = int(np.log(rounds / first) / np.log(rule.reduction_factor) + 1)
        self._rungs = [first * rule.reduction_factor**k for k in range(count)]
        self._stopped: set[str] = set()
        for number, scores in past.items():
            worse = [self._is_worse(number, round_, score) for round_, score in scores]
            if worse and worse[-1]:
                self._stopped.add(number)

    def on_trial_result(self, controller: object, trial: object, result: dict[str, Any]) -> str:
        """Return whether the trial continues."""
        number = str(trial)
        worse = number in self._stopped
        worse |= self._is_worse(number, result["training_iteration"], result["score"])
        return str(self.STOP if worse else self.CONTINUE)

    def on_trial_complete(self, controller: object, trial: object, result: dict[str, Any]) -> None:
        """Record the last score."""
        self._is_worse(str(trial), result["training_iteration"], result["score"])

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def _is_worse(self, number: str, round_: int, score: float) -> bool:
        """Record a score at the highest rung that is new to the trial; return whether it stops there."""
        group = ""
        if self._rule.compared == "alike":
            experiment = self._points[number].experiment
            alike = {"data", "partition", "model", "models", "seed"}
            content = experiment.model_dump(mode="json", include=alike)
            group = json.dumps({**content, "algorithm": experiment.algorithm.name}, sort_keys=True)
        for k, rung in reversed(list(enumerate(self._rungs))):
            reached = self._reached[group, k]
            if round_ >= rung and number not in reached:
                others = list(reached.values())
                reached[number] = value = self._sign * score
                quantile = 100 * (1 - 1 / self._rule.reduction_factor)
                return bool(others and value < np.nanpercentile(others, quantile))
        return False


class OptunaSearch(Searcher):  # type: ignore[misc]
    """Suggestions of Optuna's tree-structured Parzen estimator, each repeated with every seed.

    A suggestion depends on the sweep's seed, its number and the trials that have ended, which are
    read from their folders. So with one trial at a time, a resumed sweep suggests the same settings
    as an uninterrupted one; with several at a time, other trials may have ended by then.

    Parameters
    ----------
    config : Config
        The sweep.
    sweep : Path
        Its folder.
    points : dict of str to TrialSpec
        The trials suggested before, by number and in order; new ones are added.
    create : callable
        Creates the folders of a new setting's trials; raises if it is infeasible.
    describe : callable
        Returns Tune's configuration of a trial.

    Attributes
    ----------
    exhausted : bool
        Whether it has found no further setting.
    """

    def __init__(
        self,
        config: Config,
        sweep: Path,
        points: dict[str, TrialSpec],
        create: Callable[[Sequence[TrialSpec]], object],
        describe: Callable[[TrialSpec], dict[str, Any]],
    ) -> None:
        super().__init__(metric="score", mode=config.sweep.mode)
        self._config, self._folder, self._points = config, sweep, points
        self._create, self._describe = create, describe
        self._scores: dict[str, float] = {}
        self.exhausted = False
        self._waiting = deque(p for p in points.values() if self._score(p) is None)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Return the next trial: another seed of the current setting, or a new setting."""
        while not self._waiting:
            most = self._config.sweep.samples * len(self._config.sweep.seeds)
            if len(self._points) >= most:
                return str(Searcher.FINISHED)
            if not self._ask():
                self.exhausted = True
                return str(Searcher.FINISHED)
        return {"point": self._describe(self._waiting.popleft())}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing: everything is in the trials' folders."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: everything is in the trials' folders."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def past(self) -> list[tuple[Values, float | None]]:
        """Return the settings with their mean scores: NaN if all trials failed, None while any trial remains."""
        points, seeds = list(self._points.values()), len(self._config.sweep.seeds)
        found: list[tuple[Values, float | None]] = []
        for start in range(0, len(points), seeds):
            scores = [self._score(point) for point in points[start : start + seeds]]
            ended = [score for score in scores if score is not None]
            known = [score for score in ended if not math.isnan(score)]
            mean = math.fsum(known) / len(known) if known else math.nan
            found.append((points[start].setting, mean if len(ended) == seeds else None))
        return found

    def _score(self, point: TrialSpec) -> float | None:
        """Return a trial's last score: NaN if it failed, None unless it has ended."""
        folder = TrialFolder(self._folder, point.number)
        if point.number not in self._scores and (status := folder.status) in ENDED_STATUSES:
            self._scores[point.number] = math.nan if status == "failed" else folder.last_score()
        return self._scores.get(point.number)

    def _ask(self) -> bool:
        """Create the trials of the next setting; return whether one was found that was not tried before."""
        sweep = self._config.sweep
        index = len(self._points) // len(sweep.seeds)
        # A single stream would restart at a resume and repeat the suggestions of the first session.
        seed = rng.key(sweep.seed, "sampling", extra=f"optuna/{index}")
        past, infeasible = self.past(), list[FlrayError]()
        found = suggestions(self._config.space, past, seed, sweep.mode)
        for setting in itertools.islice(found, MAX_ATTEMPTS):
            if any(setting == tried for tried, _ in past):
                continue  # its values would count as those of further seeds
            try:
                made = trial_specs(self._config, [setting], first=index)
                self._create(made)
            except FlrayError as error:
                # Options of one method with another's name: not every combination is feasible.
                infeasible.append(error)
            else:
                self._points |= {point.number: point for point in made}
                self._waiting.extend(point for point in made if self._score(point) is None)
                return True
        if len(infeasible) == MAX_ATTEMPTS:
            raise infeasible[-1]
        return False


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
) -> bool:
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

    Returns
    -------
    bool
        Whether a search has found no further setting.
    """
    settings, mirror = config.sweep, directory.remote_uri(sweep, config.experiment.output)
    store, keeper = CheckpointStore(f"{mirror or sweep.resolve()}/{directory.TUNE}"), None
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
            directory.remove_old_checkpoints(store.uri, point.number)
    search: OptunaSearch | None = None
    most = None if settings.concurrency == "auto" else int(settings.concurrency)
    space, samples = {"point": tune.grid_search([describe(point) for point in left])}, 1
    if settings.search == "optuna":
        search = OptunaSearch(config, sweep, points, suggested, describe)
        most = most or resources.slots  # no more trials are suggested than can run
        space, samples = {}, settings.samples * len(settings.seeds)
    # Tune writes its own state, as pickles, which nothing reads.
    with tempfile.TemporaryDirectory() as state, warnings.catch_warnings(), losses_are_known():
        warnings.filterwarnings("ignore", module=r"(?!flray\b)")
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
    return search is not None and search.exhausted


def _name(trial: TuneTrial) -> str:
    return str(trial.config["point"]["number"])


def _resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    return tune.PlacementGroupFactory(
        [dict(bundle) for bundle in config["point"]["bundles"]], strategy="PACK"
    )


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Keep Ray's and Tune's own reports off the terminal; the recorder notifies the user."""
    # For a report that is not sent Tune would import wandb and Comet.
    no_callbacks = private.replaced(private.CALLBACK_COUNT, lambda _: bool)
    noisy = ("ray.tune", "ray.train", "ray.air", "ray.data")
    with environment(ENVIRONMENT), quiet_logs(*noisy), no_callbacks:
        yield


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
        private.replaced(private.TRIAL_LOST, _once),
    ):
        yield


def _told(handler: Callable[..., None]) -> Callable[..., None]:
    def handle(*tracked: Any, exception: Exception, **others: Any) -> None:
        handler(*tracked, exception=_known(exception), **others)

    return handle


def _once(handler: Callable[..., None]) -> Callable[..., None]:
    """Retry a trial whose process, that of an earlier one, died before it began: Tune 2.60 takes the loss twice."""

    def handle(controller: Any, trial: TuneTrial, exception: Exception) -> None:
        resetting = getattr(controller, private.RESETTING)
        is_lost = isinstance(exception, ray.exceptions.RayActorError) and trial in resetting
        if is_lost and trial.status == "PENDING":  # it waits for another process already
            resetting.discard(trial)
        else:
            handler(controller, trial, exception)

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
