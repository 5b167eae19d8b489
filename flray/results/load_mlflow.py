"""Read a result set from MLflow, where the folder of the sweep is not at hand."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from flray.config.arms import PREFIX
from flray.errors import FlrayError
from flray.files.border import check_name
from flray.files.tracking_address import database_path, redact, resolve_uri
from flray.records import directory
from flray.records.directory import FINAL_DIAGNOSTICS, INITIAL_DIAGNOSTICS, PARTITION
from flray.records.journal import FIRST, PHASE, REPETITION, TUNED
from flray.results.load import find_primary_metric, read_fingerprints
from flray.results.question import registered_question
from flray.results.result_set import COMPARISON, ResultSet, Trial
from flray.tracking.client import (
    InTime,
    TrackingUnavailableError,
    call,
    connect,
    http_limits,
    silence_mlflow_logs,
)

_PARENT, _KIND, _VERSION = "mlflow.parentRunId", "flray.kind", "version."
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
        client = connect(address) if database is not None else InTime(connect(address), address)
        run = _find(client, what)
        children = _trials(client, run) if run.data.tags.get(_KIND) == "sweep" else [run]
        config = _config(client, run.info.run_id, folder)
        return (run, config, [_trial(client, child, folder, config) for child in children])

    try:
        with http_limits(), silence_mlflow_logs():
            run, config, trials = call(address, read)
    except TrackingUnavailableError as error:
        raise FlrayError(f"tracking at {shown}: {error}") from None
    trials.sort(key=lambda trial: trial.number)
    tuning = [trial for trial in trials if trial.phase != COMPARISON]
    trials = [trial for trial in trials if trial.phase == COMPARISON]
    if not any(len(trial.history) for trial in trials):
        raise FlrayError(
            f"{what} at {shown}: no round has been tracked, so there is nothing to report"
        )
    return ResultSet(
        str(config["experiment"]["name"]),
        trials,
        config,
        _versions(run.data.tags),
        f"{shown} run {run.info.run_id}",
        tuning,
        registered=registered_question(run.data.params),
    )


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
    try:
        path = client.download_artifacts(run, directory.CONFIG, str(_create(folder, run)))
    except Exception as error:
        raise FlrayError(
            f"run {run}: its {directory.CONFIG} was not tracked, which a report needs; a run that "
            f"is still "
            "under way has none yet: report from its folder"
        ) from error
    return directory.read_config(Path(path).parent)


def _trial(client: Any, run: Any, folder: Path, config: Mapping[str, Any]) -> Trial:
    data, place = run.data, _create(folder, run.info.run_id)
    for name in (PARTITION, INITIAL_DIAGNOSTICS, FINAL_DIAGNOSTICS):
        with contextlib.suppress(Exception):
            client.download_artifacts(run.info.run_id, name, str(place))
    method = data.params.get("algorithm.name", data.params.get("algorithm", ""))
    history = _history(client, run.info.run_id, data.metrics)
    setting = {
        key.removeprefix(FIRST): value
        for key, value in data.params.items()
        if key.startswith(FIRST)
    }
    axes, evaluation = config.get("arms") or (), config["experiment"]["evaluation"]
    setting = {f"{PREFIX}{key}" if key in axes else key: value for key, value in setting.items()}
    names = data.tags.get(TUNED, "").split(",")
    tuned = {key: value for key, value in setting.items() if key in names}
    setting = {key: value for key, value in setting.items() if key not in names}
    status = data.tags.get("trial.status") or run.info.status.lower()
    return Trial(
        data.tags.get("trial", run.info.run_name),
        setting,
        int(data.params.get("seed", 0)),
        status,
        find_primary_metric(method, history),
        history,
        method,
        place,
        evaluation.get("protocol", "last"),
        int(evaluation["last"]),
        data.tags.get("failure", ""),
        data.tags.get("model.sha256", ""),
        _versions(data.tags),
        read_fingerprints(
            place,
            {
                part: data.tags[f"{part}.fingerprint"]
                for part in ("data", "partition")
                if f"{part}.fingerprint" in data.tags
            },
        ),
        taken_over=data.tags.get("taken_over", ""),
        phase=data.tags.get(PHASE, COMPARISON),
        tuned=tuned,
        repetition=int(data.tags.get(REPETITION, 0)),
    )


def _versions(tags: Mapping[str, str]) -> dict[str, str]:
    return {
        key.removeprefix(_VERSION): value for key, value in tags.items() if key.startswith(_VERSION)
    }


def _history(client: Any, run: str, metrics: Mapping[str, float]) -> pd.DataFrame:
    """Return the rounds of a run."""
    columns: dict[str, dict[int, float]] = {}
    for name in metrics:
        if not name.startswith(_SKIPPED):
            columns[name] = {
                point.step: point.value for point in client.get_metric_history(run, name)
            }
    table = pd.DataFrame(columns).sort_index()
    table.insert(0, "round", table.index)
    return table.reset_index(drop=True)


def _create(folder: Path, run: str) -> Path:
    """Return the folder of a run's files, whose id the server chose."""
    place = folder / check_name(run, "the tracking server")
    place.mkdir(parents=True, exist_ok=True)
    return place
