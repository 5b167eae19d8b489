"""The pictures of a finished run."""

from __future__ import annotations

from pathlib import Path

from flray.federation.diagnostics import FINAL_DIAGNOSTICS, INITIAL_DIAGNOSTICS, PARTITION
from flray.metrics.direction import measure_name
from flray.runs import directory
from flray.runs.journal import Journal

VIEWS = ("global/common", "global/local", "personal/local", "personal/others")
_FURTHER = ("auc", "hausdorff95")
"""Measures besides the task's own that get a picture where a task has them."""


def draw_figures(folder: Path, journal: Journal, metric: str) -> None:
    """Draw the figures of a run or of a sweep's trial, from what lies in its folder, and list them for MLflow.

    Parameters
    ----------
    folder : Path
        The run's.
    journal : Journal
        Its journal.
    metric : str
        What the run is judged by; empty where nothing was measured.
    """
    from flray.data.partition_plot import ClientHoldings, bubble_chart
    from flray.tracking.plots import client_bars, learning_curves

    figures = folder / directory.FIGURES
    figures.mkdir(exist_ok=True)
    history = journal.history()
    made: list[str] = []
    own = measure_name(metric)
    for name in (own, *(other for other in _FURTHER if other != own)):
        curves = [f"{view}/{name}" for view in VIEWS if f"{view}/{name}" in history.columns]
        if curves:
            picture = "curves.png" if name == own else f"curves-{name}.png"
            learning_curves(history, curves, figures / picture)
            made.append(picture)
    view = next(
        (
            v
            for v in ("personal/local", "global/local")
            if f"{v}/{own}" in history and history[f"{v}/{own}"].notna().any()
        ),
        None,
    )
    if view is not None:
        prefix = f"{view}/{own}/client/"
        last = (
            history[history[f"{view}/{own}"].notna()]
            .iloc[-1:]
            .dropna(axis="columns")
            .to_dict("records")[-1]
        )
        values = {
            str(n).removeprefix(prefix): float(v)
            for n, v in last.items()
            if str(n).startswith(prefix)
        }
        if values:
            client_bars(values, prefix.removesuffix("/client/"), figures / "clients.png")
            made.append("clients.png")
    if (folder / PARTITION).exists():
        bubble_chart(ClientHoldings.read(folder / PARTITION), figures / "partition.png")
        made.append("partition.png")
    for name in made:
        journal.artifact(f"{directory.FIGURES}/{name}", directory.FIGURES)
    for name in (
        directory.CONFIG,
        *(n for n in (PARTITION, INITIAL_DIAGNOSTICS, FINAL_DIAGNOSTICS) if (folder / n).exists()),
    ):
        journal.artifact(name)
