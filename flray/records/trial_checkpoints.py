"""Checkpoints of a sweep's trials in its folder or bucket."""

import re
from dataclasses import dataclass
from pathlib import Path

from flray.files import storage

TRIALS, TUNE = "trials", "tune"
"""Folders in a sweep's folder: run folders of the trials, and their checkpoints."""
SESSION, TAKEN_OVER = "001", "000"
"""Folders of checkpoints: those of the sweep itself, and those that came with trials taken over.

An older flray wrote those of its later sessions to ``002`` and so on.
"""


@dataclass(frozen=True)
class CheckpointRef:
    """A trial's checkpoint in a sweep's folder or bucket.

    Attributes
    ----------
    uri : str
        Its address.
    round : int
        Rounds done.
    """

    uri: str
    round: int


def checkpoint_uri(folder: str, trial: str, round_: int) -> str:
    """Return the place of a trial's new checkpoint."""
    return f"{folder}/{SESSION}/{trial}/round_{round_:06d}"


def in_order(folder: Path) -> list[Path]:
    """Return the files of a checkpoint, last the one that names the others."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return sorted(files, key=lambda path: path.match("round-*.json"))


def checkpoints(folder: str, trial: str) -> list[CheckpointRef]:
    """Return a trial's checkpoints of all sessions, newest first; some may be incomplete after a kill.

    A folder that was written twice into holds the later round only: all of it is read as one.
    """
    found: dict[str, tuple[int, str]] = {}
    for session in storage.names(folder):
        for name in storage.files(f"{folder}/{session}/{trial}"):
            inside, _, file = name.partition("/")
            if match := re.fullmatch(r"round-(\d+)\.json", file):
                uri = f"{folder}/{session}/{trial}/{inside}"
                found[uri] = max(found.get(uri, (0, "")), (int(match[1]), session))
    newest = sorted(((*place, uri) for uri, place in found.items()), reverse=True)
    return [CheckpointRef(uri, done) for done, _, uri in newest]


def remove_old_checkpoints(folder: str, trial: str, keep: int = 3) -> None:
    """Remove a trial's checkpoints but the newest: every session leaves two, and large models' fill a disk.

    The newest may be incomplete, and those before it too far behind the trial's journal or ahead
    of it, hence three.
    """
    for old in checkpoints(folder, trial)[keep:]:
        storage.remove_folder(old.uri)
