"""``flray report``: read results, build the tables, draw the figures, write the files."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from flray.drawing.canvas import render_svg, save_figure
from flray.errors import FlrayError
from flray.files.csv_files import csv_text
from flray.records import directory
from flray.reporting.render import markdown, render_latex, render_page, render_summary
from flray.reporting.sections import create_sections
from flray.results.build_table import build_table
from flray.results.export import build_export_table, export_runs, read_export
from flray.results.load import load_folder
from flray.results.measures import Cost, costs
from flray.results.provenance import beside
from flray.results.result_set import ResultSet
from flray.results.table import Table

MARKDOWN, LATEX, PAGE, FOLDER = "report.md", "report.tex", "report.html", "report"
COMPARISONS = "comparisons.csv"


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes
    ----------
    source : ResultSet
        The runs.
    table : Table
        The main table.
    costs : sequence of Cost
        By setting.
    figures : dict of str to matplotlib Figure
        What the page shows, to be changed or saved by you: ``report.figures["curves"]``.
    files : tuple of Path
        Markdown, LaTeX, HTML and all comparisons, and the CSV file if one was given.
    pictures : tuple of Path
        The figures as SVG, PDF and PNG.
    notice : str
        One line on the runs that were added to a CSV file, if one was given.
    """

    source: ResultSet
    table: Table
    costs: Sequence[Cost]
    figures: Mapping[str, Figure]
    files: tuple[Path, ...]
    pictures: tuple[Path, ...]
    notice: str = ""

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the conclusions and the main table."""
        return render_summary(self.table)


def report(
    what: str,
    *,
    to: Path | None = None,
    target: float | None = None,
    uri: str | None = None,
    base: str | Path = "runs",
    keep: Path | None = None,
    reference: str | None = None,
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
    reference : str, optional
        See `make`.
    """
    if uri is None:
        folder = directory.find(what, base)
        return _kept(load_folder(folder), to or folder / FOLDER, target, reference, keep)
    from flray.results.load_mlflow import load_mlflow  # start-up: MLflow

    with tempfile.TemporaryDirectory() as place:
        source = load_mlflow(uri, what, Path(place))
        return _kept(source, to or Path(FOLDER), target, reference, keep)


def _kept(
    source: ResultSet, to: Path, target: float | None, reference: str | None, path: Path | None
) -> Report:
    """Write a report, after the rows of `path`, because a file that refuses them ends the command."""
    counts = None if path is None else export_runs(source, path)
    made = make(source, to, target, reference)
    if counts is None or path is None:
        return made
    line = f"kept: {counts.added} finished runs in {path}"
    files = [path]
    if beside(path).is_file():
        line += f", their settings, code and machines in {beside(path).name}"
        files.append(beside(path))
    line += f"; {counts.existing} were there before" if counts.existing else ""
    if counts.unfinished:
        line += f"; {counts.unfinished} that have not finished are left out"
    return replace(made, files=(*made.files, *files), notice=line)


def make(
    source: ResultSet | Path,
    output: Path,
    target: float | None = None,
    reference: str | None = None,
) -> Report:
    """Write a report as Markdown, LaTeX and one HTML page that needs nothing else, and its figures as files.

    Parameters
    ----------
    source : ResultSet or Path
        The runs, or the folder of a sweep or run.
    output : Path
        Folder to write to.
    target : float, optional
        The accuracy (between 0 and 1) of rounds-to-target; default: 0.9 of the best setting's final
        one.
    reference : str, optional
        The setting that all others are compared with; default: ``sweep.reference``.

    Raises
    ------
    FlrayError
        If there is nothing to report on.
    """
    if target is not None and not 0 < target < math.inf:
        raise FlrayError(f"--reach: found {100 * target:g}; an accuracy above 0, such as 80")
    source = load_folder(source) if isinstance(source, Path) else source
    table, spent = build_table(source, reference), costs(source, target)
    sections = list(create_sections(source, table.studies))
    figures = {name: one for section in sections for name, one in section.figures.items()}
    vectors = {name: render_svg(figure) for name, figure in figures.items()}
    folder, pictures = output / directory.FIGURES, []
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        pictures += [folder / f"{name}{suffix}" for suffix in (".svg", ".pdf", ".png")]
        pictures[-3].write_text(vectors[name], encoding="utf-8")
        for path in pictures[-2:]:
            save_figure(figure, path)
    contents = {
        MARKDOWN: markdown(table, spent),
        LATEX: render_latex(table),
        PAGE: render_page(source, table, spent, sections, vectors),
    }
    if table.studies.each:
        contents[COMPARISONS] = csv_text(table.studies.frame())
    for name, content in contents.items():
        (output / name).write_text(content, encoding="utf-8")
    files = tuple(output / name for name in contents)
    return Report(source, table, spent, figures, files, tuple(pictures))


def report_file(
    path: Path, to: Path | None = None, reference: str | None = None
) -> tuple[Table, tuple[Path, ...]]:
    """Return the table of an exported CSV file, and write it as Markdown and LaTeX if a folder is given."""
    table = build_export_table(read_export(path), reference)
    if to is None:
        return table, ()
    to.mkdir(parents=True, exist_ok=True)
    files = {
        to / f"{path.stem}.md": markdown(table, ()),
        to / f"{path.stem}.tex": render_latex(table),
    }
    if table.studies.each:
        files[to / f"{path.stem}.{COMPARISONS}"] = csv_text(table.studies.frame())
    for file, content in files.items():
        file.write_text(content, encoding="utf-8")
    return table, tuple(files)
