"""The result of a sweep: its table, in a paper's form or a row per setting, and rows per trial, setting and round."""

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import RenderableType

from flray.config.experiment import selects_on_test
from flray.config.suites import SMOKE, stand_in_line
from flray.errors import FlrayError
from flray.metrics import TEST_VIEWS, VIEWS, is_lower_better_in
from flray.results import ENDED, ResultSet, Trial, alike_notes, measures
from flray.results.build_studies import build_studies, measure_of, place_and_name, place_of
from flray.results.choices import tuning_lines
from flray.results.conclusions import conclude
from flray.results.formatting import terminal
from flray.results.load import load_folder
from flray.results.study import question_lines
from flray.results.table import Cell, Column, Table, build_paper_table
from flray.results.variance import variances

SMOKE_NOTE = "a smoke run: two short rounds on a few samples show that every method runs; its numbers mean nothing"
_QUANTILE_NOTE = (
    "median client, 10 % and 90 % of clients: quantiles over the clients of a run, then the mean over "
    "the seeds; so many of the clients have a lower value"
)


_MAX_FAILURES = 3


def build_table(source: ResultSet, reference: str | None = None) -> Table:
    """Return the table of a sweep; if the sweep belongs to a paper, in the paper's form.

    Parameters
    ----------
    source : ResultSet
        The sweep.
    reference : str, optional
        The setting that all others are compared with; default: ``sweep.reference``, without which
        all pairs are compared.

    Raises
    ------
    FlrayError
        If the setting does not exist.
    """
    paper = source.paper if source.axes else None
    table = _setting_table(source) if paper is None else build_paper_table(source, paper)
    is_smoke, chosen = source.name.endswith(SMOKE), selects_on_test(source.config)
    # The class that sensitivity, F1 and so on are about, where the task is binary.
    positive = dict.fromkeys(trial.positive for trial in source.trials if trial.positive)
    encodings = dict.fromkeys((trial.partition or {}).get("encoding") for trial in source.trials)
    apart = _chosen_by(source)
    choice = (
        f"settings are chosen by {apart}; test is what is reported of them, at the seeds that they "
        "were chosen at (sweep.tune compares what it chose at seeds of its own)"
    )
    table.notes = [
        *([SMOKE_NOTE] if is_smoke else []),
        *filter(None, [stand_in_line(source.config)]),
        *table.notes,
        *([chosen] if chosen else [choice] if apart else []),
        *(alike_notes(trial.metric for trial in source.trials) if paper is None else []),
        *tuning_lines(source),
        *([f"positive class: {' or '.join(positive)}"] if positive else []),
        *(f"data: {one}" for one in encodings if one),
        *_seed_notes(table),
        *_protocol_notes(source),
        *_status_notes(source),
    ]
    if is_smoke:
        table.title += " (smoke run)"
        table.conclusions = ["nothing can be concluded from a smoke run"]
        return table
    _compare(table, source, reference)
    where = {source.label(one): place_and_name(source, one) for one in source.trials}
    winners = {(study.place, study.measure, study.winner) for study in table.studies.each}
    for label, row in table.rows.items():
        for cell, column in zip(row, table.columns, strict=True):
            place, name = where[label] if paper is None else (place_of(column), label)
            compared_as = place, measure_of(column, source.metric), name
            cell.best = column.compared and compared_as in winners
    return table


def _compare(table: Table, source: ResultSet, reference: str | None) -> None:
    """Add the conclusions; if the file's reference fits no setting, a note reports it and all pairs are compared."""
    found = build_studies(source)
    named = (source.config.get("sweep") or {}).get("reference")
    try:
        if reference is None:
            found = found.against(named, "sweep.reference")
    except FlrayError as error:
        table.notes.append(f"{error}; all pairs are compared")
    table.studies = found.against(reference, "--reference")
    table.variances = list(variances(source, table.studies))
    table.conclusions = [*conclude(table.studies), *question_lines(source, table.studies)]


