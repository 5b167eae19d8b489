"""The trials of a sweep, or a single run, with their settings and histories: what everything renders.

Their provenance is settings, code and machine of a run, each once beside the kept rows, by its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from flray.config.arms import PREFIX, format_value, setting_label
from flray.config.experiment import is_place, may_change
from flray.config.sweep import PaperTable
from flray.errors import DataError, FlrayError
from flray.files import read_json, read_npz
from flray.files.tracking_address import redact
from flray.metrics import (
    ALIKE,
    PRIMARY_VIEWS,
    Protocol,
    ReportedRounds,
    is_lower_better_in,
    reported_rounds,
)
from flray.records import directory
from flray.runs.code import named

if TYPE_CHECKING:
    from torch import nn


PROVENANCE = ("settings", "code", "machine", "commit")
"""Columns of kept rows: the SHA-256 of three entries of the file beside them, and the git commit."""
PLUGINS = "plugins"
Entries = Mapping[str, dict[str, Any]]
Provenance = tuple[dict[str, str], dict[str, dict[str, Any]]]
_Digests = dict[str, str]
_OPEN = ConfigDict(strict=True, extra="allow")


@with_config(_OPEN)
class _Cpu(TypedDict, total=False):
    kinds: _Digests


@with_config(_OPEN)
class _Entry(TypedDict, total=False):
    """The parts of code and machine that are compared; settings are compared as texts."""

    flray: _Digests
    files: _Digests
    versions: _Digests
    cpu: _Cpu
    gpus: list[_Digests]


_FORM = TypeAdapter(dict[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], _Entry])


def digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an entry: its name in rows."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def beside(path: Path) -> Path:
    """Return the file with the entries of a kept file."""
    return path.with_suffix(".provenance.json")


def describe(folder: Path) -> Provenance:
    """Return the columns of a run's provenance, and the entries that they name.

    A column is empty if an older flray wrote the folder.

    Parameters
    ----------
    folder : Path
        The folder of a run or trial.
    """
    if directory.folder_kind(folder) != "run":
        return dict.fromkeys(PROVENANCE, ""), {}
    record = directory.read(folder)
    found: dict[str, Any] = {
        "settings": deciding_settings(directory.read_config(folder)["experiment"]),
        "code": named(record.get("code") or {}),
        "machine": {
            name: record[name]
            for name in ("cpu", "gpus", "other_cpus", "other_gpus")
            if record.get(name)
        },
    }
    others = [named(one) for one in record.get("other_code") or ()]
    found["code"] |= {"others": others} if others else {}
    entries = {digest(one): one for one in found.values() if one}
    columns = {name: digest(one) if one else "" for name, one in found.items()}
    commit = record.get("source", {}).get("commit", "")
    commit = commit if re.fullmatch("[0-9a-f]{40}([0-9a-f]{24})?", commit) else ""
    return {**columns, "commit": commit}, entries


def deciding_settings(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide the bits of a run, without its seed, which is a column of its row.

    Of an address, and of a path that leads out of the current folder, only the last part remains.

    Parameters
    ----------
    experiment : mapping
        The resolved settings, as plain values.
    """

    def kept(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        found = {}
        for name, value in tree.items():
            path = f"{prefix}{name}"
            if isinstance(value, Mapping) and value:
                if part := kept(value, f"{path}."):
                    found[name] = part
            elif not may_change(path) and path != "seed":
                found[name] = _plain(value)
        return found

    plugins = [Path(name).name for name in experiment.get(PLUGINS) or ()]
    return kept(experiment, "") | ({PLUGINS: plugins} if plugins else {})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        path = Path(redact(value))
        leads_away = path.is_absolute() or ".." in path.parts or value.startswith("~")
        return path.name if leads_away or "://" in value else value
    return value


def read_entries(path: Path) -> dict[str, dict[str, Any]]:
    """Return the entries beside a kept file, by their SHA-256; without the file, none.

    Raises
    ------
    DataError
        If it holds something else, or an entry has another SHA-256.
    """
    file = beside(path)
    if not os.path.lexists(file):
        return {}
    try:
        entries: dict[str, Any] = read_json(file, _FORM)
    except FlrayError as error:
        raise DataError(str(error)) from None
    for name, content in entries.items():
        if digest(content) != name:
            raise DataError(
                f"{file}: the entry {name[:12]} is not what was kept (SHA-256); restore the file"
            )
    return entries


def entries_text(entries: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return the content of the file beside a kept one, a line per entry."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(entries[name], sort_keys=True)}"
        for name in sorted(entries)
    )
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


COMPARISON = "comparison"
"""The phase of trials that are compared."""
ALIKE_NOTE = "global models are tested as clients' own ones are: on each client's test part, mean over clients"
ENDED = ("finished", "stopped", "failed")
"""Values of `Trial.status` of trials that are over."""


@dataclass
class Trial:
    """One run.

    Attributes
    ----------
    number : str
        Its name within the sweep.
    setting : dict
        The varied settings, one value per column.
    seed : int
        The repetition.
    status : str
        finished, stopped (early), failed, running, waiting.
    metric : str
        The reported metric: the method's primary metric, for example ``personal/local/accuracy``, or
        the test metric that ``sweep.metric`` names; empty if the run never ended a round.
    history : DataFrame
        Column ``round``, then one per metric.
    method : str
        The registered name.
    folder : Path
        Holds its other files.
    protocol : {"last", "best", "mean-last"}
        The rounds whose values are reported.
    last : int
        Rounds in the mean of the last ones.
    failure : str
        The reason of a failure.
    sha256 : str
        Digest of everything learnt; empty if the run has not finished.
    versions : dict
        The versions of the packages that it started with.
    fingerprints : dict
        SHA-256 of its ``data`` and ``partition``, as far as they were tracked.
    taken_over : str
        The trial of another sweep that it was copied from; empty if it was run.
    chosen_by : str
        The validation metric that settings are chosen by; empty if they are chosen by `metric`.
    phase : str
        ``comparison``, or ``tuning`` if it helps to choose the compared settings.
    tuned : dict
        Settings that were tuned for the unit of `setting`.
    repetition : int
        The number of the tuning that it is part of, or whose choice it has, from 0.
    look : int
        The number of looks at others before it was added.
    partition : mapping, optional
        The content of ``partition.json``; None if it was not tracked.
    planned : int
        The rounds that it ends after, or earlier by ``experiment.stop``; 0 if they are not known.
    sweep : mapping
        The settings of ``sweep``, whose ``mode`` may say that less of the metric is better.
    """

    number: str
    setting: dict[str, Any]
    seed: int
    status: str
    metric: str
    history: pd.DataFrame
    method: str
    folder: Path
    protocol: Protocol = "last"
    last: int = 5
    failure: str = ""
    sha256: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    taken_over: str = ""
    chosen_by: str = ""
    phase: str = COMPARISON
    tuned: dict[str, Any] = field(default_factory=dict)
    repetition: int = 0
    look: int = 1
    partition: Mapping[str, Any] | None = None
    planned: int = 0
    sweep: Mapping[str, Any] = field(default_factory=dict)

    @property
    def score_metric(self) -> str:
        """The metric that settings are chosen by."""
        return self.chosen_by or self.metric

    @property
    def view(self) -> str:
        """``global`` or ``personal``: the models that the method is judged by."""
        return self.metric.partition("/")[0] or "global"

    @property
    def lower(self) -> bool:
        """Whether less of the reported metric is better."""
        return is_lower_better_in(self.sweep, self.metric)

    @property
    def measure(self) -> str:
        """The measure of the primary metric, for example ``accuracy``."""
        return self.metric.rpartition("/")[2]

    @cached_property
    def provenance(self) -> Provenance:
        """The settings, code and machine that it was run with."""
        return describe(self.folder)

    @cached_property
    def reported(self) -> ReportedRounds:
        """The rounds whose values are reported; a history does not change once it is loaded."""
        return reported_rounds(self.history, self.metric, self.protocol, self.last, self.lower)

    def model(self, client: str | None = None) -> nn.Module:
        """Return the trained model of the last round, as `flray.runs.runner.Result.model` does."""
        from flray.runs.models import trained_model  # which imports torch

        return trained_model(self.folder, client)

    @cached_property
    def values(self) -> dict[tuple[str, str], float]:
        """A cache of reported values by measure and client, see `flray.results.measures.value`."""
        return {}

    @property
    def positive(self) -> str:
        """The positive class of a task of two classes; empty for other tasks, or if it was not tracked."""
        binary = any("/sensitivity" in str(name) for name in self.history)
        return str((self.partition or {}).get("positive", "")) if binary else ""

    @property
    def domains(self) -> dict[str, str]:
        """The domain of each client, in the order of the federation; empty if it was not tracked."""
        return {
            client["name"]: client["domain"] for client in (self.partition or {}).get("clients", ())
        }

    def diagnostics(self, name: str = directory.FINAL_DIAGNOSTICS) -> dict[str, NDArray[Any]]:
        """Return the saved diagnostics of the models; empty if none were saved."""
        path = self.folder / name
        return read_npz(path) if path.exists() else {}


def alike(metrics: Sequence[str]) -> list[str]:
    """Return the metrics to report runs by, so that they can be compared with each other.

    The primary metric of a global model is its value on the common test set, so that clients count by
    their samples. The primary metric of clients' models is the mean over clients. If both are
    compared, the global model is also tested on each client's part, and the mean over clients is used.

    Parameters
    ----------
    metrics : sequence of str
        The primary metric of each run.
    """
    personal = {one.rpartition("/")[2] for one in metrics if one.rpartition("/")[0] in ALIKE}
    swapped = {f"{PRIMARY_VIEWS['global']}/{name}": f"{ALIKE[0]}/{name}" for name in personal}
    return [swapped.get(one, one) for one in metrics]


def judge_alike(*groups: Sequence[Trial]) -> list[list[Trial]]:
    """Return trials by metrics that may be compared with each other over all groups, see `alike`."""
    metrics = iter(alike([trial.metric for group in groups for trial in group]))
    return [
        [
            trial if (metric := next(metrics)) == trial.metric else replace(trial, metric=metric)
            for trial in group
        ]
        for group in groups
    ]


def alike_notes(metrics: Iterable[str]) -> list[str]:
    """Return a note where global models are reported as clients' own ones are, see `alike`."""
    return [ALIKE_NOTE] if {one.rpartition("/")[0] for one in metrics} >= set(ALIKE) else []


@dataclass
class ResultSet:
    """The trials of a sweep, or a single run.

    Attributes
    ----------
    name : str
        The experiment's name.
    trials : list of Trial
        The trials, in order.
    config : dict
        The resolved configuration of the sweep or run.
    versions : dict
        The versions of the packages.
    where : str
        Folder or address of the results.
    tuning : list of Trial
        Those that only helped to choose what `trials` compare.
    notes : list of str
        Lines on the code, see `flray.runs.code.code_notes`, or on kept rows.
    registered : dict
        Of a sweep, the settings that made up its question at its start, as text by their path.
    """

    name: str
    trials: list[Trial]
    config: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    where: str = ""
    tuning: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    registered: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Set those apart that only helped to choose, and have all judged on the same test data."""
        self.tuning = [*self.tuning, *(one for one in self.trials if one.phase != COMPARISON)]
        compared = [one for one in self.trials if one.phase == COMPARISON]
        self.trials, self.tuning = judge_alike(compared, self.tuning)

    @property
    def metric(self) -> str:
        """The metrics that its runs are reported by, in words."""
        return " or ".join(sorted({trial.metric for trial in self.trials if trial.metric}))

    @cached_property
    def paper(self) -> PaperTable | None:
        """The printed table that is reproduced, if the sweep names one."""
        section = self.config.get("paper")
        return PaperTable.model_validate(section) if section else None

    @property
    def axes(self) -> dict[str, list[str]]:
        """Arms by axis, as far as ``sweep.only`` keeps them, in the order of the file."""
        given: Mapping[str, Mapping[str, Any]] = self.config.get("arms") or {}
        only = (self.config.get("sweep") or {}).get("only") or {}
        return {axis: list(only.get(axis, one)) for axis, one in given.items()}

    @property
    def rows(self) -> str:
        """The axis whose arms are the rows of the table; empty without arms."""
        given: Mapping[str, Mapping[str, Any]] = self.config.get("arms") or {}
        named = [self.paper.rows] if self.paper is not None else []
        named += [
            axis
            for axis, arms in given.items()
            if not any(is_place(path) for arm in arms.values() for path in arm or ())
        ]
        return next((axis for axis in (*named, *given) if axis in given), "")

    @property
    def settings(self) -> list[str]:
        """The columns of all settings, in order."""
        return self.in_order({name for trial in self.trials for name in trial.setting})

    @cached_property
    def varying(self) -> list[str]:
        """The columns of the settings that differ; settings do not change once they are loaded."""
        return [
            name
            for name in self.settings
            if len({str(trial.setting.get(name)) for trial in self.trials}) > 1
        ]

    @cached_property
    def exact(self) -> frozenset[str]:
        """The columns of settings with values that four digits do not keep apart."""
        values: dict[str, set[Any]] = {}
        for trial in (*self.trials, *self.tuning):
            for name, value in trial.setting.items():
                values.setdefault(name, set()).add(str(value) if isinstance(value, list) else value)
        return frozenset(n for n, v in values.items() if len({*map(format_value, v)}) < len(v))

    def name_of(self, flat: Mapping[str, Any]) -> str:
        """Return the label of settings, which is another one for each."""
        return setting_label(flat, self.exact)

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Return columns of settings as the file has them: arms, of the table's rows first, the space, the rest."""
        axes = sorted(self.axes, key=lambda axis: axis != self.rows)
        paths = [f"{PREFIX}{axis}" for axis in axes]
        paths += [
            path.removeprefix("experiment.").removesuffix(".name")
            for path in self.config.get("space") or {}
        ]

        def key(name: str) -> tuple[int, str]:
            parts = name.split(".")
            prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
            place = (paths.index(prefix) for prefix in prefixes if prefix in paths)
            return next(place, len(paths)), name

        return sorted(names, key=key)

    def label(self, trial: Trial, without: str = "") -> str:
        """Return the label of a trial's varying settings, `without` one column."""
        flat = {
            name: trial.setting[name]
            for name in self.varying
            if name in trial.setting and name != without
        }
        return self.name_of(flat) or ("" if without else trial.method)
