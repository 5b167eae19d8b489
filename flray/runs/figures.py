"""The figures of a finished run or trial."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flray.config.shapes import read_partition
from flray.federation.diagnostic_files import FINAL_DIAGNOSTICS, INITIAL_DIAGNOSTICS, PARTITION
from flray.metrics.names import TEST_VIEWS, measure_name
from flray.records import directory
from flray.records.journal import Journal
from flray.runs.identity import DATA, PLUGINS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_FURTHER_MEASURES = ("auc", "hausdorff95")
"""Measures besides the task's primary one that get a figure if the task has them."""


def draw_figures(folder: Path, journal: Journal, metric: str) -> None:
    """Draw the figures of a run or of a sweep's trial from the files in its folder, and list them for MLflow.

    Parameters
    ----------
    folder : Path
        The run's folder.
    journal : Journal
        Its journal.
    metric : str
        The primary metric; empty if nothing was measured.
    """
    # Imported here: matplotlib takes a second, and only the end of a run needs it.
    from flray.drawing.canvas import save_figure
    from flray.drawing.grids import PartitionCounts, draw_partition

    figures = _draw_metrics(journal.history(), measure_name(metric))
    if (folder / PARTITION).exists():
        record = read_partition(folder / PARTITION)
        figures["partition.png"] = draw_partition(PartitionCounts.from_record(record))
    for name, figure in figures.items():
        save_figure(figure, folder / directory.FIGURES / name)
        journal.artifact(f"{directory.FIGURES}/{name}", directory.FIGURES)
    journal.artifact(directory.CONFIG)
    for name in (PARTITION, DATA, INITIAL_DIAGNOSTICS, FINAL_DIAGNOSTICS):
        if (folder / name).exists():
            journal.artifact(name)
    if (folder / PLUGINS).is_dir():
        journal.artifact(PLUGINS, PLUGINS)


def _draw_metrics(history: pd.DataFrame, measure: str) -> dict[str, Figure]:
    """Return the learning curves and the clients' last values by the names of their files."""
    from flray.drawing.charts import Line, LinePanel, draw_clients, draw_lines  # start-up

    figures: dict[str, Figure] = {}
    for name in (measure, *(other for other in _FURTHER_MEASURES if other != measure)):
        lines = []
        for view in TEST_VIEWS:
            if f"{view}/{name}" in history:
                measured = history[["round", f"{view}/{name}"]].dropna()
                lines.append(Line(f"{view}/{name}", *measured.to_numpy(dtype=float).T))
        if lines:
            file = "curves.png" if name == measure else f"curves-{name}.png"
            figures[file] = draw_lines([LinePanel("", lines)], "round", name)
    for view in ("personal/local", "global/local"):
        metric = f"{view}/{measure}"
        evaluated = history[history[metric].notna()] if metric in history else history.iloc[:0]
        if len(evaluated):
            prefix = f"{metric}/client/"
            last = evaluated.iloc[-1].dropna()
            values = {
                str(name).removeprefix(prefix): float(value)
                for name, value in last.items()
                if str(name).startswith(prefix)
            }
            if values:
                figures["clients.png"] = draw_clients(values, metric)
            break
    return figures
