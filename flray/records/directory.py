"""Run and sweep folders: creation, lookup, file names, and the description of a run.

``runs/<name>/<number>/`` holds ``config.yaml`` (resolved), ``run.json`` (identity, versions,
status, result), ``journal.jsonl`` (history and outbox), ``checkpoint/`` and ``figures/``. A sweep
has ``sweep.json`` in place of ``run.json`` and its trials' folders under ``trials/``.
"""

import contextlib
import functools
import getpass
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from flray import bits, files
from flray.config.experiment import Config
from flray.config.yaml_files import dump, read_yaml
from flray.errors import FlrayError, explained, nearest
from flray.files import storage, write_atomically
from flray.files.tracking_address import at_home, redact, resolve_uri

FolderKind = Literal["run", "sweep"]
RunStatus = Literal["waiting", "running", "interrupted", "finished", "stopped", "failed"]
CONFIG, JOURNAL, CHECKPOINT, FIGURES = "config.yaml", "journal.jsonl", "checkpoint", "figures"
PARTITION = "partition.json"
INITIAL_DIAGNOSTICS, FINAL_DIAGNOSTICS = "portrait-before.npz", "portrait.npz"


@with_config(ConfigDict(strict=True, extra="allow"))
class RunRecord(TypedDict, total=False):
    """The content of ``run.json`` or ``sweep.json``; an older flray may have left some of it out."""

    uid: Required[Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]]  # it names folders
    status: Required[RunStatus]
    created: str
    source: dict[str, str]
    workers: list[str]
    versions: dict[str, str]
    cpu: dict[str, Any]
    gpus: list[dict[str, str]]
    other_cpus: list[dict[str, Any]]
    other_gpus: list[list[dict[str, str]]]
    data: str
    partition: str
    origins: dict[str, str]
    settings: dict[str, str]
    identity: dict[str, str] | None
    code: dict[str, dict[str, str]] | None
    other_code: list[dict[str, dict[str, str]]]
    phase: str
    compared: dict[str, Any]
    repetition: int
    metric: str | None
    rounds: int
    sha256: str | None
    failure: str | None
    best: str
    files: dict[str, str]
    history: str
    taken_over: str | None
    taking_over: str | None


class TrialRecord(RunRecord, total=False):
    """The content of a trial's ``run.json``."""

    setting: Required[dict[str, Any]]
    seed: Required[int]
    setting_at_end: dict[str, Any]  # of population based training in flray 0.1


class _Named(BaseModel, strict=True):
    name: str


class _Evaluation(BaseModel, strict=True):
    last: int
    protocol: str = ""


class _Tracking(BaseModel, strict=True):
    uri: str | None = None


class _Experiment(_Named):
    seed: int
    rounds: int
    algorithm: _Named
    evaluation: _Evaluation
    tracking: _Tracking


class _Scored(BaseModel, strict=True):
    metric: str = ""


class _Sweep(_Scored):
    tune: _Scored | None = None
    scheduler: dict[str, Any] | None = None
    only: dict[str, Any] = {}


class _Settings(BaseModel, strict=True):
    experiment: _Experiment
    sweep: _Sweep = _Sweep()
    arms: dict[str, Any] | None = None
    space: dict[str, Any] | None = None
    paper: dict[str, Any] | None = None


RUN, _TRIAL = TypeAdapter(RunRecord), TypeAdapter(TrialRecord)


def create(base: str | Path, name: str) -> Path:
    """Create and return a new folder ``base/name/NNN``; two processes never get the same one.

    For an address the folder is local and `remote_uri` returns the address of its copy; numbers
    used there are skipped.

    Raises
    ------
    FlrayError
        If the folder cannot be created.
    """
    parent = _local_base(base) / name
    taken = set(_remote_numbers(str(base), name)) if storage.is_remote(base) else set()
    with explained(
        OSError,
        f"{parent}: no folder for results can be made here",
        "set experiment.output to a folder that can be written",
        FlrayError,
    ):
        parent.mkdir(parents=True, exist_ok=True)
        taken |= {path.name for path in parent.iterdir()}
        number = max(map(int, files.numbered(taken)), default=0) + 1
        while True:
            folder = parent / f"{number:03d}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1


