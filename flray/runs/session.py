"""Sessions of a run, trial or sweep: start or resume it, track it, record its end."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from flray.config.experiment import Experiment
from flray.config.shapes import read_partition
from flray.errors import RayNotStartedError
from flray.federation.diagnostic_files import PARTITION
from flray.files.tracking_address import redact
from flray.records import directory
from flray.records.directory import RunStatus
from flray.records.journal import Journal
from flray.records.journal import Status as JournalStatus

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""
POSITIVE = "positive class"
"""Tag and fact of the data in MLflow: the class that sensitivity, F1 and so on are about."""
Notify = Callable[[str], None]
EndStatus = Literal["finished", "stopped", "failed", "interrupted"]
_IN_JOURNAL: dict[EndStatus, JournalStatus] = {
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
        began = self.journal.start(
            uid=directory.read(folder)["uid"],
            experiment=experiment.tracking.experiment,
            parent=parent,
            name=name,
            tags={**identity_tags(folder), **tags},
            params=params,
        )
        if not began:
            self.journal.resume()
        if labels:
            self.journal.tags(labels)
        status: RunStatus = "running"
        directory.update(folder, status=status, **changes)

    def end(
        self, status: EndStatus, tracked_as: JournalStatus | None = None, **values: Any
    ) -> None:
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

    def close(self) -> None:
        """Close the journal; a session that has not ended was interrupted."""
        self.journal.close()


@contextlib.contextmanager
def recording_failure(session: RunSession) -> Iterator[None]:
    """Record an interrupt or failure of the block; use it inside `tracking`, so that it is sent."""
    try:
        yield
    except BaseException as error:
        waits = isinstance(error, KeyboardInterrupt | RayNotStartedError)
        session.end("interrupted" if waits else "failed")
        raise


@contextlib.contextmanager
def tracking(
    folder: Path,
    uri: str | None,
    notify: Notify,
    children: Iterator[tuple[Path, Path | None]],
    patience: float,
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

    tracker = Tracker(uri, say=notify)
    tracker.register(folder)
    for child, parent in children:
        tracker.register(child, parent_dir=parent)
    try:
        yield tracker
    finally:
        unsent = tracker.close(timeout=patience)
        if unsent:
            notify(
                f"{unsent} entries could not be sent to {redact(uri)}; they are kept: "
                f"flray sync {folder}"
            )


def record_data(journal: Journal, held: Mapping[str, Any]) -> None:
    """Record a run's data set, for MLflow's inputs.

    Parameters
    ----------
    journal : Journal
        The run's.
    held : mapping
        What `flray.federation.spec.partition_summary` returns.
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


def record_held(journal: Journal, folder: Path) -> None:
    """Record the data set from an existing partition.json."""
    if (folder / PARTITION).exists():
        record_data(journal, read_partition(folder / PARTITION))


def identity_tags(folder: Path) -> dict[str, str]:
    """Return MLflow's identity tags of a run: versions, fingerprints, CPU and the folder."""
    identity = directory.read(folder)
    tags = {f"version.{name}": version for name, version in identity.get("versions", {}).items()}
    fingerprints = {"data": identity.get("data"), "partition": identity.get("partition")}
    tags |= {f"{part}.fingerprint": digest for part, digest in fingerprints.items() if digest}
    cpu = identity.get("cpu", {})
    tags |= {f"cpu.{part}": cpu[part] for part in ("bits", "model", "capability") if part in cpu}
    source = identity.get("source", {})
    tags |= {
        tag: source[part]
        for tag, part in (
            ("mlflow.user", "user"),
            ("mlflow.source.name", "command"),
            ("mlflow.source.git.commit", "commit"),
            ("mlflow.source.git.branch", "branch"),
            ("git.changed", "changed"),
        )
        if source.get(part)
    }
    tags |= {"mlflow.source.type": "LOCAL"} if source else {}
    tags |= {f"origin.{name}": origin for name, origin in identity.get("origins", {}).items()}
    return {**tags, "flray.folder": str(folder)}
