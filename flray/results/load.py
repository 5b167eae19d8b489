"""What a report is made of: trials with their settings and histories, from a folder or from MLflow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flray.config.arms import PREFIX
from flray.config.paper import PaperTable
from flray.config.setting_labels import flatten_setting, setting_label
from flray.config.shapes import read_json, read_partition
from flray.errors import FlrayError
from flray.federation.diagnostics import FINAL_DIAGNOSTICS, PARTITION
from flray.runs import directory
from flray.runs.journal import history_of, read_events
from flray.tuning.trial_store import TUNE, checkpoints, trial_folders


@dataclass
class Trial:
    """One run.

    Attributes
    ----------
    number : str
        Its name within the report.
    setting : dict
        What differs between trials, one value per column.
    seed : int
        The repetition.
    status : str
        finished, stopped (early), failed, running, waiting.
    metric : str
        The method's own measure, for example ``personal/local/accuracy``; empty where it never
        ended a round.
    history : DataFrame
        Column ``round``, then one per metric.
    method : str
        The registered name.
    folder : Path
        Where its other files lie.
    failure : str
        Why it failed, in one line.
    sha256 : str
        Digest of everything learnt, empty where it has not finished.
    versions : dict
        Of the packages it was started with.
    fingerprints : dict
        SHA-256 of its ``data`` and ``partition``, as far as they were tracked.
    """

    number: str
    setting: dict[str, Any]
    seed: int
    status: str
    metric: str
    history: pd.DataFrame
    method: str
    folder: Path
    failure: str = ""
    sha256: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)

    @property
    def view(self) -> str:
        """``global`` or ``personal``: the models that the method is judged by."""
        return self.metric.partition("/")[0] or "global"

    @cached_property
    def partition(self) -> dict[str, Any] | None:
        """Who holds what; None where it was not kept."""
        path = self.folder / PARTITION
        if not path.is_file():
            return None
        return read_partition(path)

    @property
    def domains(self) -> dict[str, str]:
        """The domain of each client, in the order of the federation; empty where it was not kept."""
        return {
            client["name"]: client["domain"] for client in (self.partition or {}).get("clients", ())
        }

    def portrait(self, name: str = FINAL_DIAGNOSTICS) -> dict[str, NDArray[Any]]:
        """Return the arrays kept of the models, empty where there are none."""
        path = self.folder / name
        if not path.is_file():
            return {}
        with np.load(path, allow_pickle=False) as found:
            return {key: found[key] for key in found.files}


@dataclass
class ResultSet:
    """A sweep or run as a report sees it.

    Attributes
    ----------
    name : str
        The experiment's name.
    trials : list of Trial
        In order.
    config : dict
        The resolved configuration of the whole.
    versions : dict
        Of the packages.
    where : str
        Folder or address.
    """

    name: str
    trials: list[Trial]
    config: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    where: str = ""

    @cached_property
    def paper(self) -> PaperTable | None:
        """The table that is made again, if the sweep says so."""
        section = self.config.get("paper")
        return PaperTable.model_validate(section) if section else None

    @property
    def axes(self) -> dict[str, list[str]]:
        """Arms by axis, those of ``sweep.only`` where it has a say, in the order of the file."""
        given: Mapping[str, Mapping[str, Any]] = self.config.get("arms") or {}
        only = (self.config.get("sweep") or {}).get("only") or {}
        return {axis: list(only.get(axis, one)) for axis, one in given.items()}

    @property
    def last(self) -> int:
        """Rounds in the mean of the last rounds."""
        return int(self.config["experiment"]["evaluation"]["last"])

    @property
    def protocol(self) -> str:
        """Which rounds of a run count: last, best (on validation), mean-last."""
        return str(self.config["experiment"]["evaluation"].get("protocol", "last"))

    def varying(self) -> list[str]:
        """Return the columns of the settings that differ."""
        names = dict.fromkeys(name for trial in self.trials for name in trial.setting)
        return [
            name
            for name in self.in_order(names)
            if len({str(trial.setting.get(name)) for trial in self.trials}) > 1
        ]

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Return columns of settings as the file has them: arms, then the space, then the rest."""
        first = [*(f"{PREFIX}{axis}" for axis in self.axes), *(self.config.get("space") or {})]
        return sorted(names, key=lambda name: first.index(name) if name in first else len(first))

    def label(self, trial: Trial, without: str = "") -> str:
        """Return a trial's setting in a few words, `without` one column."""
        flat = {
            name: trial.setting[name]
            for name in self.varying()
            if name in trial.setting and name != without
        }
        return setting_label(flat) or ("" if without else trial.method)


