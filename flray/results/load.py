"""Read a result set: from the folder of a sweep or of a run, or from MLflow."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pandas as pd

from flray import registry
from flray.config.arms import PREFIX, flatten_setting
from flray.errors import FlrayError, explained
from flray.files import MAPPING, check_name
from flray.files.tracking_address import database_path, redact, resolve_uri
from flray.metrics import ALIKE, AUTO, PRIMARY_VIEWS, Protocol, is_validation, score_metric
from flray.records import (
    FIRST,
    PHASE,
    REPETITION,
    TUNED,
    VARIED,
    directory,
    history_of,
    read_events,
    read_partition,
)
from flray.results import COMPARISON, ResultSet, Trial
from flray.results.study import registered_question
from flray.runs.code import code_notes
from flray.tracking import client as tracking


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
    if not allow_empty and not any(len(trial.history) for trial in source.trials):
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
    tracked: pd.DataFrame | None = None,
) -> Trial:
    """Return a trial by its record, and by the sweep's settings, which name its metric before it ends.

    Its history is in its journal unless it was tracked elsewhere.
    """
    experiment = config["experiment"]
    history = history_of(read_events(folder / directory.JOURNAL)) if tracked is None else tracked
    file = folder / directory.PARTITION
    partition = read_partition(file) if file.is_file() else None
    held = identity  # a single run's fingerprints are in its own record
    if partition is not None:
        held = {**identity, **partition.get("fingerprints", {})}
    method, evaluation = str(experiment["algorithm"]["name"]), experiment["evaluation"]
    phase = str(identity.get("phase", COMPARISON))
    recorded = "" if partition is None else partition.get("primary", "")
    primary = recorded if recorded in history else find_primary_metric(method, history)
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


def find_primary_metric(method: str, history: pd.DataFrame) -> str:
    """Return a method's primary metric, according to its declarations and the measured metrics.

    A run that an older flray began did not record it.
    """
    known = method in registry.algorithms.names()
    view = registry.algorithms.outline(method).views[0] if known else "global"
    # Clients may have had statistics of their own, and a method in a plug-in is not known here.
    for first in (PRIMARY_VIEWS[view], *ALIKE):
        names = [name for name in map(str, history.columns) if name.rpartition("/")[0] == first]
        if names:
            return next((name for name in names if not name.endswith("/loss")), names[0])
    return ""


_PARENT, _KIND, _VERSION = "mlflow.parentRunId", "flray.kind", "version."
_TAGS = {
    "failure": "failure",
    "sha256": "model.sha256",
    "taken_over": "taken_over",
    "phase": PHASE,
    "repetition": REPETITION,
    **{part: f"{part}.fingerprint" for part in ("data", "partition")},
}
"""Parts of a trial's record, and the tags that have them."""
_SKIPPED = ("train/seconds", "train/loss/client", "memory/server")


def load_mlflow(uri: str, what: str, folder: Path) -> ResultSet:
    """Read a tracked sweep or run from MLflow.

    Parameters
    ----------
    uri : str
        MLflow's address.
    what : str
        The id of a run, or the name of an experiment, which means its newest sweep (or else run).
    folder : Path
        The folder for fetched files.

    Raises
    ------
    FlrayError
        If the name is unknown, or the server cannot be reached.
    """
    address, shown = resolve_uri(uri), redact(uri)
    database = database_path(address)
    if database is not None and not database.is_file():
        raise FlrayError(
            f"{shown}: there is no database {database}; give the one that runs were tracked in"
        )

    def read() -> tuple[Any, dict[str, Any], list[Trial]]:
        client = tracking.connect(address)
        run = _find(client, what)
        children = _trials(client, run) if run.data.tags.get(_KIND) == "sweep" else [run]
        config = _config(client, run.info.run_id, folder)
        return (run, config, [_tracked(client, child, folder, config) for child in children])

    try:
        with tracking.http_limits(), tracking.silence_mlflow_logs():
            run, config, trials = tracking.call(address, read)
    except tracking.TrackingUnavailableError as error:
        raise FlrayError(f"tracking at {shown}: {error}") from None
    trials.sort(key=lambda trial: trial.number)
    source = ResultSet(
        str(config["experiment"]["name"]),
        trials,
        config,
        _versions(run.data.tags),
        f"{shown} run {run.info.run_id}",
        registered=registered_question(run.data.params),
    )
    if not any(len(trial.history) for trial in source.trials):
        raise FlrayError(
            f"{what} at {shown}: no round has been tracked, so there is nothing to report"
        )
    if fewer := sum(len(one.history) < one.history["round"].max() for one in trials):
        source.notes.append(
            f"MLflow has a part of the rounds of {fewer} runs (tracking.every), and costs, means and the best of "
            "rounds are of these alone; a report from the folder has all"
        )
    return source


