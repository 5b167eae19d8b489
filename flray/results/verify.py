"""Rows of kept results beside runs of the same settings: the same bits, or the causes of the difference.

Nothing in a kept file is executed or followed: of its settings only those count that decide a run's
bits, plug-ins come from the user, and the runs are written into the user's own output folder.
"""

import contextlib
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd

from flray.config import yaml_files
from flray.config.arms import PREFIX
from flray.config.experiment import Config, Experiment, choose_on_validation, may_change
from flray.config.loader import experiment_at, load
from flray.devices import difference
from flray.errors import ConfigError, FlrayError
from flray.files import numbered, storage
from flray.process import InterruptedRunError
from flray.records import JOURNAL, directory, lock_journal
from flray.results import (
    PLUGINS,
    Entries,
    ResultSet,
    beside,
    deciding_settings,
    digest,
    export,
    read_entries,
)
from flray.results.load import load_folder
from flray.runs import runner
from flray.runs.code import code_differences, describe_difference
from flray.runs.identity import code_of
from flray.runs.progress import Progress

Row = Mapping[str, Any]
_TEXTS = ("algorithm", "data", "origins", "metric", "protocol")
_VALUES = ("rounds", "value", "own", "others", "worst", "bytes_up", "bytes_down")
_ROUNDING = 1.5e-4
"""Files of an older flray have four digits behind the point, or seven in all."""
_SHOWN = 3
"""Most values, or settings, that a verdict names."""


class Verdict(NamedTuple):
    """The result of running a row again.

    Attributes
    ----------
    row : str
        The setting and the seed.
    kind : {"same", "other", "unexplained"}
        The same bits; other bits, because something differs that the row depends on, or may do so
        because an older flray did not record it; or a difference without a cause.
    text : str
        The differences and their causes.
    """

    row: str
    kind: Literal["same", "other", "unexplained"]
    text: str


def compare(kept: Row, here: Row, entries: Entries, found: Entries) -> Verdict:
    """Return the verdict on a kept row.

    Parameters
    ----------
    kept, here : mapping
        The row, and the row of a run of the same settings; see `flray.results.export.export_runs`.
    entries, found : mapping
        The entries of both rows' provenance, see `flray.results`.
    """
    names = [*_VALUES, *(name for name in kept if str(name).startswith(export.DOMAIN))]
    values = {
        name: [float(pd.to_numeric(row.get(name, ""), errors="coerce")) for row in (kept, here)]
        for name in names
    }
    own = dict(directory.flatten_settings(found.get(here["settings"], {})))
    said = {name: (str(kept[name]), str(here[name])) for name in _TEXTS}
    for name in export.setting_columns(kept):
        if kept[name] != "" and (value := own.get(name, own.get(f"{name}.name"))) is not None:
            said[name] = (str(export.cell_value(kept, name)), value)
    digests = [
        f"{name} {kept[name][:12]}, here {here[name][:12]}"
        for name in ("data_sha256", "partition_sha256")
        if kept[name] and here[name] and kept[name] != here[name]
    ]
    same = kept["sha256"] == here["sha256"]
    other = [
        *(digests if same else ()),
        *(f"{name} {one}, here {two}" for name, (one, two) in said.items() if one != two),
        *(
            f"{name} {one:g}, here {two:g}"
            for name, (one, two) in values.items()
            if not _agree(one, two)
        ),
    ]
    shown = ", ".join(other[:_SHOWN]) + f" and {len(other) - _SHOWN} more" * (len(other) > _SHOWN)
    row = f"{kept['label']} seed {kept['seed']}"
    if same:
        if not other:
            return Verdict(row, "same", "the same bits")
        return Verdict(
            row, "unexplained", f"{shown}, of the same bits: the row is not as it was kept"
        )
    causes = [*digests, *_causes(kept, here, entries, found)]
    what = f"other bits ({shown})" if shown else "other bits, the same values"
    if not causes:
        return Verdict(row, "unexplained", f"{what}, and nothing that is recorded explains them")
    return Verdict(row, "other", f"{what}: {'; '.join(causes)}")


def _agree(kept: float, here: float) -> bool:
    """Return whether two values are the same but for rounding."""
    rounded = _ROUNDING if kept == round(kept, 4) else 0.0
    close = math.isclose(kept, here, rel_tol=1e-6, abs_tol=rounded)
    return close or (math.isnan(kept) and math.isnan(here))


