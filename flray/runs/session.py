"""A run, a trial or a sweep while it is worked on: one way to begin, to go on, to be tracked and to end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from flray.config.experiment import Experiment
from flray.runs import directory
from flray.runs.directory import RunStatus
from flray.runs.journal import Journal
from flray.runs.journal import Status as JournalStatus
from flray.tracking.address import redact

Notify = Callable[[str], None]
EndStatus = Literal["finished", "stopped", "failed", "interrupted"]
_IN_JOURNAL: dict[EndStatus, JournalStatus] = {
    "finished": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}


class RunSession:
    """Begins or goes on with what a folder holds, and records its end.

    Parameters
    ----------
    folder : Path
        Of a run, a trial or a sweep.
    experiment : Experiment
        For the MLflow experiment.
    name : str
        The run's name in MLflow.
    tags, params : mapping of str to str
        For MLflow, besides what identifies the run.
    parent : str, optional
        The uid of a trial's sweep.
    labels : mapping of str to str, optional
        Tags of this going on, which the beginning had not.
    **changes
        Further values of the folder's description to set now.
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
        """Record the end, in the journal first: what has no end in its description is gone on with.

        Parameters
        ----------
        status : str
            The folder's status from now on.
        tracked_as : str, optional
            MLflow's status where it is another one.
        **values
            Further values of the folder's description.
        """
        self.journal.end(tracked_as or _IN_JOURNAL[status])
        directory.update(self.folder, status=status, **values)

    def close(self) -> None:
        """Close the journal; what has not ended then was interrupted."""
        self.journal.close()


@contextlib.contextmanager
def recording_failure(session: RunSession) -> Iterator[None]:
    """Record in a session that the block was interrupted or failed; within `tracking`, to be sent."""
    try:
        yield
    except BaseException as error:
        session.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise


@contextlib.contextmanager
def tracking(
    folder: Path, uri: str | None, notify: Notify, children: Iterator[Path], patience: float
) -> Iterator[Any]:
    """Send journals to MLflow while the block runs, and what is left at its end.

    Parameters
    ----------
    folder : Path
        The run's or the sweep's.
    uri : str or None
        MLflow's address; nothing is sent without.
    notify : callable
        Is given the lines a user should see.
    children : iterator of Path
        A sweep's trials that have begun; further ones may be registered meanwhile.
    patience : float
        Seconds to wait at the end for what has not been sent.

    Yields
    ------
    Tracker or None
        What sends.
    """
    if uri is None:
        yield None
        return
    # Only here, for it imports MLflow, which a run without tracking does not need.
    from flray.tracking.background import Tracker

    tracker = Tracker(uri, say=notify)
    tracker.register(folder)
    for child in children:
        tracker.register(child, parent_dir=folder)
    try:
        yield tracker
    finally:
        unsent = tracker.close(timeout=patience)
        if unsent:
            notify(
                f"{unsent} entries could not be sent to {redact(uri)}; they are kept: "
                f"flray sync {folder}"
            )


def identity_tags(folder: Path) -> dict[str, str]:
    """Return MLflow's tags of what identifies a run: versions, fingerprints, CPU and the folder."""
    identity = directory.read(folder)
    tags = {f"version.{name}": version for name, version in identity.get("versions", {}).items()}
    tags |= {
        f"{part}.fingerprint": identity[part] for part in ("data", "partition") if part in identity
    }
    cpu = identity.get("cpu", {})
    tags |= {f"cpu.{part}": cpu[part] for part in ("bits", "model", "capability") if part in cpu}
    tags |= {f"origin.{name}": origin for name, origin in identity.get("origins", {}).items()}
    return {**tags, "flray.folder": str(folder)}
