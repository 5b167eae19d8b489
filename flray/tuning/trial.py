"""A trial is a federation: Tune's trainable is the server actor, its client actors live in the trial's bundles."""

import contextlib
import json
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from flray import bits, registry
from flray.config.experiment import Config, Experiment
from flray.config.loader import experiment_at
from flray.devices import GpuIdentity, difference
from flray.errors import FlrayError, nearest
from flray.federation import FederationSpec, SharedDataset, checkpoint, partition_summary
from flray.federation.building import build_spec
from flray.federation.evaluation import collect_diagnostics
from flray.federation.federation import Federation
from flray.federation.messages import MACHINE_ERRORS, ObjectLostError, describe_failure
from flray.federation.ray_backend.executor import RayExecutor
from flray.federation.ray_backend.losses import LOOK_SECONDS, NodeWatch
from flray.federation.ray_backend.pool import ObjectRef, granted_device
from flray.federation.worker.client_runner import InlineExecutor
from flray.federation.worker.diagnostics import encode
from flray.files import MAPPING, read_json, write_atomically
from flray.metrics import RunningReport, is_lower_better_in, score_metric
from flray.records import directory
from flray.runs.loop import CheckpointPolicy
from flray.tuning.checkpoint_store import CheckpointStore
from flray.tuning.resources import Bundles, data_key

TRIAL_NOTE = "trial.json"
KEEP = 2
"""Checkpoints that a trial keeps."""
TRANSIENT_ERRORS = (ray.exceptions.RayError, ObjectLostError, OSError, MemoryError, *MACHINE_ERRORS)
"""Transient errors: Tune retries the trial. All others fail it."""

CARRIED_SECONDS = 300.0
"""A checkpoint carries the metrics of the rounds of so many seconds before it, and of those since the one before it.

A checkpoint is written before its rounds are in the trial's journal, and journals get into object
storage now and then. If the driver is lost in between, the rounds before the one at which the trial
resumes would be missing from its history forever.
"""


@dataclass(frozen=True)
class SweepContext:
    """Context shared by all trials of a sweep.

    Attributes
    ----------
    config : Config
        The sweep.
    data : dict
        By `flray.tuning.resources.data_key`: references to a data set's outline and samples, and
        its fingerprint.
    components : dict
        The user's components, by kind.
    store : CheckpointStore
        The checkpoints of the sweep's trials.
    session : str
        The name of this session of the driver, whose journals have each round that a trial reported.
    other_gpus : bool
        Whether a trial may continue on other GPUs than it began on.
    step_seconds : float
        The minimum duration of a step of one or more rounds; 0 if a scheduler compares rounds.
    """

    config: Config
    data: Mapping[str, Any]
    components: Mapping[str, Mapping[str, Any]]
    store: CheckpointStore
    session: str
    other_gpus: bool = False
    step_seconds: float = 1.0


def _silence_sigterm_traceback() -> None:
    """Hide the SystemExit traceback that Ray's SIGTERM handler raises inside ``__del__``.

    Python cannot propagate an exception from there and would print it.
    """
    others = sys.unraisablehook

    def hook(found: "sys.UnraisableHookArgs") -> None:
        if not isinstance(found.exc_value, SystemExit):
            others(found)

    sys.unraisablehook = hook