def _causes(kept: Row, here: Row, entries: Entries, found: Entries) -> Iterator[str]:
    """Yield the differences that the bits of two rows depend on, and the parts that are not recorded."""
    unknown = []

    def both(name: str) -> tuple[Any, Any] | None:
        if kept[name] in entries and here[name] in found:
            return entries[kept[name]], found[here[name]]
        return None

    def bits(row: Row) -> str:
        found_bits: str = found.get(row["settings"], {}).get("resources", {}).get("bits", "")
        return found_bits

    if pair := both("settings"):
        one, two = (dict(directory.flatten_settings(part)) for part in pair)
        differ = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
        for name in differ[:_SHOWN]:
            yield f"{name} {one.get(name, 'not there')}, here {two.get(name, 'not there')}"
    else:
        unknown.append("settings")
    if pair := both("code"):
        if changed := code_differences(*pair):
            yield describe_difference(changed)
        if pair[0].get("others"):
            yield "it continued under other code than it began with"
    else:
        unknown.append("code")
        for name in export.PACKAGES:
            if kept[name] != here[name]:
                yield f"{name} {kept[name]}, here {here[name]}"
    if pair := both("machine"):
        cpus = [one.get("cpu") or {} for one in pair]
        kinds, others = (cpu.get("kinds") or {} for cpu in cpus)
        libraries = [name for name in kinds if others.get(name, kinds[name]) != kinds[name]]
        if libraries and all(kept[name] == here[name] for name in ("torch", "numpy")):
            models = [f"{cpu.get('model')} ({cpu.get('capability')})" for cpu in cpus]
            yield f"kind of CPU {models[0]}, here {models[1]} ({', '.join(libraries)})"
        if differs := difference(*(one.get("gpus") or [] for one in pair)):
            yield differs
        both_on_gpus = all(one.get("gpus") for one in pair)
        if both_on_gpus and bits(here) == "fast":
            yield "resources.bits fast, which repeats no bit on a GPU"
        if pair[0].get("other_cpus") or pair[0].get("other_gpus"):
            yield "it continued on another kind of CPU or GPU than it began on"
    elif bits(here) != "portable":
        unknown.append("kind of CPU")
    if unknown:
        yield f"its {' and '.join(unknown)} {'are' if len(unknown) > 1 else 'is'} not recorded"


def agreement(source: ResultSet, path: Path) -> str:
    """Return how many of the finished runs are those that a file keeps, as a line; empty if it keeps none of them.

    Parameters
    ----------
    source : ResultSet
        The sweep or run.
    path : Path
        The file that `export_runs` wrote. It holds a run if settings, seed, rounds and data agree.

    Raises
    ------
    DataError
        If the file does not hold exported results.
    """
    existing, rows, settings = export.rows_beside(source, path)
    kept = dict(
        zip(
            export.row_keys(existing, settings, "data_sha256"),
            export.records(existing.assign(label="")),
            strict=True,
        )
    )
    found = {name: one for t in source.trials for name, one in t.provenance[1].items()}
    entries = read_entries(path)
    keys = export.row_keys(rows, settings, "data_sha256")
    verdicts = [
        compare(kept[key], row, entries, found)
        for key, row in zip(keys, export.records(rows), strict=True)
        if key in kept
    ]
    if not verdicts:
        return ""
    other = [one.text for one in verdicts if one.kind != "same"]
    same = len(verdicts) - len(other)
    line = f"{same} of {len(verdicts)} runs are the ones that are kept (SHA-256): {path}"
    return f"{line}; the first that is not has {other[0]}" if other else line


