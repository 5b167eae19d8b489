"""Build the table of a sweep: a paper's own beside its printed numbers, or one row per setting."""

from __future__ import annotations

from dataclasses import replace

from flray.config.selection import selects_on_test
from flray.config.suites import SMOKE, stand_in_line
from flray.errors import FlrayError
from flray.results import measures
from flray.results.build_studies import build_studies
from flray.results.choices import tuned_settings
from flray.results.conclusions import conclude
from flray.results.measures import AVERAGE, client_measure
from flray.results.result_set import ENDED, ResultSet, Trial, alike_notes
from flray.results.study import variances
from flray.results.table import Cell, Column, Table, build_paper_table

SMOKE_NOTE = "a smoke run: two short rounds on a few samples show that every method runs; its numbers mean nothing"
_UNSEEN = {"global/unseen": "unseen", "adapted/unseen": "unseen adapted"}
QUANTILE_NOTE = (
    "median client, 10 % and 90 % of clients: quantiles over the clients of a run, then the mean over "
    "the seeds; so many of the clients have a lower value"
)


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
    table.mark_best()
    chosen = selects_on_test(source.config)
    table.notes += [chosen] if chosen else choice_notes(source)
    if paper is None:
        table.notes += alike_notes(trial.metric for trial in source.trials)
    table.notes += [one.line for one in tuned_settings(source)] + positive_notes(source)
    table.notes += [*_seed_notes(table), *_protocol_notes(source), *_status_notes(source)]
    if source.name.endswith(SMOKE):
        table.title += " (smoke run)"
        table.notes[:0] = [SMOKE_NOTE, *filter(None, [stand_in_line(source.config)])]
        table.conclusions = ["nothing can be concluded from a smoke run"]
    else:
        _compare(table, source, reference)
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
    table.variances = variances(source)
    table.conclusions = conclude(table.studies)


def _setting_table(source: ResultSet) -> Table:
    """Return a row per setting, best first, and a column per client unless there are many."""
    measured = [trial for trial in source.trials if trial.metric]
    metric = " or ".join(sorted({trial.metric for trial in measured}))
    names, quantiles = client_columns(source)
    apart = any(trial.chosen_by for trial in source.trials)
    columns = [Column(("validation",), "chosen")] if apart else []
    columns += [Column(("test" if apart else "score",), "auto", follows=apart)]
    columns += [Column((name,), "client", name) for name in names]
    columns += [Column((name,), "quantile", name) for name in quantiles]
    # Where models are judged on the other clients' data, how they do on their own is the other half
    # of the answer.
    if any(client_measure(trial).startswith("others/") for trial in measured):
        columns.append(Column((f"own {AVERAGE}",), "own"))
    for view, head in _UNSEEN.items():
        if any(f"{view}/{trial.measure}" in trial.history for trial in measured):
            columns.append(Column((head,), view))
    rows: dict[str, list[Cell]] = {}
    for trial in source.trials:
        row = rows.setdefault(source.label(trial), [Cell() for _ in columns])
        if trial.status == "failed" or not len(trial.history):
            continue
        by_kind = {
            "auto": "auto",
            "chosen": trial.chosen_by or "auto",
            "client": client_measure(trial),
            "own": client_measure(trial, own=True),
            **{view: f"{view}/{trial.measure}" for view in _UNSEEN},
        }
        over = measures.client_quantiles(trial) if quantiles else {}
        for cell, column in zip(row, columns, strict=True):
            if column.measure == "quantile":
                cell.values[trial.seed] = over[column.client]
                continue
            measure = by_kind[column.measure]
            cell.values[trial.seed] = measures.value(trial, measure, column.client)
    columns = [replace(column, measure=metric, follows=column.follows) for column in columns]
    table = Table(f"{source.name}: {metric}", "setting", columns, rows)
    table.sort_rows()
    if quantiles:
        table.notes.append(QUANTILE_NOTE)
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
    stay = measures.clients_stay(group_by_label(source).values())
    if not names or (stay and len(names) <= measures.MAX_CLIENTS):
        return names, []
    return [], list(measures.QUANTILES)


def group_by_label(source: ResultSet) -> dict[str, list[Trial]]:
    """Return the trials that were measured by the label of their setting."""
    groups: dict[str, list[Trial]] = {}
    for trial in source.trials:
        if trial.metric:
            groups.setdefault(source.label(trial), []).append(trial)
    return groups


def choice_notes(source: ResultSet) -> list[str]:
    """Return a note on the metric that settings are chosen by, if it is not the reported one."""
    names = sorted({trial.chosen_by for trial in source.trials if trial.chosen_by})
    if not names:
        return []
    return [
        f"settings are chosen by {' or '.join(names)}; test is what is reported of them, at the "
        "seeds that they were chosen at (sweep.tune compares what it chose at seeds of its own)"
    ]


def positive_notes(source: ResultSet) -> list[str]:
    """Return a note on the class that sensitivity, F1 and so on are about, where the task is binary."""
    names = list(dict.fromkeys(trial.positive for trial in source.trials if trial.positive))
    return [f"positive class: {' or '.join(names)}"] if names else []


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
    if source.protocol == "mean-last":
        return [f"value of a run: mean of the last {source.last} evaluated rounds"]
    if source.protocol == "best":
        return [
            "value of a run: round of the best mean validation value, the last where there is none"
        ]
    return []


def _status_notes(source: ResultSet) -> list[str]:
    """Return notes on trials that failed, were stopped or have not ended."""
    total = len(source.trials)
    failed = [trial for trial in source.trials if trial.status == "failed"]
    stopped = sum(trial.status == "stopped" for trial in source.trials)
    running = [trial for trial in source.trials if trial.status not in ENDED]
    notes = [
        f"failed: {source.label(trial)} seed {trial.seed}: {trial.failure.partition(chr(10))[0]}"
        for trial in failed
    ]
    notes += [*taken_over_notes(source), *source.code_notes]
    if stopped:
        notes.append(f"{stopped} of {total} trials were stopped early by the scheduler")
    if running:
        notes.append(f"{len(running)} of {total} trials have not ended: the table is not complete")
    return notes + [
        f"not ended, counted with what it has reached: {source.label(trial)} seed {trial.seed}, "
        f"round {int(trial.history['round'].max())}"
        for trial in running
        if len(trial.history)
    ]


def taken_over_notes(source: ResultSet) -> list[str]:
    """Return a note on trials that other sweeps had finished."""
    sweeps = [trial.taken_over.rpartition("/")[0] for trial in source.trials if trial.taken_over]
    if not sweeps:
        return []
    names = ", ".join(dict.fromkeys(sweeps))
    return [f"{len(sweeps)} of {len(source.trials)} trials were taken over from {names}"]


def describe_seeds(table: Table) -> str:
    """Return over how many seeds the means are."""
    counts = sorted({len(cell.finite) for cell in table.cells if cell.finite})
    if counts == [1]:
        return "values of one seed, without a deviation"
    text = " or ".join(map(str, counts)) or "0"
    return f"mean ± standard deviation over {text} seeds" + (
        ", none for one seed" if 1 in counts else ""
    )