def _setting_table(source: ResultSet) -> Table:
    """Return a row per setting, best first, and a column per client unless there are many.

    Settings that stopped early come after those that ran to their end, and rows without a number last.
    """
    measured = [trial for trial in source.trials if trial.metric]
    metric = source.metric
    names, quantiles = client_columns(source)
    apart = _chosen_by(source)
    columns = [Column(("validation",), "chosen")] if apart else []
    columns += [Column(("test" if apart else "score",), "auto", compared=True)]
    columns += [Column((name,), "clients", name) for name in names]
    columns += [Column((name,), "quantile", name) for name in quantiles]
    # Where models are judged on the other clients' data, how they do on their own is the other half
    # of the answer.
    if any(measures.client_measure(trial).startswith("others/") for trial in measured):
        columns.append(Column((f"own {measures.AVERAGE}",), "own"))
    for view, head in (("global/unseen", "unseen"), ("adapted/unseen", "unseen adapted")):
        if any(f"{view}/{trial.measure}" in trial.history for trial in measured):
            columns.append(Column((head,), f"{view}/*"))
    table = Table(f"{source.name}: {metric}", "setting", columns)
    for trial in source.trials:
        row = table.rows.setdefault(source.label(trial), [Cell() for _ in columns])
        if trial.status != "failed" and len(trial.history):
            for cell, one in zip(row, columns, strict=True):
                cell.values[trial.seed] = measures.value(trial, one.measure, one.client)
    table.columns = [
        replace(one, measure=apart if one.measure == "chosen" else metric) for one in columns
    ]
    lower = is_lower_better_in(source.config.get("sweep"), table.columns[0].measure)
    sign = 1.0 if lower else -1.0
    early = {source.label(trial) for trial in source.trials if trial.status == "stopped"}

    def place(item: tuple[str, list[Cell]]) -> tuple[bool, bool, float]:
        mean = item[1][0].mean
        return math.isnan(mean), item[0] in early, sign * mean

    table.rows = dict(sorted(table.rows.items(), key=place))
    table.notes += [_QUANTILE_NOTE] if quantiles else []
    return table


def client_columns(source: ResultSet) -> tuple[list[str], list[str]]:
    """Return the clients that get a column each, or else the quantiles over them.

    Clients get columns if they are few, and each is the same at every seed of a setting.

    Parameters
    ----------
    source : ResultSet
        The sweep.
    """
    measured = [trial for trial in source.trials if trial.metric]
    names = list(dict.fromkeys(name for trial in measured for name in measures.clients(trial)))
    stay = measures.clients_stay(source)
    if not names or (stay and len(names) <= measures.MAX_CLIENTS):
        return names, []
    return [], list(measures.QUANTILES)


def _chosen_by(source: ResultSet) -> str:
    """Return the metrics that settings are chosen by, if these are not the reported ones."""
    return " or ".join(sorted({trial.chosen_by for trial in source.trials if trial.chosen_by}))


def _seed_notes(table: Table) -> list[str]:
    """Return notes on rows and cells that lack seeds which others have."""
    most = max((len(cell.values) for cell in table.cells), default=0)
    notes = []
    for label, row in table.rows.items():
        counts = [len(cell.values) for cell in row]
        if len(set(counts)) == 1 and 0 < counts[0] < most:
            notes.append(f"{label}: {counts[0]} of {most} seeds")
        elif len(set(counts)) > 1:
            notes += [
                f"{label} · {' '.join(column.head)}: {count} of {most} seeds"
                for column, count in zip(table.columns, counts, strict=True)
                if 0 < count < most
            ]
    return notes


def _protocol_notes(source: ResultSet) -> list[str]:
    evaluation = source.config["experiment"]["evaluation"]
    ways = {
        "mean-last": f"mean of the last {evaluation.get('last')} evaluated rounds",
        "best": "round of the best mean validation value, the last where there is none",
    }
    way = ways.get(evaluation.get("protocol", "last"))
    return [f"value of a run: {way}"] if way else []


