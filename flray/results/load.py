"""Read a result set from the folder of a sweep or of a run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd

from flray import registry
from flray.config.arms import flatten_setting
from flray.config.shapes import read_partition
from flray.errors import FlrayError
from flray.files.border import MAPPING, read_json
from flray.metrics.names import ALIKE, PRIMARY_VIEWS, is_validation
from flray.metrics.summary import Protocol
from flray.records import directory
from flray.records.directory import PARTITION
from flray.records.journal import history_of, read_events
from flray.results.question import registered_question
from flray.results.result_set import COMPARISON, ResultSet, Trial
from flray.runs.code import code_notes


def load_folder(folder: Path, *, allow_empty: bool = False) -> ResultSet:
    """Read the folder of a sweep or of a run.

    Parameters
    ----------
    folder : Path
        The folder of the sweep or run.
    allow_empty : bool
        Whether to accept a sweep without any finished round.

    Raises
    ------
    FlrayError
        If it is neither a sweep nor a run, or has no finished round.
    """
    config = directory.read_config(folder)
    identity = directory.read(folder)
    tuning: list[Trial] = []
    registered: dict[str, str] = {}
    if directory.folder_kind(folder) == "sweep":
        found = sorted((folder / "trials").glob("*/run.json"), key=_trial_order)
        every = [_load_trial(path.parent) for path in found]
        trials = [trial for trial in every if trial.phase == COMPARISON]
        tuning = [trial for trial in every if trial.phase != COMPARISON]
        registered = registered_question(identity.get("settings", {}))
    else:
        seed = config["experiment"]["seed"]
        trials = [_trial(folder, folder.name, {}, config, {"seed": seed, **identity})]
    if not allow_empty and not any(len(trial.history) for trial in trials):
        raise FlrayError(f"{folder}: no round has ended here yet, so there is nothing to report")
    return ResultSet(
        str(config["experiment"]["name"]),
        trials,
        config,
        dict(identity.get("versions", {})),
        str(folder),
        tuning,
        code_notes(folder),
        registered,
    )


def _trial_order(file: Path) -> tuple[int, str]:
    return len(file.parent.name), file.parent.name


def _load_trial(folder: Path) -> Trial:
    identity = directory.read_trial(folder)
    if identity.get("setting_at_end"):
        raise FlrayError(
            f"{folder}: found a trial of population based training, whose settings changed while it "
            "ran; flray 0.2 reads only trials with the same settings throughout: report it with the "
            "version that ran it"
        )
    setting = flatten_setting(identity["setting"])
    tuned: dict[str, Any] = {}
    if "compared" in identity:
        # What is compared bears its own name; what was chosen for it stands apart.
        flat = flatten_setting(identity["compared"])
        tuned = {name: value for name, value in setting.items() if name not in flat}
        setting = flat
    found = _trial(folder, folder.name, setting, directory.read_config(folder), identity)
    phase, repetition = str(identity.get("phase", COMPARISON)), int(identity.get("repetition", 0))
    return replace(found, tuned=tuned, phase=phase, repetition=repetition)


def _trial(
    folder: Path,
    number: str,
    setting: dict[str, Any],
    config: Mapping[str, Any],
    identity: Mapping[str, Any],
) -> Trial:
    history = history_of(read_events(folder / directory.JOURNAL))
    method = str(config["experiment"]["algorithm"]["name"])
    evaluation = config["experiment"]["evaluation"]
    metric, chosen_by = str(identity.get("metric") or ""), ""
    if is_validation(metric):
        metric, chosen_by = "", metric
    return Trial(
        number,
        setting,
        int(identity["seed"]),
        str(identity["status"]),
        metric or find_primary_metric(method, history),
        history,
        method,
        folder,
        cast(Protocol, evaluation.get("protocol", "last")),
        int(evaluation["last"]),
        str(identity.get("failure") or ""),
        str(identity.get("sha256") or ""),
        dict(identity.get("versions", {})),
        read_fingerprints(folder, identity),
        str(identity.get("taken_over") or ""),
        chosen_by,
    )


def read_fingerprints(folder: Path, identity: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of a run's data and partition.

    Parameters
    ----------
    folder : Path
        The run's.
    identity : mapping
        The content of its ``run.json``, which holds them for a single run. Those of trials stand in
        ``partition.json``, and, in sweeps of earlier versions, only in the last checkpoint.
    """
    partition = folder / PARTITION
    found: Mapping[str, Any] | None = None
    if partition.is_file():
        found = read_partition(partition).get("fingerprints")
    if found is None and "data" not in identity:
        sessions = folder.parent.parent / "tune"
        manifests = list(sessions.glob(f"*/{folder.name}/*/round-*.json"))
        if manifests:
            newest = max(manifests, key=lambda path: (path.name, path.parts))
            found = read_json(newest, MAPPING)
    found = identity if found is None else found
    return {part: str(found[part]) for part in ("data", "partition") if part in found}


def find_primary_metric(method: str, history: pd.DataFrame) -> str:
    """Return a method's primary metric, according to its declarations and the measured metrics."""
    known = method in registry.algorithms.names()
    views = registry.algorithms.outline(method).views if known else ("global",)
    first = PRIMARY_VIEWS[views[0]]
    if views[0] == "global" and not any(str(name).startswith(f"{first}/") for name in history):
        first = ALIKE[0]  # clients had statistics of their own
    names = [
        str(name)
        for name in history.columns
        if str(name).startswith(f"{first}/") and str(name).count("/") == 2
    ]
    return next((name for name in names if not name.endswith("/loss")), names[0] if names else "")
