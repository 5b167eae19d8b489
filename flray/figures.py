"""The pictures of a finished run."""

from __future__ import annotations

from pathlib import Path

from flray import rundir
from flray.federation.portrait import AFTER, BEFORE, PARTITION
from flray.federation.world import World
from flray.metrics.direction import measure_of
from flray.rounds import measure
from flray.tracking.journal import Journal

VIEWS = ("global/common", "global/local", "personal/local", "personal/others")
_FURTHER = ("auc", "hausdorff95")
"""Measures besides the task's own that get a picture where a task has them."""


def draw(folder: Path, journal: Journal, world: World) -> None:
    """Draw the figures and list them for MLflow."""
    from flray.data.show import bubble_chart
    from flray.tracking.plots import client_bars, learning_curves

    figures = folder / rundir.FIGURES
    figures.mkdir(exist_ok=True)
    history, metric = journal.history(), measure(world)
    made: list[str] = []
    own = measure_of(metric)
    for name in (own, *(other for other in _FURTHER if other != own)):
        curves = [f"{view}/{name}" for view in VIEWS if f"{view}/{name}" in history.columns]
        if curves:
            picture = "curves.png" if name == own else f"curves-{name}.png"
            learning_curves(history, curves, figures / picture)
            made.append(picture)
    view = next((v for v in ("personal/local", "global/local") if f"{v}/{metric.rsplit('/', 1)[1]}" in history), None)
    if view is not None:
        prefix = f"{view}/{metric.rsplit('/', 1)[1]}/client/"
        last = history.iloc[-1]
        values = {str(n).removeprefix(prefix): float(last[n]) for n in history.columns if str(n).startswith(prefix)}
        if values:
            client_bars(values, prefix.removesuffix("/client/"), figures / "clients.png")
            made.append("clients.png")
    bubble_chart(world.data, figures / "partition.png")
    made.append("partition.png")
    for name in made:
        journal.artifact(f"{rundir.FIGURES}/{name}", rundir.FIGURES)
    for name in (rundir.CONFIG, *(n for n in (PARTITION, BEFORE, AFTER) if (folder / n).exists())):
        journal.artifact(name)