def _status_notes(source: ResultSet) -> list[str]:
    """Return notes on trials that failed, were taken over or stopped, or have not ended."""
    trials, total = source.trials, len(source.trials)
    by_sweep = [trial for trial in trials if trial.status == "stopped"]
    by_rule = [
        trial for trial in trials if trial.status == "finished" and _rounds(trial) < trial.planned
    ]
    running = [trial for trial in trials if trial.status not in ENDED]
    sweeps = [trial.taken_over.rpartition("/")[0] for trial in trials if trial.taken_over]
    notes = _failures(source)
    if sweeps:
        names = ", ".join(dict.fromkeys(sweeps))
        notes.append(f"{len(sweeps)} of {total} trials were taken over from {names}")
    notes += source.notes
    for early, how in ((by_sweep, "stopped early"), (by_rule, "ended by experiment.stop")):
        if early:
            low, high = min(map(_rounds, early)), max(map(_rounds, early))
            span = f"{low} round{'s' * (low > 1)}" if low == high else f"{low} to {high} rounds"
            after = f", after {span}" * bool(high)  # kept rows have none of them
            notes.append(f"{len(early)} of {total} trials {how}{after}")
    if running:
        notes.append(f"{len(running)} of {total} trials have not ended: the table is not complete")
    return notes + [
        f"not ended, counted with what it has reached: {source.label(trial)} seed {trial.seed}, "
        f"round {int(trial.history['round'].max())}"
        for trial in running
        if len(trial.history)
    ]


def _rounds(trial: Trial) -> int:
    return int(trial.history["round"].max()) if len(trial.history) else 0


def _failures(source: ResultSet) -> list[str]:
    """Return one line per kind of failure: numbers, settings, seeds, and the first error."""
    trials: dict[str, list[str]] = {}
    for one in source.trials:
        if one.status == "failed":
            name = f"{one.number} ({source.label(one)} seed={one.seed})".strip()
            trials.setdefault(one.failure.partition("\n")[0], []).append(name)
    return [
        f"trial{'s' * (len(names) > 1)} {', '.join(names[:_MAX_FAILURES])}"
        f"{f' and {len(names) - _MAX_FAILURES} more' if len(names) > _MAX_FAILURES else ''} "
        f"failed{f': {reason}' * bool(reason)}"
        for reason, names in trials.items()
    ]


CLIENT, OVER_CLIENTS = "client/", "clients/"
"""What columns of a client begin with, and of a quantile over the clients."""
TEST = "test"
"""The column of what is reported where the score is a validation value."""


