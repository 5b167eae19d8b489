"""Run one federation from its configuration to its result: the driver behind ``flray run`` and ``flray resume``."""

import contextlib
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from flray import bits
from flray.config.experiment import Config, Experiment
from flray.config.loader import check_single, load
from flray.data.loading import forget_of_user
from flray.errors import FlrayError
from flray.federation import FederationSpec, partition_summary
from flray.federation.building import build_spec
from flray.federation.federation import Federation, inline_federation
from flray.federation.ray_backend.nodes import NO_GPU_NOW, held_by_others, own_node
from flray.federation.ray_backend.placement import PoolPlanner, open_cluster, uses_ray
from flray.files.tracking_address import check
from flray.metrics import VIEWS, Reported, summarise_history
from flray.process import resume_hint
from flray.ray_session import chosen_address, joined, local_resources
from flray.records import directory, history_of, read_events, read_partition
from flray.records.mirror import mirrored
from flray.runs import resume_checks
from flray.runs.identity import code_of, save_provenance
from flray.runs.loop import RoundLoop, RoundRecorder
from flray.runs.progress import Progress, RunProgress, shown
from flray.runs.session import (
    NOTE,
    POSITIVE,
    RunSession,
    draw_figures,
    record_data,
    recording_failure,
    status_after,
    tracking,
)


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes
    ----------
    folder : Path
        The run's folder.
    history : DataFrame
        One row per round: column ``round``, then one per metric.
    sha256 : str
        Digest of the learned state: global models, the method's server state, client states.
    metric : str
        Name of the method's primary metric.
    experiment : Experiment
        The resolved settings.
    """

    folder: Path
    history: pd.DataFrame
    sha256: str
    metric: str
    experiment: Experiment

    @property
    def metrics(self) -> dict[str, float]:
        """Each metric's value in the last round that measured it."""
        return summarise_history(self.history, self.metric, "last", 1).values

    @property
    def reported(self) -> Reported:
        """The numbers to report, according to ``evaluation.protocol``."""
        evaluation = self.experiment.evaluation
        return summarise_history(self.history, self.metric, evaluation.protocol, evaluation.last)

    @property
    def positive(self) -> str:
        """The class that sensitivity, F1 and so on are about; empty unless the task is binary."""
        held = self.folder / directory.PARTITION
        return str(read_partition(held).get("positive") or "") if held.is_file() else ""

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: method, data set and reported values."""
        experiment = self.experiment
        title = f"{experiment.algorithm.name} on {experiment.data.name} {self.reported.text}"
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{value:.4f}</td></tr>"
            for name, value in self.reported.values.items()
            if name.rpartition("/")[0] in VIEWS
        )
        return f"<p>{html.escape(title)}</p><table>{rows}</table><p>{html.escape(str(self.folder))}</p>"

    def model(self, client: str | None = None) -> nn.Module:
        """Return the trained model of the last round, in eval mode, for normalised inputs.

        Parameters
        ----------
        client : str, optional
            The name of a client: return its test model, which may be personal or global. By
            default the global model.

        Raises
        ------
        FlrayError
            If the client does not exist, or the run has several global models or none.
        """
        from flray.runs.models import trained_model

        return trained_model(self.folder, client)


def run(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    address: str | None = None,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> Result:
    """Run a federation.

    Parameters
    ----------
    source : path or mapping
        A YAML file, or its content.
    overrides : iterable of str
        ``key=value``, as on the command line.
    address : str, optional
        A running Ray cluster; without it that of ``RAY_ADDRESS``, or else one that is started on this
        machine.
    progress : Progress or bool, optional
        A display, or whether to show one; without, on a terminal and in a notebook.
    **settings
        Parts of the experiment to replace, for example ``algorithm={"name": "fedskc"}``.

    Raises
    ------
    FlrayError
        If a setting or a data file is wrong (then nothing has been created), or a client failed.
    """
    config = load(source, overrides, **settings)
    check_single(config, source)
    return start(config, address=address, progress=progress)


def start(
    config: Config, *, address: str | None = None, progress: Progress | bool | None = None
) -> Result:
    """Run a federation from a checked configuration; see `run`."""
    forget_of_user()
    experiment, progress = config.experiment, shown(progress, RunProgress)
    address = _cluster(experiment, address, progress)
    bits.require(experiment)
    spec = build_spec(experiment)
    starts = uses_ray(experiment) and address is None and not joined()
    if starts:
        PoolPlanner(spec, local_resources()).plan()
    check(experiment.tracking.uri)
    with contextlib.ExitStack() as stack:
        if uses_ray(experiment):  # before anything is created: it may be missing or too small
            have = open_cluster(stack, experiment, address, progress.tell)
            if not starts:
                PoolPlanner(spec, have).plan()
        with directory.new_folder(experiment.output, experiment.name) as folder:
            held = {**partition_summary(spec.data), "primary": spec.primary_metric}
            directory.save_partition(held, folder)
            save_provenance(spec, folder)
            resume_checks.begin(
                folder,
                "run",
                config,
                code_of(experiment),
                data=spec.data.fingerprint,
                partition=spec.data.partition_fingerprint,
                origins=dict(spec.data.origins),
            )
        return _run_to_end(spec, folder, address, progress)


def resume(
    folder: Path,
    *,
    address: str | None = None,
    progress: Progress | bool | None = None,
    plugins: Sequence[str] = (),
    other_cpu: bool = False,
    other_code: bool = False,
    rounds: int | None = None,
) -> Result:
    """Continue an interrupted run to the same bits, or return the result of a finished one.

    Parameters
    ----------
    folder : Path
        The run's folder.
    address : str, optional
        As in `run`.
    progress : Progress, optional
        As in `run`.
    plugins : sequence of str
        Your files that replace those that the settings name; see
        `flray.runs.resume_checks.load_config`.
    other_cpu : bool
        Resume even if this CPU, or the GPUs here, compute other bits than those the run started on.
    other_code : bool
        Resume even if the code is not the one that it began with; see `flray.runs.resume_checks.check_code`.
    rounds : int, optional
        Another number of rounds than it began with, as many as are done at least, to the bits of a
        run that had as many from the start.

    Raises
    ------
    FlrayError
        If the run's files are damaged, its CPU, GPUs, data, code or settings have changed, another process
        runs it, or what it has learnt depends on the number of rounds it began with.
    """
    forget_of_user()
    config = resume_checks.load_config(folder, plugins)
    progress = shown(progress, RunProgress)
    address = _cluster(config.experiment, address, progress)
    written = config.experiment.rounds
    if rounds is not None:
        config = resume_checks.as_begun(folder, config)
    resume_checks.check_unchanged(folder, config)
    before = config.experiment.rounds
    if rounds is not None:
        config = resume_checks.extended(folder, config, rounds)
    experiment = config.experiment
    other = not experiment.rounds == before == written
    if directory.read(folder)["status"] == "finished" and not other:
        return _result(folder, build_spec(experiment))
    resume_checks.check_own(folder, config)
    check(experiment.tracking.uri)
    bits.require(experiment)
    with resume_checks.held(folder):
        labels = resume_checks.check_code(folder, code_of(experiment), other_code)
        labels |= resume_checks.check_cpu(folder, other_cpu)
        spec = build_spec(experiment)
        if other:
            resume_checks.check_extendable(spec, before)
            # From here on it is an interrupted run of as many rounds, whose models go on learning.
            directory.save_config(folder, config)
            (folder / directory.FINAL_DIAGNOSTICS).unlink(missing_ok=True)
            settings = resume_checks.settings_text(config, "run")
            directory.update(folder, status="interrupted", sha256=None, settings=settings)
            labels = {**labels, "rounds.extended": f"{before} to {experiment.rounds}"}
    return _run_to_end(spec, folder, address, progress, labels, other_cpu)


def _cluster(experiment: Experiment, address: str | None, progress: Progress) -> str | None:
    """Return the address of the cluster to join, which only an experiment on Ray may have."""
    if uses_ray(experiment):
        return chosen_address(address, progress.tell)
    if address is not None:
        raise FlrayError(
            f"--address {address}: resources.executor is {experiment.resources.executor}, which runs all "
            "clients in this process; set it to ray, or leave the address out"
        )
    return None


def _run_to_end(
    spec: FederationSpec,
    folder: Path,
    address: str | None,
    progress: Progress,
    labels: Mapping[str, str] | None = None,
    other_gpus: bool = False,
) -> Result:
    experiment, metric = spec.config, spec.primary_metric
    with resume_hint(folder), contextlib.ExitStack() as stack:
        if remote := directory.remote_uri(folder, experiment.output):
            stack.enter_context(mirrored(folder, remote, progress.tell))
        session = RunSession(
            folder,
            experiment,
            name=f"{experiment.name} {folder.name}",
            tags={},
            params=dict(directory.flatten_settings(experiment.model_dump(mode="json"))),
            labels=labels,
        )
        stack.callback(session.journal.close)
        record_data(session.journal, partition_summary(spec.data))
        uri, every = experiment.tracking.uri, experiment.tracking.every or 1
        stack.enter_context(
            tracking(folder, uri, progress.tell, iter(()), patience=20.0, every=every)
        )
        stack.enter_context(recording_failure(session))
        try:
            digest = _federate(spec, session, address, progress, other_gpus)
        finally:
            progress.end()
        try:
            draw_figures(folder, session.journal, metric)
        except (OSError, ValueError) as error:
            progress.tell(f"the figures could not be drawn: {error}")
        if experiment.tracking.model:
            from flray.runs.export import save_mlflow_models  # torch.fx, which no other run needs

            save_mlflow_models(folder, session.journal, progress.tell)
        session.journal.tags({"model.sha256": digest, NOTE: _note(spec, session)})
        # The description last: a run killed just before is resumed and closed rather than taken
        # for finished.
        session.end("finished", sha256=digest)
    return _result(folder, spec)


def _note(spec: FederationSpec, session: RunSession) -> str:
    """Return the description that MLflow shows of a run: what it was, and its values, as Markdown."""
    config, metric = spec.config, spec.primary_metric
    settings = config.evaluation
    reported = summarise_history(
        session.journal.history(), metric, settings.protocol, settings.last
    )
    values = {
        name: value for name, value in reported.values.items() if name.rpartition("/")[0] in VIEWS
    }
    return "\n".join(
        [
            f"{config.algorithm.name} on {config.data.name}: {len(spec.data.clients)} clients, {config.rounds} rounds; "
            f"{metric} {reported.values.get(metric, math.nan):.4f} ({reported.text})"
            + (f"; {POSITIVE}: {spec.data.positive}" if spec.data.positive is not None else ""),
            "",
            "| metric | value |",
            "|:--|--:|",
            *(f"| {name} | {value:.4f} |" for name, value in values.items()),
        ]
    )


def _federate(
    spec: FederationSpec,
    session: RunSession,
    address: str | None,
    progress: Progress,
    other_gpus: bool,
) -> str:
    """Run the remaining rounds and return the digest."""
    with contextlib.ExitStack() as stack:
        if uses_ray(spec.config):
            # Imported here: Ray takes two seconds, which a run without it saves.
            from flray.federation.ray_backend.handle import RayFederation

            have = open_cluster(stack, spec.config, address, progress.tell)
            plan = PoolPlanner(spec, have, own_node(), held_by_others()).plan()
            progress.tell(str(plan))
            if address is not None and plan.lacks_gpus(spec.config):
                progress.tell(NO_GPU_NOW)
            federation: Federation | RayFederation = RayFederation(spec, plan, progress.tell)
        else:
            federation = inline_federation(spec, progress.tell)
        stack.callback(federation.close)
        gpus = federation.gpus()
        if told := spec.check_gpus(gpus):
            progress.tell(told)
        if differs := resume_checks.check_gpus(session.folder, gpus, other_gpus):
            progress.tell(differs)
            session.journal.tags({"gpu.other": differs})
        recorder = RoundRecorder(
            session.journal,
            spec.config,
            name=f"{spec.config.name} {session.folder.name}",
            group="",
            metric=spec.primary_metric,
            say=progress.tell,
        )
        try:
            digest = RoundLoop(spec, federation, recorder, progress).run()
        except BaseException as error:
            recorder.end(status_after(error))
            raise
        recorder.end("finished")
        return digest


def _result(folder: Path, spec: FederationSpec) -> Result:
    history = history_of(read_events(folder))
    digest, metric = directory.read(folder).get("sha256"), spec.primary_metric
    if metric not in history or digest is None:
        raise FlrayError(
            f"{folder}: found {'no ' + metric if digest else 'no sha256'} in the files of a finished run; restore "
            f"{directory.JOURNAL} and run.json, or start a new run"
        )
    return Result(
        folder=folder, history=history, sha256=str(digest), metric=metric, experiment=spec.config
    )
