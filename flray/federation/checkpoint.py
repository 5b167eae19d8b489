"""Save and restore a federation's whole state: a run resumed after a kill gives identical results.

A checkpoint is a manifest (JSON) that names files of tensors (safetensors) with their checksums.
Files are written under a temporary name, synced and renamed, the manifest last: at every moment the
newest manifest is complete. Client states that did not change since the last checkpoint are not
written again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, StringConstraints
from safetensors import SafetensorError

from flray import trees
from flray.errors import FlrayError
from flray.federation.state import FederationState, Notify
from flray.federation.tree_files import tree_from_bytes, tree_to_bytes
from flray.files.atomic import sync_folder, write_atomically
from flray.trees import Packed

FORMAT = 1


class DamagedCheckpointError(FlrayError):
    """A checkpoint of which files are missing or altered."""


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
    known = _known_sums(folder)
    files: dict[str, str] = {}

    def store(name: str, tree: Mapping[str, Any]) -> None:
        data = tree_to_bytes(tree)
        write_atomically(folder / name, data, keep_name=False)
        files[name] = hashlib.sha256(data).hexdigest()

    store(f"server-{done:06d}.safetensors", federation.snapshot())
    clients: dict[str, str] = {}
    for client, (handle, version) in enumerate(
        zip(federation.states, federation.versions, strict=True)
    ):
        if handle is None:
            continue
        name = f"client-{client:05d}-{version:06d}.safetensors"
        clients[str(client)] = name
        if name in known and (folder / name).is_file():
            files[name] = known[name]
        else:
            store(name, trees.unpack(federation.executor.fetch(handle)))
    manifest = {
        "format": FORMAT,
        "round": done,
        "files": files,
        "clients": clients,
        "versions": federation.versions,
        "data": federation.spec.data.fingerprint,
        "partition": federation.spec.data.partition_fingerprint,
    }
    path = folder / f"round-{done:06d}.json"
    sync_folder(folder)
    write_atomically(path, json.dumps(manifest, indent=1).encode())
    _remove_old(folder, keep)
    return path


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
        Unchanged if there is no checkpoint.
    folder : Path
        The folder of the checkpoints.
    warn : callable
        Called with a line for each damaged checkpoint that is skipped.

    Returns
    -------
    int
        Rounds done; 0 where there is no checkpoint.

    Raises
    ------
    DamagedCheckpointError
        If all checkpoints are damaged; the message names the damage of the newest.
    FlrayError
        If the data or the partition are not those of the checkpoint.
    """
    newest_first = manifests(folder)[::-1]
    damage: list[DamagedCheckpointError] = []
    for path in newest_first:
        try:
            tree, states, versions = _load_verified(federation, path)
        except DamagedCheckpointError as error:
            damage.append(error)
            continue
        for passed in damage:
            warn(f"{passed}; resuming from the checkpoint before it, {path.name}")
        federation.load_snapshot(tree, states, versions)
        return federation.rounds_done
    if damage:
        raise DamagedCheckpointError(
            f"{damage[0]}; no other checkpoint is whole: restore it from a backup, or start a "
            "new run"
        )
    return 0


def _load_verified(
    federation: FederationState, path: Path
) -> tuple[dict[str, Any], dict[int, Packed], list[int]]:
    """Verify and load a checkpoint: the server's tree, the clients' states and their versions."""
    manifest = _load_manifest(path)
    data = federation.spec.data
    for what, ours in (("data", data.fingerprint), ("partition", data.partition_fingerprint)):
        if (theirs := getattr(manifest, what)) != ours:
            raise FlrayError(
                f"{path}: the {what} differ from those the run began with (fingerprint "
                f"{ours[:12]}, then {theirs[:12]}); bring them back, or start a new run"
            )
    return *_load_trees(path, manifest), manifest.versions


def _load_trees(path: Path, manifest: _Manifest) -> tuple[dict[str, Any], dict[int, Packed]]:
    """Verify and load the files of a manifest: the server's tree, and the clients' states."""
    blobs = {name: _read(path.parent / name, digest) for name, digest in manifest.files.items()}
    try:
        server = next(name for name in blobs if name.startswith("server-"))
        states = {
            client: trees.pack(tree_from_bytes(blobs[name]))
            for client, name in manifest.clients.items()
        }
        return tree_from_bytes(blobs[server]), states
    except (StopIteration, KeyError, ValueError, SafetensorError) as error:
        raise DamagedCheckpointError(
            f"{path}: the checkpoint's list of files is damaged ({error!r})"
        ) from None


def learnt_sha256(folder: Path) -> str:
    """Return the digest of what was learnt by a folder's newest checkpoint; see `FederationState.sha256`.

    Raises
    ------
    DamagedCheckpointError
        If it is missing or damaged.
    """
    newest = next(reversed(manifests(folder)), None)
    if newest is None:
        raise DamagedCheckpointError(f"{folder}: no checkpoint is here")
    server, states = _load_trees(newest, _load_manifest(newest))
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
        content = json.loads(path.read_text())
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise FlrayError(
                f"{path}: found checkpoint format {content['format']!r}; this flray reads {FORMAT}"
            )
        return _Manifest.model_validate(content)
    except ValueError:  # not JSON, or not this schema
        raise DamagedCheckpointError(f"{path}: the checkpoint's list of files is damaged") from None


def _read(path: Path, digest: str) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path}: the checkpoint's file is missing") from None
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise DamagedCheckpointError(
            f"{path}: the checkpoint's file is damaged (SHA-256 {found[:12]}, expected "
            f"{digest[:12]})"
        )
    return data


def _named_files(path: Path) -> dict[str, str]:
    """Return a manifest's files with their checksums; none if it is damaged."""
    try:
        return dict(_load_manifest(path).files)
    except (OSError, FlrayError):
        return {}


def _known_sums(folder: Path) -> dict[str, str]:
    return {
        name: digest for path in manifests(folder) for name, digest in _named_files(path).items()
    }


def _remove_old(folder: Path, keep: int) -> None:
    paths = manifests(folder)
    for path in paths[:-keep]:
        path.unlink(missing_ok=True)
    needed = {name for path in paths[-keep:] for name in _named_files(path)}
    for path in [*folder.glob("*.safetensors"), *folder.glob(".*.tmp")]:
        if path.name not in needed:
            path.unlink(missing_ok=True)