class SweepResult:
    """The trials of a sweep's folder; iterating yields each as a `flray.results.Trial`.

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
        data = self.data
        trials = data.trials
        views = [
            (f"{view}/{trial.measure}", measures.AVERAGE) for trial in trials for view in TEST_VIEWS
        ]
        names = dict.fromkeys(name for trial in trials for name in measures.clients(trial))
        over = measures.QUANTILES if client_columns(data)[1] else ()
        measured = {
            **{measure: (measure, client) for measure, client in views},
            **{f"{CLIENT}{name}": ("clients", name) for name in names},
            **{f"{OVER_CLIENTS}{name}": ("quantile", name) for name in over},
        }
        values = {
            column: [measures.tracked_value(trial, *what) for trial in trials]
            for column, what in measured.items()
        }
        apart = [measures.tracked_value(trial, "auto") for trial in trials]
        return pd.DataFrame(
            {
                **_identities(data, trials),
                "status": [trial.status for trial in trials],
                "rounds": [len(trial.history) for trial in trials],
                "score": [measures.tracked_value(trial, "chosen") for trial in trials],
                **({TEST: apart} if any(trial.chosen_by for trial in trials) else {}),
                "metric": [trial.score_metric or None for trial in trials],
                **{
                    name: column
                    for name, column in values.items()
                    if not all(map(math.isnan, column))
                },
                "seconds": [
                    float(np.nan_to_num(measures.total(trial, "time/round"))) for trial in trials
                ],
                "sha256": [trial.sha256 or None for trial in trials],
                "failure": [trial.failure or None for trial in trials],
            }
        )

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per setting, best first; those that stopped early come after those that ran to their end.

        ``score`` is the mean over the seeds that brought one, ``score_std`` their standard
        deviation (n - 1; NaN for one seed), ``seeds`` how many they are; likewise for each view,
        for each client that is the same at all seeds, and else for the quantiles over clients.
        ``rounds_min`` and ``rounds_max`` differ where some stopped early; ``stopped`` and
        ``failed`` count trials.
        """
        trials, settings = self.results, self.data.settings
        # A client's values may be averaged if it is the same at all seeds.
        stay = measures.clients_stay(self.data)
        keys = [str(list(row)) for row in trials[settings].itertuples(index=False)]
        first = [name for name in ("score", TEST) if name in trials.columns]
        kinds = (*TEST_VIEWS, OVER_CLIENTS, *([CLIENT] if stay else []))
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
        found = pd.DataFrame(rows)
        score, early = found["score"], found["stopped"] > 0
        sign = 1 if self.data.config["sweep"]["mode"] == "min" else -1
        order = (sign * score, early, score.isna())  # the last one first
        return found.iloc[np.lexsort(order)].reset_index(drop=True)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """One row per trial and round, for custom figures.

        Columns: ``trial``; the settings; ``seed``, ``round``; ``score``, ``train/loss`` and the means
        of all views that were measured (NaN in rounds without an evaluation).
        """
        parts = []
        for trial in self.data.trials:
            names = [str(name) for name in trial.history]
            shown = [
                n for n in names if n in ("score", "train/loss") or n.rpartition("/")[0] in VIEWS
            ]
            if names:
                first = pd.DataFrame(_identities(self.data, [trial]))
                parts.append(first.merge(trial.history[["round", *shown]], how="cross"))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the conclusions, and the settings, best first."""
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in self.conclusions)
        return f"<ul>{lines}</ul>{self.summary.to_html(index=False, float_format='{:.4f}'.format)}"

    @property
    def best(self) -> dict[str, Any]:
        """Settings, score, standard deviation, test value if that is another, and seeds of the best."""
        first = self.summary.iloc[0]
        names = ("score", "score_std", *([TEST] if TEST in first else []), "seeds")
        return {name: first[name] for name in (*self.data.settings, *names)}

    @property
    def best_trials(self) -> list[Trial]:
        """The trials of the best setting, one per seed without failed ones: ``best_trials[0].model()`` is its first."""
        wanted = self.label(self.summary.iloc[0])
        trials = (one for one in self.data.trials if one.metric and one.status != "failed")
        return [one for one in trials if self.data.label(one) == wanted]

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

    def label(self, row: "pd.Series[Any]") -> str:
        """Return the label of a row: the settings that vary."""
        # A trial may lack a setting, and the value of one may be a list.
        flat = {n: row[n] for n in self.data.varying if row[n] is not None and row[n] == row[n]}
        return self.data.name_of(flat) or self.data.trials[0].method

    @property
    def conclusions(self) -> list[str]:
        """The conclusions, one sentence each; see `flray.results.conclusions`."""
        return self.main_table.conclusions

    def table(self) -> RenderableType:
        """Return a terminal's text of the conclusions and the main table, as the report has them."""
        return terminal(self.main_table)


def _identities(data: ResultSet, trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """Return the first columns of a row per trial: number, settings and seed."""
    return {
        "trial": [trial.number for trial in trials],
        **{name: [trial.setting.get(name) for trial in trials] for name in data.settings},
        "seed": [trial.seed for trial in trials],
    }
