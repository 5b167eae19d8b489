"""Build the table of a sweep: a paper's own beside its printed numbers, or one row per setting."""

from dataclasses import replace

from flray.config.selection import selects_on_test
from flray.config.suites import SMOKE, stand_in_line
from flray.errors import FlrayError
from flray.results import measures
from flray.results.build_studies import build_studies, measure_of, place_and_name, place_of
from flray.results.choices import tuned_settings
from flray.results.conclusions import conclude
from flray.results.measures import AVERAGE, client_measure
from flray.results.result_set import ENDED, ResultSet, Trial, alike_notes
from flray.results.study import question_lines, variances
from flray.results.table import Column, Table, build_paper_table

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
    chosen = selects_on_test(source.config)
    table.notes += [chosen] if chosen else _choice_notes(source)
    if paper is None:
        table.notes += alike_notes(trial.metric for trial in source.trials)
    table.notes += [one.line for one in tuned_settings(source)]
    # The class that sensitivity, F1 and so on are about, where the task is binary.
    positive = dict.fromkeys(trial.positive for trial in source.trials if trial.positive)
    table.notes += [f"positive class: {' or '.join(positive)}"] if positive else []
    encodings = dict.fromkeys((trial.partition or {}).get("encoding") for trial in source.trials)
    table.notes += [f"data: {one}" for one in encodings if one]
    table.notes += [*_seed_notes(table), *_protocol_notes(source), *_status_notes(source)]
    stand_in = list(filter(None, [stand_in_line(source.config)]))
    if source.name.endswith(SMOKE):
        table.title += " (smoke run)"
        table.notes[:0] = [SMOKE_NOTE, *stand_in]
        table.conclusions = ["nothing can be concluded from a smoke run"]
    else:
        table.notes[:0] = stand_in
        _compare(table, source, reference)
        where = {source.label(one): place_and_name(source, one) for one in source.trials}

        def compared_as(label: str, column: Column) -> tuple[str, str, str]:
            place, name = where[label] if paper is None else (place_of(column), label)
            return place, measure_of(column, source.metric), name

        table.mark_best(compared_as)
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
    table.conclusions = [*conclude(table.studies), *question_lines(source, table.studies)]


def _setting_table(source: ResultSet) -> Table:
    """Return a row per setting, best first, and a column per client unless there are many."""
    measured = [trial for trial in source.trials if trial.metric]
    metric = source.metric
    names, quantiles = client_columns(source)
    apart = any(trial.chosen_by for trial in source.trials)
    columns = [Column(("validation",), "chosen")] if apart else []
    columns += [Column(("test" if apart else "score",), "auto", compared=True)]
    columns += [Column((name,), "clients", name) for name in names]
    columns += [Column((name,), "quantile", name) for name in quantiles]
    # Where models are judged on the other clients' data, how they do on their own is the other half
    # of the answer.
    if any(client_measure(trial).startswith("others/") for trial in measured):
        columns.append(Column((f"own {AVERAGE}",), "own"))
    for view, head in (("global/unseen", "unseen"), ("adapted/unseen", "unseen adapted")):
        if any(f"{view}/{trial.measure}" in trial.history for trial in measured):
            columns.append(Column((head,), f"{view}/*"))
    table = Table(f"{source.name}: {metric}", "setting", columns)
    for trial in source.trials:
        known = trial.status != "failed" and len(trial.history)
        values = (measures.value(trial, one.measure, one.client) for one in columns if known)
        table.add(source.label(trial), trial.seed, list(values))
    table.columns = [replace(column, measure=metric) for column in columns]
    table.sort_rows()
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


def _choice_notes(source: ResultSet) -> list[str]:
    """Return a note on the metric that settings are chosen by, if it is not the reported one."""
    names = sorted({trial.chosen_by for trial in source.trials if trial.chosen_by})
    if not names:
        return []
    return [
        f"settings are chosen by {' or '.join(names)}; test is what is reported of them, at the "
        "seeds that they were chosen at (sweep.tune compares what it chose at seeds of its own)"
    ]


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
    """Return notes on trials that failed, were taken over or stopped, or have not ended."""
    trials, total = source.trials, len(source.trials)
    stopped = [len(trial.history) for trial in trials if trial.status == "stopped"]
    running = [trial for trial in trials if trial.status not in ENDED]
    sweeps = [trial.taken_over.rpartition("/")[0] for trial in trials if trial.taken_over]
    notes = _failures(source)
    if sweeps:
        names = ", ".join(dict.fromkeys(sweeps))
        notes.append(f"{len(sweeps)} of {total} trials were taken over from {names}")
    notes += source.code_notes
    if stopped:
        low, high = min(stopped), max(stopped)
        span = f"{low} round{'s' * (low > 1)}" if low == high else f"{low} to {high} rounds"
        notes.append(f"{len(stopped)} of {total} trials stopped early, after {span}")
    if running:
        notes.append(f"{len(running)} of {total} trials have not ended: the table is not complete")
    return notes + [
        f"not ended, counted with what it has reached: {source.label(trial)} seed {trial.seed}, "
        f"round {int(trial.history['round'].max())}"
        for trial in running
        if len(trial.history)
    ]


def _failures(source: ResultSet) -> list[str]:
    """Return one line per kind of failure: numbers, settings, seeds, and the first error."""
    trials: dict[str, list[str]] = {}
    for one in source.trials:
        if one.status == "failed":
            name = f"{one.number} ({source.label(one)} seed={one.seed})"
            trials.setdefault(one.failure.partition("\n")[0], []).append(name)
    return [
        f"trial{'s' * (len(names) > 1)} {', '.join(names[:_MAX_FAILURES])}"
        f"{f' and {len(names) - _MAX_FAILURES} more' if len(names) > _MAX_FAILURES else ''} "
        f"failed: {reason}"
        for reason, names in trials.items()
    ]
