"""From comparisons to the panels of a report's figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from matplotlib.figure import Figure

from flray.drawing.comparisons import ForestPanel, Interval, draw_forest, draw_ranks
from flray.results.paired import Difference
from flray.results.study import Studies, Study

_MAX_PANELS, _MAX_ROWS = 8, 20


def forest(studies: Studies) -> Figure | None:
    """Return the forest plot of all comparisons with an interval; None without any."""
    panels = [panel for study in studies.each if (panel := _panel(study, studies)).rows]
    if not panels:
        return None
    units = {study.unit for study in studies.each}
    unit = f", {units.pop()}" if len(units) == 1 and units != {""} else ""
    return draw_forest(panels[:_MAX_PANELS], f"how much better the first is{unit}")


def _panel(study: Study, studies: Studies) -> ForestPanel:
    """Return a study's panel: all pairs, or where they are many those of the best setting."""
    measures = {one.measure for one in studies.each}
    title = " · ".join(filter(None, [study.place, study.measure if len(measures) > 1 else ""]))
    against = study.reference in study.values
    every = [one if against else one.better_first() for one in study.differences]
    best = next(iter(study.means))
    if len(every) > _MAX_ROWS and not against:
        every = [one for one in every if best in (one.first, one.second)]
    shown = [one for one in every if one.verdict != "withheld"]
    rows = [_interval(one) for one in shown if not math.isnan(one.low_corrected)]
    rows.sort(key=lambda row: -row.mean)
    return ForestPanel(title, rows[:_MAX_ROWS])


def _interval(one: Difference) -> Interval:
    name = f"{one.first} – {one.second}"
    low, high = one.low_corrected, one.high_corrected
    if one.lower:
        return Interval(name, -one.mean, -high, -low, one.decided)
    return Interval(name, one.mean, low, high, one.decided)


def rank_figures(studies: Studies) -> Iterator[tuple[str, Figure]]:
    """Yield a name and a critical-difference diagram for each measure with ranks."""
    found = itertools.islice(studies.ranks.values(), _MAX_PANELS)
    for number, ranks in enumerate(found, start=1):
        name = f"ranks-{number}" if number > 1 else "ranks"
        yield name, draw_ranks(ranks.names, ranks.means, ranks.critical, ranks.together)
