"""The result of a sweep: a row per trial, mean and standard deviation over seeds per setting, and the table."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from flray.config import arms
from flray.config.selection import selects_on_test
from flray.config.setting_labels import format_value, setting_label
from flray.config.suites import stand_in_line
from flray.errors import one_line
from flray.metrics.direction import is_share
from flray.metrics.names import TEST_VIEWS, VIEWS
from flray.metrics.summary import summarise_history
from flray.results.build_table import (
    QUANTILE_NOTE,
    build_table,
    choice_notes,
    client_columns,
    group_by_label,
    positive_notes,
    taken_over_notes,
)
from flray.results.choices import tuned_settings
from flray.results.formatting import format_mean_std, rich_table
from flray.results.load import load_folder
from flray.results.measures import client_measure, client_quantiles, clients_stay
from flray.results.result_set import ResultSet, Trial, alike_notes

PROTOCOLS = {
    "last": "",
    "best": ", best round on validation",
    "mean-last": ", mean of the last evaluations",
}
_MAX_FAILURES = 3


class SweepResult:
    """The trials of a sweep's folder.

    Parameters
    ----------
    folder : Path
        The sweep's folder.

    Attributes
    ----------
    folder : Path
        The sweep's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def data(self) -> ResultSet:
        """The trials as they were read."""
        return load_folder(self.folder, allow_empty=True)

    @cached_property
    def results(self) -> pd.DataFrame:
        """One row per trial.

        Columns: ``trial``; the settings; ``seed``, ``status`` (finished, stopped, failed),
        ``rounds``, ``score`` and its ``metric``; if that is a validation metric, ``test``, the
        reported value; the views' means; ``client/NAME``, each client's value in the method's view
        (personal models for personal methods, the global model for the others; on the other clients'
        test data if the metric is); ``seconds`` of training, ``sha256`` of everything learnt,
        ``failure``.
        """
        return trial_frame(self.data)

    @property
    def settings(self) -> list[str]:
        """The columns of `results` that are settings."""
        return self.data.settings

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per setting, best first.

        ``score`` is the mean over the seeds that brought one, ``score_std`` their standard
        deviation (n - 1; NaN for one seed), ``seeds`` how many they are; likewise for each view,
        for each client that is the same at all seeds, and else for the quantiles over clients.
        ``rounds_min`` and ``rounds_max`` differ where some stopped early; ``stopped`` and
        ``failed`` count trials.
        """
        stay = clients_stay(group_by_label(self.data).values())
        return setting_frame(self.results, self.settings, self.mode, stay)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """One row per trial and round, for custom figures.

        Columns: ``trial``; the settings; ``seed``, ``round``; ``score``, ``train/loss`` and the means
        of all views that were measured (NaN in rounds without an evaluation).
        """
        return curve_frame(self.data)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the conclusions, and the settings, best first."""
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in self.conclusions)
        return f"<ul>{lines}</ul>{self.summary.to_html(index=False, float_format='{:.4f}'.format)}"

    @property
    def mode(self) -> str:
        """Whether the score is better high (``max``) or low (``min``)."""
        return str(self.data.config["sweep"]["mode"])

    @property
    def best(self) -> dict[str, Any]:
        """Settings, score, standard deviation, test value if that is another, and seeds of the best."""
        first = self.summary.iloc[0]
        names = ("score", "score_std", *([TEST] if TEST in first else []), "seeds")
        return {name: first[name] for name in (*self.settings, *names)}

    @property
    def uri(self) -> str | None:
        """The tracking address of the sweep."""
        uri = self.data.config["experiment"]["tracking"]["uri"]
        return None if uri is None else str(uri)

    @property
    def all_failed(self) -> bool:
        """Whether not one trial brought a result."""
        return bool((self.results["status"] == "failed").all())

    @property
    def metrics(self) -> list[str]:
        """The metrics that are scores."""
        return sorted(set(self.results["metric"].dropna()))

    def history(self, trial: str) -> pd.DataFrame:
        """Return the rounds of one trial: column ``round``, then one per metric."""
        return next(one.history for one in self.data.trials if one.number == trial)

    def label(self, row: pd.Series[Any]) -> str:
        """Return the label of a row: the settings that vary."""
        flat = {name: row[name] for name in self._varying if not _missing(row[name])}
        return setting_label(flat) or self.data.trials[0].method

    @cached_property
    def conclusions(self) -> list[str]:
        """The conclusions, one sentence each; see `flray.results.conclusions`."""
        ended = any(len(trial.history) for trial in self.data.trials)
        return build_table(self.data).conclusions if ended else []

    def scores(self) -> dict[str, list[float]]:
        """Return the scores of the seeds of each setting by its label, best setting first."""
        found: dict[str, list[float]] = {self.label(row): [] for _, row in self.summary.iterrows()}
        for _, row in self.results.dropna(subset="score").iterrows():
            found.setdefault(self.label(row), []).append(float(row["score"]))
        return {label: scores for label, scores in found.items() if scores}

    def failures(self) -> list[str]:
        """Return one line per kind of failure: numbers, settings, seeds, and the first error."""
        trials: dict[str, list[str]] = {}
        for _, row in self.results[self.results["status"] == "failed"].iterrows():
            reason = one_line(str(row["failure"]).split("\n")[0])
            name = f"{row['trial']} ({self.label(row)} seed={row['seed']})"
            trials.setdefault(reason, []).append(name)
        return [
            f"trial{'s' if len(names) > 1 else ''} {', '.join(names[:_MAX_FAILURES])}"
            f"{f' and {len(names) - _MAX_FAILURES} more' if len(names) > _MAX_FAILURES else ''} "
            f"failed: {reason}"
            for reason, names in trials.items()
        ]

    def table(self) -> Table:
        """Return the table of the settings, best first: mean ± standard deviation over seeds, in percent."""
        summary, share = self.summary, self._is_share
        names, quantiles = client_columns(self.data)
        clients = [f"{CLIENT}{name}" for name in names]
        clients += [f"{OVER_CLIENTS}{name}" for name in quantiles]
        clients = [column for column in clients if column in summary]
        title = (
            f"{self.data.name}: {' or '.join(self.metrics)}{', %' if share else ''}, "
            f"mean ± std over seeds{PROTOCOLS[self.data.protocol]}"
        )
        numbers = ["score", *([TEST] if TEST in summary else []), *clients]
        heads = [
            *(("validation", TEST) if TEST in summary else ("score",)),
            *(c.partition("/")[2] for c in clients),
            "seeds",
            "rounds",
        ]
        left = [name.removeprefix(arms.PREFIX) for name in self._varying] or ["algorithm"]
        table = rich_table(
            title, left, [[head] for head in heads], "\n".join(self._notes(bool(names)))
        )
        factor, digits = (100.0, 2) if share else (1.0, 4)
        for _, row in summary.iterrows():
            cells = [
                "" if _missing(row[name]) else format_value(row[name]) for name in self._varying
            ] or [self.label(row)]
            cells += [
                format_mean_std(factor * row[n], factor * row[f"{n}_std"], digits, missing="-")
                for n in numbers
            ]
            low, high = row["rounds_min"], row["rounds_max"]
            rounds = str(high) if low == high else f"{low}-{high}"
            cells += [str(row["seeds"]), f"{rounds} *" if row["stopped"] else rounds]
            table.add_row(*map(Text, cells))
        return table

    def _notes(self, with_clients: bool) -> list[str]:
        table = self.results
        stopped = table[table["status"] == "stopped"]
        config = self.data.config
        notes = list(filter(None, [stand_in_line(config), selects_on_test(config)]))
        notes += [one.line for one in tuned_settings(self.data)]
        notes += [
            *positive_notes(self.data),
            *choice_notes(self.data),
            *taken_over_notes(self.data),
        ]
        if len(stopped):
            low, high = int(stopped["rounds"].min()), int(stopped["rounds"].max())
            span = f"{low}" if low == high else f"{low} to {high}"
            notes.append(
                f"* {len(stopped)} of {len(table)} trials stopped early, after {span} "
                f"round{'s' if high > 1 else ''}"
            )
        notes += alike_notes(trial.metric for trial in self.data.trials)
        if with_clients and any(metric.startswith("global/") for metric in self.metrics):
            notes.append(
                "per client: the global model for methods with one, the client's own for the others"
            )
        if client_columns(self.data)[1]:
            notes.append(QUANTILE_NOTE)
        return notes + self.failures()

    @property
    def _varying(self) -> list[str]:
        return self.data.varying(ignore_missing=True)

    @property
    def _is_share(self) -> bool:
        """Whether the score is a share between 0 and 1, which is shown in percent."""
        scores = self.summary["score"].dropna()
        within = bool(((scores >= 0) & (scores <= 1)).all())
        return within and all(map(is_share, self.metrics))


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


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
    trials: pd.DataFrame, settings: list[str], mode: str, clients: bool = True
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
    clients : bool
        Whether a client is the same at all seeds, so that its values may be averaged.
    """
    keys = [str([row[name] for name in settings]) for row in trials.to_dict("records")]
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
