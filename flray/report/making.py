"""``flray report``: gather, table, draw, write."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flray import rundir
from flray.report import plain
from flray.report.costs import Cost, costs
from flray.report.kept import keep as keep_results
from flray.report.page import page
from flray.report.source import Source, from_folder
from flray.report.table import Table, main_table

MARKDOWN, LATEX, PAGE, FOLDER = "report.md", "report.tex", "report.html", "report"


@dataclass(frozen=True)
class Report:
    """What was made.

    Attributes
    ----------
    source : Source
        Of what.
    table : Table
        The main table.
    costs : sequence of Cost
        By setting.
    files : tuple of Path
        What was written.
    said : str
        What was kept, if anything was to be.
    """

    source: Source
    table: Table
    costs: Sequence[Cost]
    files: tuple[Path, ...]
    said: str = ""


def report(what: str, *, to: Path | None = None, target: float | None = None, uri: str | None = None,
           base: str | Path = "runs", keep: Path | None = None) -> Report:
    """Report on a sweep or run; see `make`.

    Parameters
    ----------
    what : str
        Its folder, name or name and number; with `uri` an MLflow experiment (its newest sweep) or a run's id.
    to : Path, optional
        Folder to write to; default: ``report`` in the folder of the sweep, or in the current one for MLflow.
    target : float, optional
        See `make`.
    uri : str, optional
        MLflow's address.
    base : str or Path
        Folder of runs and sweeps.
    keep : Path, optional
        A CSV file for one row per finished run; see `flray.report.kept.keep`.
    """
    if uri is not None:
        from flray.report.remote import from_mlflow

        with tempfile.TemporaryDirectory() as place:
            return _kept(make(from_mlflow(uri, what, Path(place)), to or Path(FOLDER), target), keep)
    folder = rundir.find(what, base)
    return _kept(make(folder, to or folder / FOLDER, target), keep)


def _kept(made: Report, path: Path | None) -> Report:
    if path is None:
        return made
    done = keep_results(made.source, path)
    line = f"kept: {done.added} finished runs in {path}"
    line += f"; {done.before} were there before" if done.before else ""
    line += f"; {done.unfinished} that have not finished are left out" if done.unfinished else ""
    return replace(made, files=(*made.files, path), said=line)


def make(source: Source | Path, output: Path, target: float | None = None) -> Report:
    """Write a report as Markdown, LaTeX and one HTML page that needs nothing else.

    Parameters
    ----------
    source : Source or Path
        What to report on, or the folder of a sweep or run.
    output : Path
        Folder to write to.
    target : float, optional
        The accuracy (between 0 and 1) of rounds-to-target; default: 0.9 of the best setting's final one.

    Raises
    ------
    FlrayError
        If there is nothing to report on.
    """
    source = from_folder(source) if isinstance(source, Path) else source
    table, spent = main_table(source), costs(source, target)
    output.mkdir(parents=True, exist_ok=True)
    contents = {MARKDOWN: plain.markdown(table, spent), LATEX: plain.latex(table), PAGE: page(source, table, spent)}
    for name, text in contents.items():
        (output / name).write_text(text, encoding="utf-8")
    return Report(source, table, spent, tuple(output / name for name in contents))