def load_folder(folder: Path) -> ResultSet:
    """Return what lies in the folder of a sweep or of a run.

    Raises
    ------
    FlrayError
        If it is neither, or nothing in it has ended a round.
    """
    config = directory.read_config(folder)
    identity = directory.read(folder)
    trials = (
        list(_trials(folder))
        if directory.folder_kind(folder) == "sweep"
        else [_run(folder, config, identity)]
    )
    if not any(len(trial.history) for trial in trials):
        raise FlrayError(f"{folder}: no round has ended here yet, so there is nothing to report")
    return ResultSet(
        str(config["experiment"]["name"]),
        trials,
        config,
        dict(identity.get("versions", {})),
        str(folder),
    )


def _trials(folder: Path) -> Iterator[Trial]:
    for trial in trial_folders(folder):
        identity = trial.identity
        config = directory.read_config(trial.path)
        yield _trial(
            trial.path,
            trial.number,
            flatten_setting(identity.get("setting_at_end") or identity["setting"]),
            config,
            identity,
        )


def _run(folder: Path, config: Mapping[str, Any], identity: Mapping[str, Any]) -> Trial:
    return _trial(
        folder, folder.name, {}, config, {"seed": config["experiment"]["seed"], **identity}
    )


def _trial(
    folder: Path,
    number: str,
    setting: dict[str, Any],
    config: Mapping[str, Any],
    identity: Mapping[str, Any],
) -> Trial:
    history = history_of(read_events(folder / directory.JOURNAL))
    method = str(config["experiment"]["algorithm"]["name"])
    return Trial(
        number,
        setting,
        int(identity["seed"]),
        str(identity["status"]),
        str(identity.get("metric") or primary_metric_of(method, history)),
        history,
        method,
        folder,
        str(identity.get("failure") or "").split("\n")[0],
        str(identity.get("sha256") or ""),
        dict(identity.get("versions", {})),
        fingerprints(folder, identity),
    )


def fingerprints(folder: Path, identity: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of a run's data and partition.

    Parameters
    ----------
    folder : Path
        The run's.
    identity : mapping
        What its ``run.json`` holds: of a single run the fingerprints too. Those of trials are kept
        beside who holds what, and, in sweeps of earlier versions, with the last checkpoint alone.
    """
    held = folder / PARTITION
    noted = (
        read_json(held, {}, {"fingerprints": dict}).get("fingerprints") if held.is_file() else None
    )
    sweep = folder.parent.parent
    if noted is None and "data" not in identity and (sweep / TUNE).is_dir():
        last = next(iter(checkpoints(str(sweep / TUNE), folder.name)), None)
        manifest = Path(last.uri) / f"round-{last.round:06d}.json" if last is not None else None
        if manifest is not None and manifest.is_file():
            noted = read_json(manifest, {})
    found = noted if noted is not None else identity
    return {part: str(found[part]) for part in ("data", "partition") if part in found}


def primary_metric_of(method: str, history: pd.DataFrame) -> str:
    """Return the measure a method is judged by, from what it declares and what was measured."""
    from flray import registry

    views = (
        registry.algorithms.get(method).views
        if method in registry.algorithms.names()
        else ("global",)
    )
    start = "global/common/" if views[0] == "global" else "personal/local/"
    names = [
        str(name)
        for name in history.columns
        if str(name).startswith(start) and str(name).count("/") == 2
    ]
    return next((name for name in names if not name.endswith("/loss")), names[0] if names else "")