@contextlib.contextmanager
def new_folder(base: str | Path, name: str) -> Iterator[Path]:
    """Create a folder as `create` does; remove it if the block ends before it describes a run or sweep."""
    folder = create(base, name)
    try:
        yield folder
    except BaseException:
        if folder_kind(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def find(text: str, base: str | Path = "runs") -> Path:
    """Return the folder of a run or sweep given as a path, as ``name/number`` or as a name (its newest).

    Raises
    ------
    FlrayError
        If there is none, when the message names the nearest one, or if it holds links out of it.
    """
    folder = _find(text, base)
    files.check_links(folder)
    return folder


def _find(text: str, base: str | Path) -> Path:
    if storage.is_remote(base):
        _download_run(text, str(base))
    base = _local_base(base)
    for candidate in (Path(text), Path(base) / text):
        # Not a valid file name, or a folder without permission.
        with explained((OSError, ValueError), f"{candidate}: cannot be read", kind=FlrayError):
            if folder_kind(candidate) is not None:
                return candidate
            numbered = (
                [
                    candidate / name
                    for name in files.numbered(p.name for p in candidate.iterdir())
                    if folder_kind(candidate / name)
                ]
                if candidate.is_dir()
                else []
            )
        if numbered:
            return numbered[-1]
    known = (
        sorted({str(p.parent.parent.relative_to(base)) for p in Path(base).glob("*/*/*.json")})
        if Path(base).is_dir()
        else []
    )
    raise FlrayError(
        f"no run or sweep {text!r}{nearest(text, known)}; give its folder, for example {base}/NAME/001"
    )


def place_of(folder: Path) -> str:
    """Return NAME/NUMBER of a run or sweep, and of a trial also its place below: the rest is this machine's matter."""
    whole = folder.resolve()
    return "/".join(whole.parts[-4 if whole.parent.name == TRIALS else -2 :])


def remote_uri(folder: Path, output: str | Path) -> str | None:
    """Return the address of a run folder's copy, or None if it has none."""
    if not storage.is_remote(output):
        return None
    return f"{str(output).rstrip('/')}/{folder.parent.name}/{folder.name}"


def _local_base(base: str | Path) -> Path:
    if storage.is_remote(base):
        return storage.local_cache_of(str(base))
    return Path(at_home(str(base)))


def _remote_numbers(base: str, name: str) -> list[str]:
    return files.numbered(storage.names(f"{base.rstrip('/')}/{name}"))


def _download_run(text: str, base: str) -> None:
    """Download a run or sweep from its address, unless the local copy is the latest."""
    name, _, number = text.strip("/").partition("/")
    numbers = [number] if number else _remote_numbers(base, name)[-1:]
    for found in numbers:
        folder, uri = _local_base(base) / name / found, f"{base.rstrip('/')}/{name}/{found}"
        if folder_kind(folder) is not None and not continued_elsewhere(folder, uri):
            continue
        if (
            folder.exists()
        ):  # nothing is deleted, and a partial download is never taken for a complete one
            places = (folder.with_name(f"{found}.old-{n}") for n in itertools.count(1))
            folder.rename(next(place for place in places if not place.exists()))
        storage.fetch(uri, folder, mark=files.FETCHED_MARK)


def continued_elsewhere(folder: Path, uri: str) -> bool:
    """Return whether the last worker at an address is unknown to the local copy."""
    data = storage.read(f"{uri}/{folder_kind(folder)}.json")
    if data is None:
        return False
    try:
        workers = RUN.validate_json(data).get("workers", [])
    except ValidationError:
        raise FlrayError(
            f"{uri}/{folder_kind(folder)}.json: cannot be read; restore it, or start anew"
        ) from None
    return bool(workers) and workers[-1] not in read(folder).get("workers", ())


def tracking_uri(folder: Path) -> str | None:
    """Return the tracking address in a run's settings, without loading plug-ins.

    Raises
    ------
    FlrayError
        If the settings have none, or it may be a stranger's; see `flray.files.own_tracking`.
    """
    try:
        uri = read_yaml(folder / CONFIG)["experiment"]["tracking"]["uri"]
    except (KeyError, TypeError):
        raise FlrayError(
            f"{folder / CONFIG}: experiment.tracking.uri is missing; name a server with --uri"
        ) from None
    return files.own_tracking(folder, None if uri is None else str(uri))


def folder_kind(folder: Path) -> FolderKind | None:
    """Return the kind of a folder (run or sweep), or None."""
    if (folder / "run.json").is_file():
        return "run"
    return "sweep" if (folder / "sweep.json").is_file() else None


def read(folder: Path) -> RunRecord:
    """Return the folder's ``run.json`` or ``sweep.json``.

    Raises
    ------
    FlrayError
        If it is damaged.
    """
    return files.read_json(folder / f"{folder_kind(folder)}.json", RUN)


def read_trial(folder: Path) -> TrialRecord:
    """Return the ``run.json`` of a trial; raises as `read` does."""
    return files.read_json(folder / "run.json", _TRIAL)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the folder's resolved configuration as written, without resolving component names.

    Raises
    ------
    FlrayError
        If it is damaged.
    """
    content = read_yaml(folder / CONFIG)
    try:
        _Settings.model_validate(content)
    except ValidationError as error:
        raise files.misshapen(folder / CONFIG, error) from None
    return content


def write(folder: Path, which: FolderKind, content: Mapping[str, Any]) -> None:
    """Write ``run.json`` or ``sweep.json`` atomically."""
    write_atomically(
        folder / f"{which}.json", json.dumps(content, indent=1, sort_keys=True).encode()
    )


def update(folder: Path, **values: Any) -> None:
    """Change single values of ``run.json`` or ``sweep.json``."""
    which = folder_kind(folder)
    assert which is not None
    write(folder, which, {**read(folder), **values})


def new_identity(setting: str = "native") -> dict[str, Any]:
    """Return a fresh uid, the time, the versions and the CPU model.

    Parameters
    ----------
    setting : str
        ``resources.bits``.
    """
    return {
        "uid": uuid.uuid4().hex,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "status": "running",
        "versions": versions(),
        "cpu": bits.identity(setting),
        "source": source(),
    }


@functools.cache
def source() -> dict[str, str]:
    """Return the user, the command and the git commit that a run began with.

    Returns
    -------
    dict of str to str
        ``user`` and ``command``; ``commit`` and ``branch`` if the current folder is in a git
        repository.
    """
    program = Path(sys.argv[0])
    name = "flray" if program.name == "__main__.py" else program.name  # python -m flray
    found = {"user": _user(), "command": " ".join(map(redact, [name, *sys.argv[1:]]))}
    command = ["git", "rev-parse", "HEAD", "--abbrev-ref", "HEAD"]
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        asked = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        found["commit"], found["branch"] = asked.stdout.split()
    return found


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name, as in a container
        return str(os.getuid())


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect results."""
    found = {"python": platform.python_version()}
    for name in ("flray", "torch", "torchvision", "numpy", "ray", "mlflow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def save_config(folder: Path, config: Config) -> None:
    """Write the resolved configuration: defaults filled in, a local database with its full path, no password.

    So the run can be resumed or synced from any folder.
    """
    content = config.model_dump(mode="json")
    tracking = content["experiment"]["tracking"]
    if tracking["uri"] is not None:
        tracking["uri"] = redact(resolve_uri(tracking["uri"]))
    write_atomically(folder / CONFIG, dump(content).encode())


def save_partition(summary: Mapping[str, Any], folder: Path) -> None:
    """Write a summary from `flray.federation.partition_summary`."""
    write_atomically(folder / PARTITION, json.dumps(summary).encode())


def flatten_settings(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted path and text of every setting, without passwords in addresses."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten_settings(value, f"{path}.")
        else:
            yield path, redact(str(value))


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
