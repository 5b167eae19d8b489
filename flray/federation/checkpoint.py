"""Save and restore a federation's whole state: a run resumed after a kill gives identical results.

A checkpoint is a manifest (JSON) that names files of tensors (safetensors) with their checksums.
Files are written under a temporary name, synced and renamed, the manifest last: at every moment the
newest manifest is complete.

Clients' states are packed, many to a file. A state that did not change since the last checkpoint is
not written again, unless most states in its file did. So at most half of the stored bytes are
outdated.
"""

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, StringConstraints
from safetensors import SafetensorError

from flray import trees
from flray.data.types import FederatedData
from flray.errors import DataError, FlrayError
from flray.federation.state import FederationState, Notify, StoredFile, StoredState
from flray.files import FILE_BYTES, parse_json, read, sync_folder, write_atomically
from flray.trees import Packed

FORMAT = 2
FORMATS = (1, FORMAT)
"""Those that are read; in the first each client's state has a file of its own."""

PACK_BYTES = 32 * 2**20
"""Bytes of clients' states in a file, beyond which none is added."""


class DamagedCheckpointError(FlrayError):
    """A checkpoint with missing or altered files."""


FileName = Annotated[str, StringConstraints(pattern=r"^\w[\w.\-]*$")]


class _Manifest(BaseModel):
    """The content of ``round-NNNNNN.json``; file names in it cannot point outside the folder."""

    format: int = FORMAT
    round: int
    files: dict[FileName, str]
    clients: dict[int, FileName]
    versions: list[int]
    data: str
    partition: str


def save(federation: FederationState, folder: Path, keep: int = 2) -> Path:
    """Write a checkpoint of the federation's current round.

    Parameters
    ----------
    federation : FederationState
        Between two rounds.
    folder : Path
        Created if missing; shared by several checkpoints.
    keep : int
        Older manifests beyond this number, and files that none of the rest names, are removed.

    Returns
    -------
    Path
        The manifest.
    """
    done = federation.rounds_done
    files: dict[str, str] = {}

    def store(name: str, tree: Mapping[str, Any]) -> StoredFile:
        data = trees.to_bytes(tree)
        digest = hashlib.sha256(data).hexdigest()
        # Named by its content too: a round that is run again may be packed otherwise.
        name = name.format(digest[:12])
        write_atomically(folder / name, data, keep_name=False)
        files[name] = digest
        return StoredFile(name, digest, len(tree))

    store(f"server-{done:06d}.safetensors", federation.snapshot())
    # States that need not be written again.
    same = {
        client: state
        for client, state in federation.stored.items()
        if federation.states[client] is not None and state.version == federation.versions[client]
    }
    kept = {
        file
        for file, count in Counter(state.file for state in same.values()).items()
        if 2 * count >= file.states and (folder / file.name).is_file()
    }
    stored = {client: state for client, state in same.items() if state.file in kept}
    for pack in _packs(federation, stored):
        file = store(f"clients-{done:06d}-{{}}.safetensors", pack)
        stored |= {
            client: StoredState(file, federation.versions[client]) for client in map(int, pack)
        }
    files |= {state.file.name: state.file.digest for state in stored.values()}
    manifest = {
        "format": FORMAT,
        "round": done,
        "files": files,
        "clients": {str(client): state.file.name for client, state in sorted(stored.items())},
        "versions": federation.versions,
        "data": federation.spec.data.fingerprint,
        "partition": federation.spec.data.partition_fingerprint,
    }
    path = folder / f"round-{done:06d}.json"
    sync_folder(folder)
    write_atomically(path, json.dumps(manifest, indent=1).encode())
    federation.stored = stored
    _remove_old(path, keep)
    return path


def _packs(
    federation: FederationState, stored: Mapping[int, StoredState]
) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the states that are not stored, by client, as many together as belong into a file."""
    pack: dict[str, dict[str, Any]] = {}
    size = 0
    for client, handle in enumerate(federation.states):
        if handle is None or client in stored:
            continue
        packed = federation.executor.fetch(handle)
        if pack and size + packed.nbytes > PACK_BYTES:
            yield pack
            pack, size = {}, 0
        pack[str(client)] = trees.unpack(packed)
        size += packed.nbytes
    if pack:
        yield pack


def manifests(folder: Path) -> list[Path]:
    """Return the manifests of a folder's checkpoints, sorted by round number, oldest first."""
    found = (
        (re.fullmatch(r"round-(\d+)\.json", path.name), path)
        for path in folder.glob("round-*.json")
    )
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def restore(federation: FederationState, folder: Path, warn: Notify = lambda line: None) -> int:
    """Restore a fresh federation from the newest complete checkpoint of a folder.

    Parameters
    ----------
    federation : FederationState
        Unchanged if the folder has no checkpoint.
    folder : Path
        The folder of the checkpoints.
    warn : callable
        Called with a line for each damaged checkpoint that is skipped.

    Returns
    -------
    int
        Rounds done; 0 without a checkpoint.

    Raises
    ------
    DamagedCheckpointError
        If all checkpoints are damaged; the message names the damage of the newest.
    FlrayError
        If the data or the partition are not those of the checkpoint.
    """
    damage: list[DamagedCheckpointError] = []
    for path in reversed(manifests(folder)):
        try:
            manifest = _load_manifest(path)
            _check_data(path, manifest, federation.spec.data)
            tree, states, among = _load_trees(path, manifest)
        except DamagedCheckpointError as error:
            damage.append(error)
            continue
        for passed in damage:
            warn(f"{passed}; resuming from the checkpoint before it, {path.name}")
        federation.load_snapshot(tree, states, manifest.versions)
        if manifest.format > 1:  # others are written anew
            federation.stored = {
                client: StoredState(
                    StoredFile(name, manifest.files[name], among[name]), manifest.versions[client]
                )
                for client, name in manifest.clients.items()
            }
        return federation.rounds_done
    if damage:
        raise DamagedCheckpointError(
            f"{damage[0]}; no other checkpoint is whole: restore it from a backup, or start a new run"
        )
    return 0


