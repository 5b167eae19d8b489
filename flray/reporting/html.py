"""One HTML page that needs nothing but itself: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from flray.reporting import formatting
from flray.reporting.figures import figures
from flray.reporting.html_text import escape
from flray.results.costs import Cost
from flray.results.result_set import ResultSet
from flray.results.table import Cell, Table

_LIGHT = ("#0072b2", "#d55e00", "#00825f", "#b6569a", "#9a6a00", "#3a9bd9", "#5a5a5a", "#6f4bb8")
_DARK = ("#56b4e9", "#ff9245", "#3fcf9e", "#e79ac6", "#e8c14a", "#9fd8ff", "#b9b9b9", "#b79cff")
_UNTRACKED = (
    "Features (t-SNE), correlations between classes and the layers' distances are drawn of runs "
    "with "
    "tracking.features=true; of these they were not tracked."
)


def _style() -> str:
    def palette(colours: Sequence[str]) -> str:
        return "".join(f"--c{k}:{colour};" for k, colour in enumerate(colours))

    light = f"--fg:#1a1c1e;--soft:#5b6168;--line:#d9dce0;--bg:#fff;--tint:#f4f6f8;{palette(_LIGHT)}"
    dark = (
        f"--fg:#e7e9ec;--soft:#a2a9b1;--line:#3a4048;--bg:#15181c;--tint:#1d2227;{palette(_DARK)}"
    )
    series = "".join(
        f".s{k}{{stroke:var(--c{k})}}.f{k}{{fill:var(--c{k})}}" for k in range(len(_LIGHT))
    )
    return f""":root{{color-scheme:light dark;{light}}}