def verify(
    path: Path,
    rows: int | None = None,
    overrides: Iterable[str] = (),
    *,
    progress: Progress | bool | None = None,
    tell: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """Run rows of a kept file again and compare.

    The runs are written into the output folder and removed at the end. Those that a killed call
    left are continued by the next one.

    Parameters
    ----------
    path : Path
        The file; see `flray.results.export.export_runs`. The settings are those of the file beside
        it, or for rows of an older flray those of ``NAME.yaml`` beside ``NAME.results.csv``.
    rows : int, optional
        So many of the rows, evenly spread over the file; default: all.
    overrides : iterable of str
        ``key=value``: folders of your data, your plug-ins, resources.
    progress : Progress or bool, optional
        As in `flray.run`; each run has a display.
    tell : callable
        Called with each verdict.

    Raises
    ------
    FlrayError
        If a row cannot be run here; then nothing was run.
    InterruptedRunError
        If the user stopped it.
    """
    frame, entries = export.read_export(path), read_entries(path)
    held = export.kept_results(frame)
    labels = [held.label(trial) for trial in held.trials[: len(frame)]]
    every = export.records(frame.assign(label=labels))
    count = len(every) if rows is None else min(rows, len(every))
    chosen = [every[number * len(every) // count] for number in range(count)]
    plans = [(row, experiment_of(path, row, entries, list(overrides))) for row in chosen]
    # Portable bits last: a process that was restarted for them has no native bits.
    plans.sort(key=lambda plan: plan[1].resources.bits == "portable")
    verdicts, folders = [], []
    for row, experiment in plans:
        try:
            folders.append(_run(experiment, progress))
        except InterruptedRunError as stop:
            raise InterruptedRunError(
                "stopped; the same command continues with the run that it was at", stop.code
            ) from None
        source = load_folder(folders[-1])
        trial = replace(source.trials[0], metric=row["metric"])
        here = export.row_of(source, trial)
        verdicts.append(compare(row, here, entries, trial.provenance[1]))
        tell(verdicts[-1])
    for name in {folder.parent for folder in folders}:  # rows of other data may have one
        _remove(name)
    return verdicts


def experiment_of(path: Path, row: Row, entries: Entries, overrides: Sequence[str]) -> Experiment:
    """Return the settings of a row, with the user's own output folder, tracking and plug-ins."""
    name = row["settings"]
    if name and name not in entries:
        raise FlrayError(
            f"{beside(path)}: it lacks the settings {name[:12]} of a row; restore the file"
        )
    file = path.with_name(f"{path.name.removesuffix('.csv').removesuffix('.results')}.yaml")
    if not name and not file.is_file():
        raise FlrayError(
            f"{path}: found rows without settings, as an older flray kept them; put the file that they were run with "
            f"at {file}"
        )
    content = {"experiment": entries[name]} if name else yaml_files.read_with_base(file)
    given = content.get("experiment")
    own = deciding_settings(given) if isinstance(given, dict) else {}
    needed = own.pop(PLUGINS, [])
    if needed and not any(text.startswith(f"{PLUGINS}=") for text in overrides):
        names = ", ".join(map(str, needed))
        raise FlrayError(
            f"{path}: found rows that need the plug-ins {names}, and nothing that a kept file names is executed; look "
            f"at your copies and give them: {PLUGINS}=[{names}]"
        )
    config = load({**content, "experiment": own}, [("resources.executor", "inline"), *overrides])
    if storage.is_remote(config.experiment.output):
        raise ConfigError(
            "experiment.output",
            config.experiment.output,
            "rows are run again in a folder of this machine, which is removed afterwards",
        )
    config = config if name else choose_on_validation(config)  # as a sweep does
    values = {} if name else dict(_values(config, row))
    if not name and config.experiment.stop is None:
        values["rounds"] = row["rounds"]
    base = config.experiment
    found = experiment_at(config, {**values, "seed": row["seed"]})
    # Whole paths: what a killed call left may have read another folder of the same name.
    every = directory.flatten_settings(found.model_dump(mode="json"))
    key = digest({name: text for name, text in every if not may_change(name)})
    return found.model_copy(
        update={
            "name": f"verify-{key[:12]}",
            "output": base.output,
            "callbacks": base.callbacks,
            "plugins": base.plugins,
            "tracking": base.tracking.model_copy(update={"uri": None}),
        }
    )


def _values(config: Config, row: Row) -> Iterator[tuple[str, Any]]:
    """Yield the settings that the columns of a row name."""
    varied = {path.removeprefix("experiment.").removesuffix(".name") for path in config.space}
    for name in export.setting_columns(row):
        if row[name] != "":
            yield name, row[name] if name.startswith(PREFIX) else export.cell_value(row, name)
    if "algorithm" in varied:
        yield "algorithm", row["algorithm"]
    for name in row:
        if name.startswith(export.TUNED) and row[name] != "":
            yield name.removeprefix(export.TUNED), export.cell_value(row, name)


def _run(experiment: Experiment, progress: Progress | bool | None) -> Path:
    """Run an experiment, or continue the run that a killed call left, and return its folder."""
    try:
        folder = directory.find(experiment.name, experiment.output)
        began = directory.read(folder).get("code") or {}
        if not code_differences(began, code_of(experiment)):
            return runner.resume(folder, progress=progress).folder
    except InterruptedRunError:
        raise
    except FlrayError:  # there is none, or it cannot be continued here
        pass
    return runner.start(Config(experiment=experiment), progress=progress).folder


def _remove(name: Path) -> None:
    """Remove the runs of a name that nobody writes."""
    for number in numbered(one.name for one in name.iterdir()):
        with contextlib.suppress(FlrayError):
            if (lock := lock_journal(name / number / JOURNAL)) is not None:
                lock.release()
            shutil.rmtree(name / number, ignore_errors=True)
    with contextlib.suppress(OSError):
        name.rmdir()
