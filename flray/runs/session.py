"""Sessions of a run, trial or sweep: start or resume it, track it, draw its figures, record its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flray.metrics import TEST_VIEWS, lower_is_better, measure_name
from flray.records import Journal, Status, directory, read_partition
from flray.runs.identity import DATA, PLUGINS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from flray.config.experiment import Experiment
from flray.errors import RayNotStartedError
from flray.files.tracking_address import redact

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""
POSITIVE = "positive class"
"""Tag and fact of the data in MLflow: the class that sensitivity, F1 and so on are about."""
Notify = Callable[[str], None]
EndStatus = Literal["finished", "stopped", "failed", "interrupted"]
_IN_JOURNAL: dict[EndStatus, Status] = {
    "finished": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}


class RunSession:
    """Starts or resumes the run, trial or sweep of a folder, and records its end.

    Parameters
    ----------
    folder : Path
        The folder of a run, trial or sweep.
    experiment : Experiment
        Its settings name the MLflow experiment.
    name : str
        The run's name in MLflow.
    tags, params : mapping of str to str
        For MLflow, besides the identity tags.
    parent : str, optional
        The uid of a trial's sweep.
    labels : mapping of str to str, optional
        Tags to add at this resume.
    **changes
        Further values to set in the folder's description.
    """

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        *,
        name: str,
        tags: Mapping[str, str],
        params: Mapping[str, str],
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> None:
        self.folder, self.journal = folder, Journal(folder / directory.JOURNAL)
        self.journal.start(
            uid=directory.read(folder)["uid"],
            experiment=experiment.tracking.experiment,
            parent=parent,
            name=name,
            tags={**identity_tags(folder), **tags},
            params=params,
        )
        if labels:
            self.journal.tags(labels)
        directory.update(folder, status="running", **changes)

    def end(self, status: EndStatus, tracked_as: Status | None = None, **values: Any) -> None:
        """Record the end, in the journal first: without an end in its description, a run is resumable.

        Parameters
        ----------
        status : str
            The folder's new status.
        tracked_as : str, optional
            MLflow's status if it differs.
        **values
            Further values of the folder's description.
        """
        self.journal.end(tracked_as or _IN_JOURNAL[status])
        directory.update(self.folder, status=status, **values)


@contextlib.contextmanager
def recording_failure(session: RunSession) -> Iterator[None]:
    """Record an interrupt or failure of the block; use it inside `tracking`, so that it is sent."""
    try:
        yield
    except BaseException as error:
        session.end(status_after(error))
        raise


def status_after(error: BaseException) -> EndStatus:
    """Return the status of a run or sweep that an error has ended."""
    waits = isinstance(error, KeyboardInterrupt | RayNotStartedError)
    return "interrupted" if waits else "failed"


@contextlib.contextmanager
def tracking(
    folder: Path,
    uri: str | None,
    notify: Notify,
    children: Iterator[tuple[Path, Path | None]],
    patience: float,
    every: int = 1,
    rest: float = 0.0,
) -> Iterator[Any]:
    """Send journals to MLflow while the block runs, and the rest at its end.

    Parameters
    ----------
    folder : Path
        The folder of the run or sweep.
    uri : str or None
        MLflow's address; nothing is sent without.
    notify : callable
        Called with lines that the user should see.
    children : iterator of (Path, Path)
        Folders of a sweep's started trials and settings, each with that of its parent; more may be
        registered later.
    patience : float
        Seconds to wait at the end for unsent events.
    every : int
        Only rounds that this divides are sent, and the last.
    rest : float
        Seconds until the first sending.

    Yields
    ------
    Tracker or None
        The sender.
    """
    if uri is None:
        yield None
        return
    # Imported here: a run without tracking does not need MLflow.
    from flray.tracking.background import Tracker

    tracker = Tracker(uri, say=notify, every=every, rest=rest)
    tracker.register(folder)
    for child, parent in children:
        tracker.register(child, parent_dir=parent)
    try:
        yield tracker
    finally:
        if unsent := tracker.close(timeout=patience):
            notify(
                f"{unsent} entries could not be sent to {redact(uri)}; they are kept: flray sync {folder}"
            )


def record_data(journal: Journal, held: Mapping[str, Any]) -> None:
    """Record a run's data set, for MLflow's inputs.

    Parameters
    ----------
    journal : Journal
        The run's.
    held : mapping
        What `flray.federation.partition_summary` returns.
    """
    clients, digest = held["clients"], held.get("fingerprints", {}).get("data")
    if digest is None:  # an older flray wrote it
        return
    if positive := held.get("positive"):
        journal.tags({POSITIVE: str(positive)})
    origins = ", ".join(dict.fromkeys(map(str, held["origins"].values())))
    journal.data(
        str(held["dataset"]),
        str(digest),
        origins or "flray",
        {
            "clients": len(clients),
            "training samples": int(sum(sum(client["train"]) for client in clients)),
            "test samples": int(sum(client["test"] for client in clients)),
            "classes": len(held["classes"]),
            **({POSITIVE: positive} if positive else {}),
        },
    )


def data_tags(held: Mapping[str, Any]) -> dict[str, str]:
    """Return a trial's tags of fingerprints and origins, from the same as `record_data`."""
    return {
        **{f"{part}.fingerprint": sha for part, sha in held.get("fingerprints", {}).items()},
        **{f"origin.{name}": origin for name, origin in held["origins"].items()},
    }


