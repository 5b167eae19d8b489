"""The result of a sweep: a row per trial, mean and standard deviation over seeds per setting, and the table."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import RenderableType

from flray.config.arms import setting_label
from flray.metrics.names import TEST_VIEWS, VIEWS
from flray.results.build_table import build_table, client_columns, group_by_label
from flray.results.formatting import terminal
from flray.results.load import load_folder
from flray.results.measures import AVERAGE, QUANTILES, clients, clients_stay, total, tracked_value
from flray.results.result_set import COMPARISON, ResultSet, Trial
from flray.results.table import Table

CLIENT, OVER_CLIENTS = "client/", "clients/"
"""What columns of a client begin with, and of a quantile over the clients."""
TEST = "test"
"""The column of what is reported where the score is a validation value."""


class SweepResult:
    """The trials of a sweep's folder; iterating yields each as a `flray.results.result_set.Trial`.

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

    def __len__(self) -> int:
        """Return the number of trials."""
        return len(self.data.trials)

    def __iter__(self) -> Iterator[Trial]:
        """Iterate over the trials in their order: setting, seed, history, folder and model."""
        return iter(self.data.trials)

    @cached_property
    def main_table(self) -> Table:
        """The main table, as the report has it."""
        return build_table(self.data)

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
    def best_trials(self) -> list[Trial]:
        """The trials of the best setting, one per seed: ``best_trials[0].model()`` is its first model."""
        wanted = self.label(self.summary.iloc[0])
        return [one for one in group_by_label(self.data).get(wanted, ()) if one.phase == COMPARISON]

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
        flat = {name: row[name] for name in self.data.varying if not _is_missing(row[name])}
        return setting_label(flat) or self.data.trials[0].method

    @property
    def conclusions(self) -> list[str]:
        """The conclusions, one sentence each; see `flray.results.conclusions`."""
        return self.main_table.conclusions

    def scores(self) -> dict[str, list[float]]:
        """Return the scores of the seeds of each setting by its label, best setting first."""
        found: dict[str, list[float]] = {self.label(row): [] for _, row in self.summary.iterrows()}
        for _, row in self.results.dropna(subset="score").iterrows():
            found[self.label(row)].append(float(row["score"]))
        return {label: scores for label, scores in found.items() if scores}

    def table(self) -> RenderableType:
        """Return a terminal's text of the conclusions and the main table, as the report has them."""
        return terminal(self.main_table)


def _is_missing(value: Any) -> bool:
    """Return whether a trial lacks a setting; the value of one may be a list."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def trial_frame(data: ResultSet) -> pd.DataFrame:
    """Return one row per trial; for the columns see `flray.results.sweep.SweepResult.results`."""
    trials = data.trials
    views = [(f"{view}/{trial.measure}", AVERAGE) for trial in trials for view in TEST_VIEWS]
    names = dict.fromkeys(name for trial in trials for name in clients(trial))
    over = QUANTILES if client_columns(data)[1] else ()
    measured = {
        **{measure: (measure, client) for measure, client in views},
        **{f"{CLIENT}{name}": ("clients", name) for name in names},
        **{f"{OVER_CLIENTS}{name}": ("quantile", name) for name in over},
    }
    values = {
        column: [tracked_value(trial, *what) for trial in trials]
        for column, what in measured.items()
    }
    apart = [tracked_value(trial, "auto") for trial in trials]
    return pd.DataFrame(
        {
            **_identities(data, trials),
            "status": [trial.status for trial in trials],
            "rounds": [len(trial.history) for trial in trials],
            "score": [tracked_value(trial, "chosen") for trial in trials],
            **({TEST: apart} if any(trial.chosen_by for trial in trials) else {}),
            "metric": [trial.score_metric or None for trial in trials],
            **{name: column for name, column in values.items() if not all(map(math.isnan, column))},
            "seconds": [float(np.nan_to_num(total(trial, "time/round"))) for trial in trials],
            "sha256": [trial.sha256 or None for trial in trials],
            "failure": [trial.failure or None for trial in trials],
        }
    )


def _identities(data: ResultSet, trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """Return the first columns of a row per trial: number, settings and seed."""
    return {
        "trial": [trial.number for trial in trials],
        **{name: [trial.setting.get(name) for trial in trials] for name in data.settings},
        "seed": [trial.seed for trial in trials],
    }


def curve_frame(data: ResultSet) -> pd.DataFrame:
    """Return one row per trial and round; for the columns see `flray.results.sweep.SweepResult.curves`."""
    parts = []
    for trial in data.trials:
        names = [str(name) for name in trial.history]
        shown = [n for n in names if n in ("score", "train/loss") or n.rpartition("/")[0] in VIEWS]
        if names:
            first = pd.DataFrame(_identities(data, [trial]))
            parts.append(first.merge(trial.history[["round", *shown]], how="cross"))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


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
    keys = [str(list(row)) for row in trials[settings].itertuples(index=False)]
    first = [name for name in ("score", TEST) if name in trials.columns]
    kinds = (*TEST_VIEWS, OVER_CLIENTS, *([CLIENT] if clients else []))
    measured = [*first, *(c for c in trials.columns if c.startswith(kinds))]
    rows = []
    for _, group in trials.groupby(pd.Series(keys, index=trials.index), sort=False):
        good = group[group["status"] != "failed"]
        values = good[measured].astype(float)
        row = {
            **{name: group[name].iloc[0] for name in settings},  # each of its own type
            "seeds": int(good["score"].notna().sum()),
            "metric": group["metric"].iloc[0],
            "rounds_min": int(good["rounds"].min()) if len(good) else 0,
            "rounds_max": int(good["rounds"].max()) if len(good) else 0,
            "stopped": int((group["status"] == "stopped").sum()),
            "failed": int((group["status"] == "failed").sum()),
        }
        for name in measured:
            row |= {name: values[name].mean(), f"{name}_std": values[name].std(ddof=1)}
        rows.append(row)
    return pd.DataFrame(rows).sort_values(
        "score", ascending=mode == "min", na_position="last", ignore_index=True, kind="stable"
    )