@media (prefers-color-scheme:dark){{:root{{{dark}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;padding:1.5rem 1.2rem 3rem;max-width:1180px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif}}
h1{{font-size:1.5rem;margin:0 0 .2rem}}h2{{font-size:1.15rem;margin:2.2rem 0 .5rem}}
p,ul{{margin:.4rem 0}}.soft,figcaption,caption{{color:var(--soft);font-size:.86rem}}
.scroll{{overflow-x:auto}}table{{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}}
th,td{{padding:.3rem .7rem;text-align:right;white-space:nowrap}}th:first-child,td:first-child{{text-align:left}}
thead th{{border-bottom:1px solid var(--line);font-weight:600;vertical-align:bottom}}
thead tr:first-child th{{border-top:2px solid var(--fg)}}thead th[colspan]{{text-align:center}}
tbody tr:last-child td{{border-bottom:2px solid var(--fg)}}tbody tr:nth-child(even){{background:var(--tint)}}
td small{{display:block;color:var(--soft)}}.best{{font-weight:700}}caption{{text-align:left;padding:.6rem 0 .3rem}}
.plots{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(340px,100%),1fr));gap:1rem}}
figure{{margin:0 0 1rem}}figure svg{{width:100%;height:auto}}.plots>svg:only-child{{max-width:620px}}
figcaption{{max-width:75ch}}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1rem;padding:0;font-size:.86rem}}
.legend svg{{margin-right:.35rem;vertical-align:middle;width:22px}}
.line{{fill:none;stroke-width:1.8}}.band{{opacity:.16}}.grid{{stroke:var(--line);stroke-width:.7}}
.axis{{stroke:var(--soft);stroke-width:1;fill:none}}.level{{stroke:var(--fg);stroke-width:1.2;stroke-dasharray:4 3}}
.spread{{stroke:var(--fg);stroke-width:1.1;fill:none}}
.mark{{stroke:var(--bg);stroke-width:1.4}}svg text{{fill:var(--fg);font:11px system-ui,sans-serif}}
svg .tick,svg .name{{fill:var(--soft)}}svg .title{{font-weight:600;font-size:12px}}svg .tag{{font-weight:700}}
.matrices{{display:flex;flex-wrap:wrap;gap:.8rem}}.matrices div{{font-size:.8rem;color:var(--soft)}}
.pair{{display:grid;grid-template-columns:auto auto;gap:.1rem .6rem;margin-right:1.2rem}}.pair b{{grid-column:1/3}}
.matrix{{display:block;image-rendering:pixelated;border:1px solid var(--line)}}
details{{margin:.5rem 0}}pre{{overflow-x:auto;background:var(--tint);padding:.7rem;font-size:.8rem}}
{series}
@page{{margin:14mm 12mm}}
@media print{{:root{{color-scheme:light;{light}}}body{{max-width:none;padding:0;font-size:10.5pt}}
.plots{{grid-template-columns:1fr 1fr}}.plots svg,figcaption,tr,.pair{{break-inside:avoid}}h2{{break-after:avoid}}
.scroll{{overflow:visible}}table{{font-size:8pt}}th,td{{padding:.15rem .35rem}}details{{display:none}}
*{{-webkit-print-color-adjust:exact;print-color-adjust:exact}}}}"""


def page(source: ResultSet, table: Table, costs: Sequence[Cost]) -> str:
    """Return the whole page.

    Parameters
    ----------
    source : Source
        What was run.
    table : Table
        The main table.
    costs : sequence of Cost
        By setting.
    """
    versions = ", ".join(f"{name} {version}" for name, version in sorted(source.versions.items()))
    seeds = sorted({trial.seed for trial in source.trials})
    parts = [
        f"<h1>{escape(table.title)}</h1>",
        f'<p class="soft">{escape(source.name)} · {len(source.trials)} runs · seeds '
        f"{', '.join(map(str, seeds))} · {escape(_data(source))}</p>",
        _main(table),
        f'<p class="soft">{escape(formatting.legend(table))}</p>',
        _list(formatting.comparison_sentences(table)),
        _list(["Notes", *table.notes] if table.notes else []),
    ]
    parts += ["<h2>Costs</h2>"]
    parts += [
        _cost_table(group, list(members))
        for group, members in itertools.groupby(costs, key=lambda c: c.group)
    ]
    for title, content, caption in figures(source):
        parts.append(
            f"<section><h2>{escape(title)}</h2><figure>{content}<figcaption>{escape(caption)}</figcaption>"
            "</figure></section>"
        )
    if not any(trial.diagnostics() for trial in source.trials):
        parts.append(f'<p class="soft">{escape(_UNTRACKED)}</p>')
    settings = "\n".join(
        map(escape, json.dumps(source.config, indent=1, ensure_ascii=False).split("\n"))
    )
    parts.append(
        f'<h2>How this was made</h2><p class="soft">{escape(versions)}<br>{escape(source.where)}</p>'
        f"<details><summary>Settings</summary><pre>{settings}</pre></details>"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{escape(table.title)}</title><style>{_style()}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _data(source: ResultSet) -> str:
    """Return which data were used and where they come from."""
    found: dict[str, None] = {}
    for trial in source.trials:
        if trial.partition is not None:
            origins = sorted(set(trial.partition["origins"].values()))
            found[f"{trial.partition['dataset']} ({' + '.join(origins)})"] = None
    return ", ".join(found) or str(source.config["experiment"]["data"]["name"])


def _main(table: Table) -> str:
    depth = max(map(len, table.heads), default=1)
    heads = [[""] * (depth - len(head)) + head for head in table.heads]
    rows = []
    for level in range(depth):
        cells = [f"<th>{escape(table.heading)}</th>" if level == depth - 1 else "<th></th>"]
        for prefix, group in itertools.groupby(heads, key=lambda head: tuple(head[: level + 1])):
            count = len(list(group))
            span = f' colspan="{count}"' if count > 1 else ""
            cells.append(f"<th{span}>{escape(prefix[-1])}</th>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    body = "".join(
        f"<tr><td>{escape(label)}</td>{''.join(map(_cell, row))}</tr>"
        for label, row in table.rows.items()
    )
    return f'<div class="scroll"><table><thead>{"".join(rows)}</thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell) -> str:
    kind = ' class="best"' if cell.best else ""
    below = (
        f"<small>{escape(formatting.printed_reference(cell))}</small>" if cell.printed_text else ""
    )
    tip = escape(
        ", ".join(f"seed {seed}: {value:.2f}" for seed, value in cell.values.items()), quote=True
    )
    return f'<td title="{tip}"><span{kind}>{escape(formatting.format_measured(cell))}</span>{below}</td>'


def _cost_table(group: str, costs: Sequence[Cost]) -> str:
    head = "".join(f"<th>{escape(word)}</th>" for word in formatting.COST_HEADS)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in formatting.cost_row(cost))}</tr>"
        for cost in costs
    )
    title = f"{group + ' · ' if group else ''}means over seeds; target {formatting.target_text(costs[0])}"
    return (
        f'<div class="scroll"><table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _list(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines[1:])
    return f'<p class="soft">{escape(lines[0])}</p><ul class="soft">{items}</ul>'
