"""A sweep's folder: one run folder per trial, all that a resume needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flray.config.experiment import Config
from flray.config.sweep import Sweep
from flray.errors import FlrayError
from flray.files.border import shape_problem
from flray.records import directory
from flray.records.directory import RunStatus
from flray.records.events import read_events
from flray.records.journal import Journal
from flray.records.trial_checkpoints import TRIALS
from flray.runs.code import Code
from flray.runs.session import EndStatus, RunSession
from flray.tuning import naming
from flray.tuning.setting_runs import begin_setting
from flray.tuning.space import TrialSpec, Values, trial_number

RESULTS, SUMMARY, TABLE = "results.csv", "summary.csv", "table.txt"
TERMINAL_STATUSES = ("finished", "stopped")
"""Statuses in run.json of trials that need not run again."""


class TrialFolder:
    """The folder of one trial.

    Parameters
    ----------
    sweep : Path
        The sweep's folder.
    name : str
        The trial's number.
    """

    def __init__(self, sweep: Path, name: str) -> None:
        self.sweep, self.number = sweep, name
        self.path = sweep / TRIALS / name

    def create(
        self,
        point: TrialSpec,
        config: Config,
        identity: Mapping[str, str] | None = None,
        code: Code | None = None,
    ) -> None:
        """Create the folder if missing; ``run.json`` is written last, so a folder with one is complete.

        Parameters
        ----------
        point : TrialSpec
            The trial.
        config : Config
            The sweep.
        identity : mapping, optional
            What the trial is known by, see `flray.runs.identity`. A trial that began under another
            one, as with a plug-in that was changed since, is known by none.
        code : dict, optional
            The code that it is run by; see `flray.runs.identity.code_of`.
        """
        if directory.folder_kind(self.path) is not None:
            held = self.identity
            if held["status"] not in TERMINAL_STATUSES and held.get("identity") != identity:
                began = (self.path / directory.JOURNAL).exists()
                changes = {"identity": None} if began else {"identity": identity, "code": code}
                directory.update(self.path, **changes)
            return
        self.path.mkdir(parents=True, exist_ok=True)
        # Nothing of what lays out the sweep: `flray run` takes the file as it is.
        alone = Sweep(seeds=(point.seed,), metric=config.sweep.metric, mode=config.sweep.mode)
        directory.save_config(self.path, Config(experiment=point.experiment, sweep=alone))
        directory.write(
            self.path,
            "run",
            {
                **directory.new_identity(point.experiment.resources.bits),
                "status": "waiting",
                "number": point.number,
                "setting": point.setting,
                "seed": point.seed,
                "rounds_planned": point.experiment.rounds,
                "phase": point.phase,
                **({} if point.compared is None else {"compared": point.compared}),
                "identity": None if identity is None else dict(identity),
                "code": code,
            },
        )

    @property
    def exists(self) -> bool:
        """Whether it has been created."""
        return (self.path / "run.json").is_file()

    def stop(self) -> None:
        """Record that a paused trial does not continue."""
        if self.status in TERMINAL_STATUSES:
            return
        with Journal(self.path / directory.JOURNAL) as journal:
            journal.tags({"trial.status": "stopped", "stopped_early": "true"})
            journal.end("FINISHED")
        status: RunStatus = "stopped"
        directory.update(self.path, status=status)

    @property
    def identity(self) -> dict[str, Any]:
        """The content of ``run.json``.

        Raises
        ------
        FlrayError
            If it is damaged.
        """
        content = directory.read(self.path)
        if problem := shape_problem(content, {"setting": dict, "seed": int}):
            raise FlrayError(
                f"{self.path / 'run.json'}: {problem}, which is not what was written; restore it"
            )
        return content

    @property
    def settings(self) -> dict[str, Any]:
        """The trial's resolved experiment."""
        content: dict[str, Any] = directory.read_config(self.path)["experiment"]
        return content

    @property
    def status(self) -> RunStatus:
        """waiting, running, finished, stopped (early) or failed."""
        status: RunStatus = self.identity["status"]
        return status

    def begin(self, point: TrialSpec, parent: Mapping[str, Any], sweep: Config) -> RunSession:
        """Start or resume the trial."""
        settings = directory.flatten_settings(point.experiment.model_dump(mode="json"))
        return RunSession(
            self.path,
            point.experiment,
            name=naming.title(point),
            tags={
                **naming.tags(sweep, point.experiment),
                "trial": point.number,
                **naming.phase_tags(point),
                "setting": naming.setting_title(point),
            },
            params={**naming.varied_params(point.setting), **dict(settings)},
            parent=begin_setting(self.sweep, point, parent, sweep),
            failure=None,
        )

    def end(self, session: RunSession, status: EndStatus, **values: Any) -> None:
        """Record the trial's end."""
        tags = {"trial.status": status, "stopped_early": str(status == "stopped").lower()}
        if values.get("sha256"):
            tags["model.sha256"] = values["sha256"]
        if values.get("failure"):
            tags["failure"] = values["failure"].splitlines()[0]
        session.journal.tags(tags)
        session.end(status, **values)

    def rounds_recorded(self) -> int:
        """Return the last round before the journal's first gap."""
        there = {
            event["round"]
            for event in read_events(self.path / directory.JOURNAL)
            if event["type"] == "round"
        }
        return next(round_ for round_ in itertools.count(1) if round_ not in there) - 1

    def scores(self) -> list[tuple[int, float]]:
        """Return round and score of every recorded round."""
        return [
            (event["round"], event["metrics"]["score"])
            for event in read_events(self.path / directory.JOURNAL)
            if event["type"] == "round" and not math.isnan(event["metrics"].get("score", math.nan))
        ]


def trial_folders(sweep: Path) -> list[TrialFolder]:
    """Return the trials' complete folders, in order."""
    found = (path.parent.name for path in (sweep / TRIALS).glob("*/run.json"))
    return [TrialFolder(sweep, name) for name in sorted(found, key=lambda name: (len(name), name))]


def suggested_settings(sweep: Path, seeds: int) -> list[Values]:
    """Return the settings of a sweep's trial folders in order: a search's suggestions before it was killed.

    Raises
    ------
    FlrayError
        If a folder in between is missing.
    """
    settings: list[Values] = []
    for position, folder in enumerate(trial_folders(sweep)):
        if folder.number != trial_number(position):
            raise FlrayError(
                f"{sweep / TRIALS}: the folder of trial {trial_number(position)} is missing; "
                f"restore it"
            )
        if position % seeds == 0:
            settings.append(folder.identity["setting"])
    return settings