def record_held(journal: Journal, folder: Path) -> None:
    """Record the data set from an existing partition.json."""
    if (folder / directory.PARTITION).exists():
        record_data(journal, read_partition(folder / directory.PARTITION))


def identity_tags(folder: Path) -> dict[str, str]:
    """Return MLflow's identity tags of a run: versions, fingerprints, CPU and the folder."""
    identity = directory.read(folder)
    cpu, source = identity.get("cpu", {}), identity.get("source", {})
    known = {
        "data.fingerprint": identity.get("data"),
        "partition.fingerprint": identity.get("partition"),
        "mlflow.user": source.get("user"),
        "mlflow.source.name": source.get("command"),
        "mlflow.source.git.commit": source.get("commit"),
        "mlflow.source.git.branch": source.get("branch"),
        "mlflow.source.type": "LOCAL" if source else None,
    }
    return {
        **{f"version.{name}": version for name, version in identity.get("versions", {}).items()},
        **{f"cpu.{part}": cpu[part] for part in ("bits", "model", "capability") if part in cpu},
        **{tag: text for tag, text in known.items() if text},
        **{f"origin.{name}": origin for name, origin in identity.get("origins", {}).items()},
        "flray.folder": str(folder),
    }


_FURTHER_MEASURES = ("auc", "hausdorff95")
"""Measures besides the task's primary one that get a figure if the task has them."""
_MOST_BARS = 30
"""Most clients in a figure of a run: the worst."""


def list_files(folder: Path, journal: Journal) -> None:
    """List the files of a run or trial for MLflow: its settings, and the other files in its folder."""
    journal.artifact(directory.CONFIG)
    for name in (
        directory.PARTITION,
        DATA,
        directory.INITIAL_DIAGNOSTICS,
        directory.FINAL_DIAGNOSTICS,
    ):
        if (folder / name).exists():
            journal.artifact(name)
    if (folder / PLUGINS).is_dir():
        journal.artifact(PLUGINS, PLUGINS)


def draw_figures(folder: Path, journal: Journal, metric: str) -> None:
    """Draw the figures of a run from the files in its folder, and list all of them for MLflow.

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
    from flray.drawing.grids import draw_partition

    figures = _draw_metrics(journal.history(), measure_name(metric))
    if (folder / directory.PARTITION).exists():
        figures["partition.png"] = draw_partition(read_partition(folder / directory.PARTITION))
    for name, figure in figures.items():
        save_figure(figure, folder / directory.FIGURES / name)
        journal.artifact(f"{directory.FIGURES}/{name}", directory.FIGURES)
    list_files(folder, journal)


def _draw_metrics(history: pd.DataFrame, measure: str) -> dict[str, Figure]:
    """Return the learning curves and the clients' last values by the names of their files."""
    from flray.drawing.charts import BarPanel, Line, LinePanel, draw_bars, draw_lines  # start-up

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
            last = evaluated.iloc[-1].filter(like=prefix).dropna().astype(float)
            worst = last.sort_values(ascending=not lower_is_better(metric))[:_MOST_BARS]
            if len(worst):
                names = [str(name).removeprefix(prefix) for name in worst.index]
                title = (
                    f"the worst {len(worst)} of {len(last)} clients"
                    if len(worst) < len(last)
                    else ""
                )
                bars = BarPanel(title, names, {metric: worst.to_numpy()})
                figures["clients.png"] = draw_bars([bars], metric)
            break
    return figures