def _check_data(path: Path, manifest: _Manifest, data: FederatedData) -> None:
    for what, ours in (("data", data.fingerprint), ("partition", data.partition_fingerprint)):
        if (theirs := getattr(manifest, what)) != ours:
            raise FlrayError(
                f"{path}: the {what} differ from those the run began with (fingerprint "
                f"{ours[:12]}, then {theirs[:12]}); bring them back, or start a new run"
            )


def _load_trees(
    path: Path, manifest: _Manifest
) -> tuple[dict[str, Any], dict[int, Packed], dict[str, int]]:
    """Verify and load the files of a manifest, one after another.

    Returns
    -------
    server : dict
        The server's tree.
    states : dict of int to Packed
        The clients' states.
    among : dict of str to int
        How many states lie in each file, those included that are of no use any more.
    """
    server: dict[str, Any] | None = None
    states: dict[int, Packed] = {}
    among: dict[str, int] = {}
    of_file: dict[str, list[int]] = {}
    for client, name in manifest.clients.items():
        of_file.setdefault(name, []).append(client)
    try:
        for name, digest in manifest.files.items():
            tree = trees.from_bytes(_read(path.parent / name, digest))
            if name.startswith("server-"):
                server = tree
                continue
            packed = manifest.format > 1
            among[name] = len(tree) if packed else 1
            for client in of_file.pop(name):
                states[client] = trees.pack(tree[str(client)] if packed else tree)
        if server is None or of_file:
            raise KeyError(next(iter(of_file), "server"))
        return server, states, among
    except (AttributeError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise DamagedCheckpointError(
            f"{path}: the checkpoint's list of files is damaged ({error!r})"
        ) from None


def learnt_sha256(folder: Path) -> str:
    """Return the digest of the models and states in a folder's newest checkpoint; see `FederationState.sha256`.

    Raises
    ------
    DamagedCheckpointError
        If it is missing or damaged.
    """
    newest = next(reversed(manifests(folder)), None)
    if newest is None:
        raise DamagedCheckpointError(f"{folder}: no checkpoint is here")
    server, states, _ = _load_trees(newest, _load_manifest(newest))
    clients = ({str(client): trees.unpack(states[client])} for client in sorted(states))
    return trees.sha256(server.get("models", {}), server.get("state", {}), *clients)


def _load_manifest(path: Path) -> _Manifest:
    """Load a manifest.

    Raises
    ------
    DamagedCheckpointError
        If it is invalid, or names files outside its folder.
    FlrayError
        If a newer flray wrote it.
    """
    try:
        content = parse_json(read(path, FILE_BYTES))
        if isinstance(content, dict) and content.get("format", FORMAT) not in FORMATS:
            raise FlrayError(
                f"{path}: found checkpoint format {content['format']!r}; this flray reads "
                f"{' and '.join(map(str, FORMATS))}"
            )
        return _Manifest.model_validate(content)
    except (ValueError, DataError):  # not JSON, not this schema, not a file
        raise DamagedCheckpointError(f"{path}: the checkpoint's list of files is damaged") from None


def _read(path: Path, digest: str) -> bytes:
    try:
        data = read(path)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path}: the checkpoint's file is missing") from None
    except DataError as error:
        raise DamagedCheckpointError(str(error)) from None
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise DamagedCheckpointError(
            f"{path}: the checkpoint's file is damaged (SHA-256 {found[:12]}, expected {digest[:12]})"
        )
    return data


def _remove_old(newest: Path, keep: int) -> None:
    """Remove manifests but the newest and those before it, and files that none of the rest names.

    Manifests of later rounds are damaged, because otherwise the federation would have begun there.
    """
    folder, paths = newest.parent, manifests(newest.parent)
    kept = paths[: paths.index(newest) + 1][-keep:]
    for path in paths:
        if path not in kept:
            path.unlink(missing_ok=True)
    needed: set[str] = set()
    for path in kept:
        with contextlib.suppress(OSError, FlrayError):  # a damaged one needs none
            needed |= _load_manifest(path).files.keys()
    for path in [*folder.glob("*.safetensors"), *folder.glob(".*.tmp")]:
        if path.name not in needed:
            path.unlink(missing_ok=True)
