"""``flray report``: gather, table, draw, write."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flray.reporting import text as text_tables
from flray.reporting.html import page
from flray.results.build_table import build_table
from flray.results.costs import Cost, costs
from flray.results.export import export_runs, read_export
from flray.results.export_table import build_export_table
from flray.results.load import load_folder
from flray.results.result_set import ResultSet
from flray.results.table import Table
from flray.runs import directory

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

    source: ResultSet
    table: Table
    costs: Sequence[Cost]
    files: tuple[Path, ...]
    said: str = ""


def report(
    what: str,
    *,
    to: Path | None = None,
    target: float | None = None,
    uri: str | None = None,
    base: str | Path = "runs",
    keep: Path | None = None,
) -> Report:
    """Report on a sweep or run; see `make`.

    Parameters
    ----------
    what : str
        Its folder, name or name and number; with `uri` an MLflow experiment (its newest sweep) or a
        run's id.
    to : Path, optional
        Folder to write to; default: ``report`` in the folder of the sweep, or in the current one
        for MLflow.
    target : float, optional
        See `make`.
    uri : str, optional
        MLflow's address.
    base : str or Path
        Folder of runs and sweeps.
    keep : Path, optional
        A CSV file for one row per finished run; see `flray.results.export.export_runs`.
    """
    if uri is not None:
        from flray.results.load_mlflow import load_mlflow

        with tempfile.TemporaryDirectory() as place:
            return _kept(
                make(load_mlflow(uri, what, Path(place)), to or Path(FOLDER), target), keep
            )
    folder = directory.find(what, base)
    return _kept(make(folder, to or folder / FOLDER, target), keep)


def _kept(made: Report, path: Path | None) -> Report:
    if path is None:
        return made
    done = export_runs(made.source, path)
    line = f"kept: {done.added} finished runs in {path}"
    line += f"; {done.existing} were there before" if done.existing else ""
    line += f"; {done.unfinished} that have not finished are left out" if done.unfinished else ""
    return replace(made, files=(*made.files, path), said=line)


def make(source: ResultSet | Path, output: Path, target: float | None = None) -> Report:
    """Write a report as Markdown, LaTeX and one HTML page that needs nothing else.

    Parameters
    ----------
    source : Source or Path
        What to report on, or the folder of a sweep or run.
    output : Path
        Folder to write to.
    target : float, optional
        The accuracy (between 0 and 1) of rounds-to-target; default: 0.9 of the best setting's final
        one.

    Raises
    ------
    FlrayError
        If there is nothing to report on.
    """
    source = load_folder(source) if isinstance(source, Path) else source
    table, spent = build_table(source), costs(source, target)
    output.mkdir(parents=True, exist_ok=True)
    contents = {
        MARKDOWN: text_tables.markdown(table, spent),
        LATEX: text_tables.latex(table),
        PAGE: page(source, table, spent),
    }
    for name, text in contents.items():
        (output / name).write_text(text, encoding="utf-8")
    return Report(source, table, spent, tuple(output / name for name in contents))


def report_file(path: Path, to: Path | None = None) -> tuple[Table, tuple[Path, ...]]:
    """Return the table of a file of kept results, and write it as Markdown and LaTeX if a folder is given."""
    made = build_export_table(read_export(path))
    if to is None:
        return made, ()
    to.mkdir(parents=True, exist_ok=True)
    files = {
        to / f"{path.stem}.md": text_tables.markdown(made, ()),
        to / f"{path.stem}.tex": text_tables.latex(made),
    }
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
    return made, tuple(files)
