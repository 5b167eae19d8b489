"""One HTML page that needs nothing but itself: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flray.drawing import canvas
from flray.errors import one_line
from flray.reporting import formatting
from flray.reporting.sections import Section
from flray.results.costs import Cost
from flray.results.formatting import CONCLUSIONS
from flray.results.result_set import ResultSet
from flray.results.table import Table

_UNTRACKED = (
    "Features (t-SNE), correlations between classes and the layers' distances are drawn of runs "
    "with tracking.features=true; of these they were not tracked."
)


def render_page(
    source: ResultSet,
    table: Table,
    costs: Sequence[Cost],
    sections: Sequence[Section],
    vectors: Mapping[str, str],
) -> str:
    """Return the page.

    Parameters
    ----------
    source : ResultSet
        The runs.
    table : Table
        The main table.
    costs : sequence of Cost
        By setting.
    sections : sequence of Section
        What is drawn.
    vectors : dict of str to str
        The sections' figures as SVG, by file name without suffix.
    """
    tracked = any(trial.diagnostics() for trial in source.trials)
    return _render(
        "page.html",
        source=source,
        **_summary(table),
        seeds=sorted({trial.seed for trial in source.trials}),
        data=_describe_data(source),
        notes=formatting.notes(table),
        listings=formatting.listings(table, costs),
        sections=[
            {
                "title": section.title,
                "caption": section.caption,
                "svg": [canvas.theme_svg(vectors[name], section.title) for name in section.figures],
            }
            for section in sections
        ],
        untracked="" if tracked else _UNTRACKED,
        versions=", ".join(f"{name} {text}" for name, text in sorted(source.versions.items())),
        settings=json.dumps(source.config, indent=1, ensure_ascii=False).split("\n"),
        light=canvas.LIGHT,
        dark=canvas.DARK,
        ink=canvas.INK,
        soft=canvas.SOFT,
        rule=canvas.RULE,
        paper=canvas.PAPER,
    )


def render_summary(table: Table) -> str:
    """Return what is concluded and the main table, for a page that has its own style."""
    return _render("summary.html", **_summary(table))


def _summary(table: Table) -> dict[str, object]:
    return {
        "table": table,
        "heads": formatting.head_rows(table),
        "legend": formatting.legend(table),
        "concluded": CONCLUSIONS,
    }


def _render(template: str, **values: object) -> str:
    environment = Environment(
        loader=PackageLoader("flray.reporting"),
        autoescape=True,
        finalize=_to_line,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "measured": formatting.format_measured,
        "printed": formatting.printed_reference,
    }
    return environment.get_template(template).render(values)


def _to_line(value: object) -> object:
    """Return a name as one line; autoescape makes it text."""
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _describe_data(source: ResultSet) -> str:
    """Return which data were used and their origins."""
    found: dict[str, None] = {}
    for trial in source.trials:
        if trial.partition is not None:
            origins = sorted(set(trial.partition["origins"].values()))
            found[f"{trial.partition['dataset']} ({' + '.join(origins)})"] = None
    return ", ".join(found) or str(source.config["experiment"]["data"]["name"])