def _trials(client: Any, parent: Any) -> list[Any]:
    """Return the trials of a sweep: the runs of its settings stand between it and them."""
    found = client.search_runs(
        [parent.info.experiment_id], f"tags.`{_PARENT}` = '{parent.info.run_id}'", max_results=5000
    )
    settings = [run for run in found if run.data.tags.get(_KIND) == "setting"]
    return [
        *(run for run in found if run.data.tags.get(_KIND) != "setting"),
        *(trial for setting in settings for trial in _trials(client, setting)),
    ]


def _find(client: Any, what: str) -> Any:
    experiment = client.get_experiment_by_name(what)
    if experiment is None:
        with contextlib.suppress(Exception):
            return client.get_run(what)
        names = ", ".join(sorted(one.name for one in client.search_experiments()))
        raise FlrayError(f"no MLflow experiment or run {what!r}; experiments: {names or 'none'}")
    for wanted in ("tags.`flray.kind` = 'sweep'", ""):
        runs = client.search_runs(
            [experiment.experiment_id],
            wanted,
            max_results=1,
            order_by=["attributes.start_time DESC"],
        )
        if runs:
            return runs[0]
    raise FlrayError(f"the MLflow experiment {what!r} has no runs")


def _config(client: Any, run: str, folder: Path) -> dict[str, Any]:
    with explained(
        Exception,
        f"run {run}: its {directory.CONFIG} was not tracked, which a report needs",
        "a run that is still under way has none yet: report from its folder",
        FlrayError,
    ):
        path = client.download_artifacts(run, directory.CONFIG, str(_create(folder, run)))
    return directory.read_config(Path(path).parent)


def _tracked(client: Any, run: Any, folder: Path, config: Mapping[str, Any]) -> Trial:
    data, place = run.data, _create(folder, run.info.run_id)
    for name in (directory.PARTITION, directory.INITIAL_DIAGNOSTICS, directory.FINAL_DIAGNOSTICS):
        with contextlib.suppress(Exception):
            client.download_artifacts(run.info.run_id, name, str(place))
    method = data.params.get("algorithm.name", data.params.get("algorithm", ""))
    experiment = {**config["experiment"], "algorithm": {"name": method}}
    experiment["rounds"] = _own(run, "rounds", experiment["rounds"])
    experiment["evaluation"] = {
        name: _own(run, f"evaluation.{name}", experiment["evaluation"].get(name, default))
        for name, default in (("protocol", "last"), ("last", 5))
    }
    setting, names = _varied(run, config), data.tags.get(TUNED, "").split(",")
    tuned = {key: value for key, value in setting.items() if key in names}
    known = {
        "seed": data.params.get("seed", 0),
        "status": data.tags.get("trial.status") or run.info.status.lower(),
        "versions": _versions(data.tags),
    }
    known |= {name: data.tags[tag] for name, tag in _TAGS.items() if tag in data.tags}
    return _trial(
        place,
        data.tags.get("trial", run.info.run_name),
        {key: value for key, value in setting.items() if key not in names},
        tuned,
        {**config, "experiment": experiment},
        known,
        _history(client, run.info.run_id, data.metrics),
    )


def _own(run: Any, name: str, default: Any) -> Any:
    """Return a trial's own value of a setting, a text or a whole number."""
    text = run.data.params.get(name, str(default))
    if isinstance(default, str):
        return text
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise FlrayError(
            f"run {run.info.run_id}: its parameter {name} is {text[:40]!r}, which is not a number; "
            "report from the sweep's folder"
        )
    return int(text)


def _varied(run: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's values of the settings that differ between trials."""
    if (text := run.data.tags.get(VARIED)) is not None:
        try:
            return flatten_setting(MAPPING.validate_json(text))
        except ValueError:
            raise FlrayError(
                f"run {run.info.run_id}: its tag {VARIED} is {text[:40]!r}, which is not a complete "
                "JSON mapping of settings; report from the sweep's folder"
            ) from None
    # An older flray recorded them as second parameters, and in text.
    axes, params = config.get("arms") or (), run.data.params.items()
    found = {key.removeprefix(FIRST): value for key, value in params if key.startswith(FIRST)}
    return {f"{PREFIX}{key}" if key in axes else key: value for key, value in found.items()}


def _versions(tags: Mapping[str, str]) -> dict[str, str]:
    return {
        key.removeprefix(_VERSION): value for key, value in tags.items() if key.startswith(_VERSION)
    }


def _history(client: Any, run: str, metrics: Mapping[str, float]) -> pd.DataFrame:
    """Return the rounds of a run."""
    columns = {
        name: {point.step: point.value for point in client.get_metric_history(run, name)}
        for name in metrics
        if not name.startswith(_SKIPPED)
    }
    table = pd.DataFrame(columns).sort_index()
    table.insert(0, "round", table.index)
    return table.reset_index(drop=True)


def _create(folder: Path, run: str) -> Path:
    """Return the folder of a run's files, whose id the server chose."""
    place = folder / check_name(run, "the tracking server")
    place.mkdir(parents=True, exist_ok=True)
    return place
