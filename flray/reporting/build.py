"""``flray report``: read results, build the tables, draw the figures, write the files."""

import html
import itertools
import json
import math
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from flray import registry
from flray.drawing import canvas
from flray.errors import FlrayError, explained, one_line
from flray.files import write_atomically
from flray.metrics import is_at_most_one
from flray.records import directory
from flray.reporting.sections import Section, create_sections
from flray.results import ResultSet, beside, formatting
from flray.results.costs import Cost, costs
from flray.results.export import export_runs, kept_results, read_export
from flray.results.load import load_folder
from flray.results.sweep import build_table
from flray.results.table import Table

_UNTRACKED = (
    "Features (t-SNE), correlations between classes and the layers' distances are drawn of runs "
    "with tracking.features=true; of these they were not tracked."
)
_LINE = 75
"""Characters of a table that fit on an article's line."""


def head_rows(table: Table) -> list[list[tuple[str, int]]]:
    """Return the heads by level, equal neighbours as one with the number of columns that it spans."""
    depth = max((len(column.head) for column in table.columns), default=1)
    heads = [("",) * (depth - len(column.head)) + column.head for column in table.columns]
    return [
        [
            (prefix[-1], len(list(group)))
            for prefix, group in itertools.groupby(heads, key=lambda head: head[: level + 1])
        ]
        for level in range(depth)
    ]


def markdown(table: Table, costs: Sequence[Cost]) -> str:
    """Return the tables as Markdown."""
    return _render("report.md", table, listings=formatting.listings(table, costs)).rstrip() + "\n"


def render_latex(table: Table) -> str:
    """Return the table as LaTeX (needs booktabs); one wider than a line is set smaller, across both columns."""
    width = max(map(len, (table.heading, *table.rows)), default=0)
    for position, column in enumerate(table.columns):
        cells = (formatting.format_measured(row[position]) for row in table.rows.values())
        width += max(map(len, (*column.head, *cells))) + 2
    wide = width > _LINE
    label = re.sub("[^a-z0-9]+", "-", table.title.lower()).strip("-")[:60]
    return (
        _render("table.tex", table, wide=wide, star=Markup("*" * wide), label=Markup(label)) + "\n"
    )


def render_page(
    source: ResultSet,
    table: Table,
    costs: Sequence[Cost],
    sections: Sequence[Section],
    vectors: Mapping[str, str],
) -> str:
    """Return one HTML page that needs nothing but itself: no script, no font, no picture from elsewhere.

    Parameters
    ----------
    source : ResultSet
        The runs.
    table : Table
        The main table.
    costs : sequence of Cost
        The costs of each setting.
    sections : sequence of Section
        The sections with figures.
    vectors : dict of str to str
        The sections' figures as SVG, by file name without suffix.
    """
    tracked = any(trial.diagnostics() for trial in source.trials)
    return _render(
        "page.html",
        table,
        source=source,
        seeds=sorted({trial.seed for trial in source.trials}),
        data=_describe_data(source),
        listings=formatting.listings(table, costs),
        sections=[
            (one, [canvas.theme_svg(vectors[name], one.title) for name in one.figures])
            for one in sections
        ],
        untracked="" if tracked else _UNTRACKED,
        versions=", ".join(f"{name} {text}" for name, text in sorted(source.versions.items())),
        settings=json.dumps(source.config, indent=1, ensure_ascii=False).split("\n"),
        canvas=canvas,
    )


def render_summary(table: Table) -> str:
    """Return the conclusions and the main table as HTML without a style, to embed in another page."""
    return _render("summary.html", table)


def _render(template: str, table: Table, **values: object) -> str:
    """Return a template whose texts are data: one line each, escaped as its format needs."""
    escapes = {"html": one_line, "md": _escape_markdown, "tex": _escape_latex}
    escape = escapes[template.rpartition(".")[2]]

    def finish(value: object) -> object:
        return escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("flray.reporting"),
        autoescape=template.endswith(".html"),
        finalize=finish,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "measured": formatting.format_measured,
        "printed": formatting.printed_reference,
        "comment": lambda text: Markup(one_line(text)),
        "in_print": _in_print,
    }
    return environment.get_template(template).render(
        values,
        table=table,
        heads=head_rows(table),
        legend=formatting.legend(table),
        notes=formatting.notes(table),
        concluded=formatting.CONCLUSIONS,
    )


