"""Read a result set from the folder of a sweep or of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from flray.config.arms import flatten_setting
from flray.errors import FlrayError
from flray.metrics import AUTO, Protocol, find_primary_metric, is_validation, score_metric
from flray.records import directory, history_of, read_events, read_partition
from flray.results import COMPARISON, ResultSet, Trial
from flray.results.study import registered_question
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
    registered: dict[str, str] = {}
    if directory.folder_kind(folder) == "sweep":
        found = [file.parent for file in (folder / "trials").glob("*/run.json")]
        found.sort(key=lambda trial: (len(trial.name), trial.name))
        trials = [_load_trial(one, config.get("sweep") or {}) for one in found]
        registered = registered_question(identity.get("settings", {}))
    else:
        known = {"seed": config["experiment"]["seed"], **identity, "phase": COMPARISON}
        trials = [_trial(folder, folder.name, {}, {}, config, known)]
    source = ResultSet(
        str(config["experiment"]["name"]),
        trials,
        config,
        dict(identity.get("versions", {})),
        str(folder),
        registered=registered,
    )
    if not allow_empty and not any(len(one.history) for one in (*source.trials, *source.tuning)):
        raise FlrayError(f"{folder}: no round has ended here yet, so there is nothing to report")
    source.notes = code_notes(folder)
    return source


def _load_trial(folder: Path, sweep: Mapping[str, Any]) -> Trial:
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
    config = {**directory.read_config(folder), "sweep": sweep}
    return _trial(folder, folder.name, setting, tuned, config, identity)


def _trial(
    folder: Path,
    number: str,
    setting: dict[str, Any],
    tuned: dict[str, Any],
    config: Mapping[str, Any],
    identity: Mapping[str, Any],
) -> Trial:
    """Return a trial by its record, and by the sweep's settings, which name its metric before it ends."""
    experiment = config["experiment"]
    history = history_of(read_events(folder / directory.JOURNAL))
    file = folder / directory.PARTITION
    partition = read_partition(file) if file.is_file() else None
    held = identity  # a single run's fingerprints are in its own record
    if partition is not None:
        held = {**identity, **partition.get("fingerprints", {})}
    method, evaluation = str(experiment["algorithm"]["name"]), experiment["evaluation"]
    phase = str(identity.get("phase", COMPARISON))
    recorded = "" if partition is None else partition.get("primary", "")
    primary = recorded if recorded in history else find_primary_metric(method, map(str, history))
    sweep = config.get("sweep") or {}
    asked = sweep if phase == COMPARISON else sweep.get("tune") or sweep
    score = score_metric(asked.get("metric", AUTO), primary)
    metric = str(identity.get("metric") or (score if score in history else ""))
    chosen_by = metric if is_validation(metric) else ""
    return Trial(
        number,
        setting,
        int(identity["seed"]),
        str(identity["status"]),
        primary if chosen_by else metric,
        history,
        method,
        folder,
        cast(Protocol, evaluation.get("protocol", "last")),
        int(evaluation["last"]),
        str(identity.get("failure") or ""),
        str(identity.get("sha256") or ""),
        dict(identity.get("versions", {})),
        {part: str(held[part]) for part in ("data", "partition") if part in held},
        str(identity.get("taken_over") or ""),
        chosen_by,
        phase,
        tuned,
        int(identity.get("repetition", 0)),
        0 if identity.get("taken_over") else 1,
        partition,
        int(experiment["rounds"]),
        sweep,
    )
