"""A result set as data frames: a row per trial, and a row per setting with means over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from flray.metrics.direction import is_share
from flray.metrics.names import TEST_VIEWS, VIEWS
from flray.metrics.summary import summarise_history
from flray.results.build_table import client_columns
from flray.results.measures import client_measure, client_quantiles
from flray.results.result_set import ResultSet, Trial

CLIENT, OVER_CLIENTS = "client/", "clients/"
"""What columns of a client begin with, and of a quantile over the clients."""
TEST = "test"
"""The column of what is reported where the score is a validation value."""


def trial_frame(data: ResultSet) -> pd.DataFrame:
    """Return one row per trial; for the columns see `flray.results.sweep.SweepResult.results`."""
    rows = [_trial_row(trial) for trial in data.trials]
    views = dict.fromkeys(name for row in rows for name in row["views"])
    clients = dict.fromkeys(name for row in rows for name in row["clients"])
    apart = any(trial.chosen_by for trial in data.trials)
    quantiles = client_columns(data)[1]
    return pd.DataFrame(
        {
            "trial": trial.number,
            **{name: trial.setting.get(name) for name in data.settings},
            "seed": trial.seed,
            "status": trial.status,
            "rounds": len(trial.history),
            "score": row["score"],
            **({TEST: row[TEST]} if apart else {}),
            "metric": trial.score_metric or None,
            **{name: row["views"].get(name, math.nan) for name in views},
            **{name: row["clients"].get(name, math.nan) for name in clients},
            **{f"{OVER_CLIENTS}{name}": row["quantiles"].get(name, math.nan) for name in quantiles},
            "seconds": row["seconds"],
            "sha256": trial.sha256 or None,
            "failure": trial.failure or None,
        }
        for trial, row in zip(data.trials, rows, strict=True)
    )


def curve_frame(data: ResultSet) -> pd.DataFrame:
    """Return one row per trial and round; for the columns see `flray.results.sweep.SweepResult.curves`."""
    parts = []
    for trial in data.trials:
        named = [
            name
            for name in map(str, trial.history)
            if name in ("score", "train/loss") or name.rpartition("/")[0] in VIEWS
        ]
        if not len(trial.history):
            continue
        part = trial.history[["round", *named]].copy()
        before = {
            "trial": trial.number,
            **{name: trial.setting.get(name) for name in data.settings},
        }
        for place, (name, value) in enumerate({**before, "seed": trial.seed}.items()):
            part.insert(place, name, value)
        parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _trial_row(trial: Trial) -> dict[str, Any]:
    """Return the measured parts of a trial's row."""
    history, measure = trial.history, trial.measure
    values = summarise_history(history, trial.metric, trial.protocol, trial.last).values
    scope = "others" if client_measure(trial).startswith("others/") else "local"
    clients = f"{trial.view}/{scope}/{measure}/client/"
    return {
        "score": values.get(trial.score_metric, math.nan),
        TEST: values.get(trial.metric, math.nan),
        "seconds": float(history["time/round"].sum()) if "time/round" in history else 0.0,
        "views": {name: values[name] for v in TEST_VIEWS if (name := f"{v}/{measure}") in values},
        "quantiles": _as_tracked(trial, client_quantiles(trial)),
        "clients": {
            f"{CLIENT}{name.removeprefix(clients)}": value
            for name, value in values.items()
            if measure and name.startswith(clients)
        },
    }


def _as_tracked(trial: Trial, values: Mapping[str, float]) -> dict[str, float]:
    """Return shares between 0 and 1, as all columns have them."""
    factor = 0.01 if is_share(trial.metric) else 1.0
    return {name: factor * value for name, value in values.items()}


def setting_frame(
    trials: pd.DataFrame, settings: list[str], mode: str, population: bool, clients: bool = True
) -> pd.DataFrame:
    """Return one row per setting, best first; see `flray.results.sweep.SweepResult.summary`.

    Parameters
    ----------
    trials : DataFrame
        As `trial_frame` returns it.
    settings : list of str
        Its columns that are settings.
    mode : {"max", "min"}
        Whether the score is better high or low.
    population : bool
        Whether trials are the members of a population, which are no repetitions of each other even
        where their settings are the same.
    clients : bool
        Whether a client is the same at all seeds, so that its values may be averaged.
    """
    columns = ["trial"] if population else settings
    keys = [str([row[name] for name in columns]) for row in trials.to_dict("records")]
    first = [name for name in ("score", TEST) if name in trials.columns]
    kinds = (*TEST_VIEWS, OVER_CLIENTS, *([CLIENT] if clients else []))
    measured = [*first, *(c for c in trials.columns if c.startswith(kinds))]
    rows: list[dict[str, Any]] = []
    for _, group in trials.groupby(pd.Series(keys, index=trials.index), sort=False):
        good = group[group["status"] != "failed"]
        row: dict[str, Any] = {name: group[name].iloc[0] for name in settings}
        row |= {
            "seeds": int(good["score"].notna().sum()),
            "metric": group["metric"].iloc[0],
            "rounds_min": int(good["rounds"].min()) if len(good) else 0,
            "rounds_max": int(good["rounds"].max()) if len(good) else 0,
            "stopped": int((group["status"] == "stopped").sum()),
            "failed": int((group["status"] == "failed").sum()),
        }
        for name in measured:
            row[name] = float(good[name].mean())
            row[f"{name}_std"] = float(good[name].std(ddof=1))
        rows.append(row)
    return pd.DataFrame(rows).sort_values(
        "score", ascending=mode == "min", na_position="last", ignore_index=True, kind="stable"
    )