def _in_print(label: str) -> str:
    """Return a row's label with its method as papers write it, such as Fed-CO2, the first word of its module."""
    method, _, rest = label.partition(" ")
    if method in registry.algorithms.names():
        item = registry.algorithms.outline(method)
        module = getattr(sys.modules.get(item.__module__), "__doc__", None) or ""
        for name in (*re.findall(r"^[\w+-]+", module), item.__name__):
            if name.replace("-", "").replace("+", "plus").lower() == method:
                return f"{name} {rest}".rstrip()
    return label


# What Markdown reads as markup: everywhere, and where a line begins. An underscore between letters
# is none.
_MARKUP = re.compile(r"[\\`*|\[\]~$!]|(?<![^\W_])_|_(?![^\W_])")
_AT_THE_START = re.compile(r"^(\d*)([#+\-=.):])(?=\s|$|[#=\-])")


def _escape_markdown(text: str) -> str:
    """Return a text of one line that Markdown shows as it is, also within a table and where HTML is let through."""
    text = html.escape(_MARKUP.sub(r"\\\g<0>", one_line(text).strip()), quote=False)
    return _AT_THE_START.sub(lambda found: f"{found[1]}\\{found[2]}", text)


_NAMES = {"lamda": "lambda", "phi": "varphi"}
"""LaTeX's names of letters where they are not Unicode's."""


GREEK = {
    letter: _NAMES.get(name := unicodedata.name(letter).rpartition(" ")[2].lower(), name)
    for letter in "αβγδεζηθκλμνξπρστφχψω"
}
_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": r"\textendash{}",
    "≥": r"$\geq$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",  # which belong to the end of the line before them otherwise
    **{letter: f"$\\{name}$" for letter, name in GREEK.items()},
}


def _escape_latex(text: str) -> str:
    """Return a text of one line that LaTeX sets as it is."""
    escaped = "".join(_SPECIAL.get(character, character) for character in one_line(text))
    return escaped.replace("--", "-{}-")


def _describe_data(source: ResultSet) -> str:
    """Return which data were used and their origins."""
    found = dict.fromkeys(
        f"{trial.partition['dataset']} ({' + '.join(sorted({*trial.partition['origins'].values()}))})"
        for trial in source.trials
        if trial.partition is not None
    )
    return ", ".join(found) or str(source.config["experiment"]["data"]["name"])


def report_values(report: "Report") -> dict[str, object]:
    """Return a report as JSON values: shares are in percent.

    Parameters
    ----------
    report : Report
        Its table, costs and files are taken.
    """
    table = report.table
    studies = table.studies
    compared = (
        studies.frame().to_json(orient="records", double_precision=15) if studies.each else "[]"
    )
    return {
        "title": table.title,
        "conclusions": table.conclusions,
        "rows": [
            {
                "name": label,
                "values": [
                    {
                        "column": " ".join(column.head),
                        "measure": column.measure,
                        "client": column.client,
                        "mean": cell.mean,
                        "std": cell.std,
                        "seeds": {str(seed): one for seed, one in cell.values.items()},
                        "best": cell.best,
                        **({"printed": cell.printed} if cell.printed_text else {}),
                    }
                    for column, cell in zip(table.columns, row, strict=True)
                ],
            }
            for label, row in table.rows.items()
        ],
        "comparisons": json.loads(compared),
        "costs": [vars(one) for one in report.costs],
        "notes": formatting.notes(table),
        "files": list(map(str, report.files)),
    }


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
    what: str | Path,
    *,
    to: str | Path | None = None,
    target: float | None = None,
    base: str | Path = "runs",
    keep: str | Path | None = None,
    reference: str | None = None,
) -> Report:
    """Report on a sweep or run; see `make`.

    Parameters
    ----------
    what : str or Path
        Its folder, name or name and number; or a CSV file that `keep` wrote, which has tables alone.
    to : str or Path, optional
        Folder to write to; default: ``report`` in the folder of the sweep; a CSV file's tables are
        written only if it is given.
    target : float, optional
        See `make`.
    base : str or Path
        Folder of runs and sweeps.
    keep : str or Path, optional
        A CSV file for one row per finished run; see `flray.results.export.export_runs`.
    reference : str, optional
        See `make`.
    """
    if str(what).endswith(".csv"):
        for name, given in (("--reach", target), ("--keep", keep)):
            if given is not None:
                raise FlrayError(
                    f"{name}: found {given}; a kept file has final values alone, leave it out"
                )
        return _of_file(Path(what), to, reference)
    folder = directory.find(str(what), base)
    source, place = load_folder(folder), Path(to or folder / FOLDER)
    if keep is None:
        return make(source, place, target, reference)
    # A refused report keeps no rows, and a refused file leaves no report.
    computed, path = _compute(source, target, reference), Path(keep)
    why = f"--keep: {path} cannot be written"
    with explained(OSError, why, "name another file", FlrayError):
        added, before, unfinished = export_runs(source, path)
    made = _save(*computed, place)
    files = [one for one in (path, beside(path)) if one.is_file()]
    parts = (
        f"kept: {added} finished run{'s' * (added != 1)} in {path}",
        f", their settings, code and machines in {files[-1].name}" if len(files) > 1 else "",
        f"; {before} were there before" if before else "",
        f"; {unfinished} that have not finished are left out" if unfinished else "",
    )
    return replace(made, files=(*made.files, *files), notice="".join(parts))


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
        The value of rounds-to-target as it is shown, so of an accuracy in percent; default: 0.9 of
        the best setting's final one.
    reference : str, optional
        The setting that all others are compared with; default: ``sweep.reference``.

    Raises
    ------
    FlrayError
        If there is nothing to report on.
    """
    source = load_folder(source) if isinstance(source, Path) else source
    return _save(*_compute(source, target, reference), output)


_Contents = Mapping[str, bytes]
"""Of files, by their names within the report's folder."""