class FederationTrial(tune.Trainable):  # type: ignore[misc]
    """One trial; a step is one round, or some seconds' worth of short ones if no scheduler compares rounds.

    Tune and Ray use the trials' CPUs briefly at each step, which would slow down rounds of half a
    second, and the driver of many trials takes one step after another.

    Tune knows of no checkpoints: a trial writes them itself, and continues from the newest whenever it
    starts, after a crash of its process as after one of the driver.
    """

    def setup(self, config: dict[str, Any], shared: SweepContext | None = None) -> None:
        """Open the federation of a trial."""
        assert shared is not None
        torch.set_num_threads(1)
        _silence_sigterm_traceback()
        logging.getLogger("ray").setLevel(logging.ERROR)  # a line per checkpoint is noise
        for kind, entries in shared.components.items():
            registry.ALL[kind].add(entries)
        self._shared = shared
        self._nodes = NodeWatch()
        self._executor: InlineExecutor | RayExecutor | None = None
        self._bundles: Bundles = []
        self._open(config["point"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Switch to another trial in the same processes."""
        self._save_if_stopped()
        self._open(new_config["point"])
        return True

    def _open(self, point: Mapping[str, Any]) -> None:
        self._number = str(point["number"])
        self._is_between_rounds = self._resumed = False
        self._failure: str | None = None
        self._opened: Federation | None = None
        self._lines: list[str] = []
        self._metric = ""
        self._recent: list[tuple[float, int, dict[str, float]]] = []
        self._carried: list[tuple[int, dict[str, float]]] = []
        self._first: list[str | None] = []
        self._gpus: list[GpuIdentity] = []
        self._written: list[int] = []
        self._recorded = int(point["recorded"])
        self._done = 0
        scheduler = self._shared.config.sweep.scheduler
        self._step_seconds = self._shared.step_seconds if scheduler is None else 0.0
        with self._failures():
            experiment = experiment_at(self._shared.config, dict(point["values"]))
            if lacking := bits.problem(experiment):
                raise FlrayError(lacking)
            self._policy = CheckpointPolicy(experiment.checkpoint)
            self._pause = min(experiment.rounds, point["until"] or experiment.rounds)
            shared = samples = None
            if data := self._shared.data.get(data_key(experiment)):
                outline, samples, fingerprint = data
                shared = SharedDataset(ray.get(outline), ray.get(samples), fingerprint)
            spec = build_spec(experiment, shared)
            self._metric = score_metric(point["metric"], spec.primary_metric)
            evaluation = experiment.evaluation
            lower = is_lower_better_in(dict(self._shared.config.sweep), self._metric)
            self._course = RunningReport(self._metric, evaluation.protocol, evaluation.last, lower)
            self._executor = self._executor_for(experiment, spec, samples, point["bundles"])
            # The GPU of the trial's own bundle, if it has one; client actors have theirs.
            device = granted_device()
            opened = Federation(spec, self._executor, self._lines.append, device)
            self._gpus = opened.gpus()
            if told := spec.check_gpus(self._gpus):
                self._lines.append(told)
            self._opened = opened
            self._restore_newest()

    def step(self) -> dict[str, Any]:
        """Run the next rounds; if all are done already, only report so."""
        report: dict[str, Any] = {"rounds": [], "carried": self._carried}
        self._carried, self._is_between_rounds = [], False
        with self._failures():
            if self._failure is None:
                self._advance(report)
        over = self._opened is not None and self._opened.has_ended()
        report |= {
            "metric": self._metric,
            "lines": list(self._lines),
            "failure": self._failure,
            "paused": self._failure is None and self._pause <= self._done and not over,
        }
        self._lines.clear()
        self._first = []
        self._is_between_rounds = self._failure is None
        # Tune keeps statistics of every number: all but the few it needs are sent as text.
        return {
            "report": json.dumps(report),
            "score": math.nan if self._failure else self._course.value,
            # Not the server's count, which an evaluation that fails has raised already.
            "training_iteration": self._done,
            "done": self._failure is not None or self._is_over(),
        }

    def _advance(self, report: dict[str, Any]) -> None:
        """Run the next rounds into a report, up to the checkpoint that is due."""
        federation = self._federation
        if federation.rounds_done == 0:
            self._first = [self._diagnose(False)]
        for found in self._first:
            report |= {
                directory.PARTITION: {
                    **partition_summary(federation.spec.data),
                    "primary": federation.spec.primary_metric,
                },
                directory.INITIAL_DIAGNOSTICS: found,
            }
        until = time.monotonic() + self._step_seconds
        # A scheduler decides on single rounds, and first on the last one before a kill.
        resumed, self._resumed = self._resumed and not self._step_seconds, False
        while not self._is_over() and not resumed:
            report["rounds"].append(self._round())
            looked = time.monotonic() - self._policy.saved_at >= LOOK_SECONDS
            if (
                self._is_over()
                or (looked and self._nodes.leaves())
                or self._policy.due(federation.rounds_done)
            ):
                self._save()
                break
            if time.monotonic() >= until:
                break
        if federation.has_ended():
            report |= {
                "sha256": federation.sha256(),
                "gpus": self._gpus,
                directory.FINAL_DIAGNOSTICS: self._diagnose(True),
            }

    def _is_over(self) -> bool:
        return self._federation.rounds_done >= self._pause or self._federation.has_ended()

    def _round(self) -> dict[str, float]:
        """Run one round and return its metrics."""
        metrics = self._federation.step().metrics
        evaluated = any(name.startswith(("global/", "personal/")) for name in metrics)
        if evaluated and self._metric not in metrics:
            raise FlrayError(
                f"sweep.metric: found {self._metric!r}; this trial measures no such thing"
                f"{nearest(self._metric, metrics)} (auto takes the method's own accuracy; flray list metrics has all)"
            )
        metrics["score"] = self._course.add(metrics)
        self._done = self._federation.rounds_done
        self._recent.append((time.monotonic(), self._done, dict(metrics)))
        return dict(metrics)

    def _save(self) -> None:
        """Write a checkpoint, see how long that takes, and remove those before the last two."""
        since = min(self._policy.saved_at, time.monotonic() - CARRIED_SECONDS)
        self._recent = [entry for entry in self._recent if entry[0] >= since]
        note = {
            "course": self._course.state(),
            "session": self._shared.session,
            "first": self._first,
            "rounds": [[round_, metrics] for _, round_, metrics in self._recent],
            "gpus": self._gpus,
        }
        store, done = self._shared.store, self._federation.rounds_done
        with self._policy.saving(), store.write(self._number, done) as folder:
            write_atomically(folder / TRIAL_NOTE, json.dumps(note).encode())
            checkpoint.save(self._federation, folder, keep=1)
        self._written.append(done)
        for old in self._written[:-KEEP]:
            store.remove(self._number, old)
        del self._written[:-KEEP]

    def _save_if_stopped(self) -> None:
        """Save a trial that a scheduler stops, or the user, whose last rounds are in no checkpoint."""
        if self._is_between_rounds and self._federation.rounds_done not in self._written:
            with contextlib.suppress(Exception):  # what is lost so is run again
                self._save()
        self._is_between_rounds = False

    @property
    def _federation(self) -> Federation:
        assert self._opened is not None, "a trial whose settings failed runs no round"
        return self._opened

    def cleanup(self) -> None:
        """Stop the client actors."""
        self._save_if_stopped()
        if self._executor is not None:
            self._executor.close()

    def _executor_for(
        self,
        experiment: Experiment,
        spec: FederationSpec,
        samples: ObjectRef | None,
        bundles: Bundles,
    ) -> InlineExecutor | RayExecutor:
        """Return an executor: the previous trial's if it fits."""
        fits, self._bundles = bundles == self._bundles, bundles
        clients = bundles[1:]
        if not clients:
            self.cleanup()
            share = bundles[0].get("GPU", 1.0) if bundles else 1.0
            return InlineExecutor(spec, granted_device(), share, "raise")
        reference = ray.put(spec.without_samples() if samples is not None else spec)
        if fits and isinstance(self._executor, RayExecutor):
            self._executor.reset(reference, experiment, samples)
            return self._executor
        self.cleanup()
        return RayExecutor(
            reference,
            experiment,
            len(clients),
            clients[0].get("GPU", 0.0),
            ray.util.get_current_placement_group(),
            int(bool(bundles[0])),  # Tune leaves an empty one out
            samples,
        )

    def _restore_newest(self) -> None:
        """Restore the newest checkpoint whose history is complete.

        Incomplete checkpoints are skipped, and so are those ahead of the trial's journal by more
        rounds than they carry: metrics of the rounds in between would be lost. The journal has all
        rounds that were reported in this session.
        """
        for stored in self._shared.store.of(self._number):
            with (
                contextlib.suppress(checkpoint.DamagedCheckpointError),
                self._shared.store.read(stored) as folder,
            ):
                note = {}
                with contextlib.suppress(FlrayError):  # a checkpoint without a note
                    note = read_json(folder / TRIAL_NOTE, MAPPING)
                carried = note.get("rounds", [])
                recorded = (
                    note.get("session") == self._shared.session or stored.round <= self._recorded
                )
                if not recorded and not (carried and carried[0][0] <= self._recorded + 1):
                    continue
                self._restore(folder, note)
                self._carried = [entry for entry in carried if entry[0] > self._recorded]
                return

    def _check_gpus(self, note: Mapping[str, Any]) -> None:
        """Refuse to continue on other GPUs than a checkpoint's; if that is allowed, report the change."""
        began, resources = note.get("gpus"), self._federation.spec.config.resources
        if not isinstance(began, list) or not (differs := difference(began, self._gpus)):
            return
        line = f"the trial {differs}, with other last bits"
        if not self._shared.other_gpus and resources.gpu_model != "any":
            raise FlrayError(f"{line}; go on there, or here with flray resume ... --other-hardware")
        self._lines.append(line)

    def _restore(self, folder: Path, note: Mapping[str, Any]) -> None:
        self._check_gpus(note)
        self._done = checkpoint.restore(self._federation, folder)
        self._resumed = True
        if note:
            self._course.restore(note["course"])
            self._first = note.get("first", [])
            self._recent = [
                (time.monotonic(), round_, metrics) for round_, metrics in note["rounds"]
            ]
        self._policy.saved_at = time.monotonic()

    def _diagnose(self, final: bool) -> str | None:
        """Return diagnostics as text; None if not requested or unavailable."""
        wanted = self._federation.spec.config.tracking.features
        found = collect_diagnostics(self._federation, final) if wanted else {}
        return encode(found) if found else None

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Record a permanent error; it ends the trial at its next step."""
        try:
            yield
        except TRANSIENT_ERRORS:
            raise
        except FlrayError as error:
            if isinstance(error.__cause__, MACHINE_ERRORS):
                raise error.__cause__ from None
            self._failure = str(error)
        except Exception as error:
            failure = describe_failure(error)
            self._failure = f"{failure.what} at {failure.where}\n{failure.trace}"
