"""The pictures of a finished run."""

from __future__ import annotations

from pathlib import Path

from flray import rundir
from flray.federation.portrait import AFTER, BEFORE, PARTITION
from flray.federation.world import World
from flray.rounds import measure
from flray.tracking.journal import Journal


def draw(folder: Path, journal: Journal, world: World) -> None:
    """Draw the figures and list them for MLflow."""
    from flray.data.show import bubble_chart
    from flray.tracking.plots import client_bars, learning_curves

    figures = folder / rundir.FIGURES
    figures.mkdir(exist_ok=True)
    history, metric = journal.history(), measure(world)
    made: list[str] = []
    curves = [name for name in ("global/common/accuracy", "global/local/accuracy", "personal/local/accuracy",
                                "personal/others/accuracy", metric) if name in history.columns]
    if curves:
        learning_curves(history, list(dict.fromkeys(curves)), figures / "curves.png")
        made.append("curves.png")
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