def _compute(
    source: ResultSet, target: float | None, reference: str | None
) -> tuple[Report, _Contents, _Contents]:
    """Return a report that is not yet written, and the contents of its files and pictures."""
    if target is not None and not 0 < target < math.inf:
        raise FlrayError(f"--reach: found {target:g}; a value above 0, of an accuracy in percent")
    metrics = {trial.metric for trial in source.trials if trial.metric}
    if target is not None and target > 100 and all(map(is_at_most_one, metrics)):
        raise FlrayError(f"--reach: found {target:g}; at most 100, as it is in percent")
    table, spent = build_table(source, reference), costs(source, target)
    sections = list(create_sections(source, table.studies))
    figures = {name: one for section in sections for name, one in section.figures.items()}
    pictures = {
        f"{directory.FIGURES}/{name}.{kind}": canvas.render(figure, kind)
        for name, figure in figures.items()
        for kind in ("svg", "pdf", "png")
    }
    vectors = {name: pictures[f"{directory.FIGURES}/{name}.svg"].decode() for name in figures}
    files = {
        MARKDOWN: markdown(table, spent).encode(),
        LATEX: render_latex(table).encode(),
        PAGE: render_page(source, table, spent, sections, vectors).encode(),
        **_comparisons(table, COMPARISONS),
    }
    return Report(source, table, spent, figures, (), ()), files, pictures


def _comparisons(table: Table, name: str) -> _Contents:
    """Return the file of a table's comparisons, if it has any."""
    each = table.studies.each
    return {name: formatting.csv_text(table.studies.frame()).encode()} if each else {}


def _save(made: Report, files: _Contents, pictures: _Contents, folder: Path) -> Report:
    """Write a report's pictures, then its files."""
    why, remedy = f"{folder}: the report cannot be written here", "name another folder with --to"
    with explained(OSError, why, remedy, FlrayError):
        for name, content in {**pictures, **files}.items():
            write_atomically(folder / name, content, keep_name=False)
    paths, drawn = (tuple(folder / name for name in some) for some in (files, pictures))
    return replace(made, files=paths, pictures=drawn)


def _of_file(path: Path, to: str | Path | None, reference: str | None) -> Report:
    """Return the report of an exported CSV file, written as Markdown and LaTeX if a folder is given."""
    source = kept_results(read_export(path))
    table = build_table(source, reference)
    made = Report(source, table, (), {}, (), ())
    if to is None:
        return made
    texts = {
        f"{path.stem}.md": markdown(table, ()).encode(),
        f"{path.stem}.tex": render_latex(table).encode(),
        **_comparisons(table, f"{path.stem}.{COMPARISONS}"),
    }
    return _save(made, texts, {}, Path(to))
