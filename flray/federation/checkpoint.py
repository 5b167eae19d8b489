"""Save and restore everything a federation is, so that a killed run ends with the bits of one that was not.

A checkpoint is a manifest (JSON) that names files of tensors (safetensors) with their checksums. Files are written
under a temporary name, synced and renamed, the manifest last: at every moment the newest manifest is whole.
Client states that did not change since the last checkpoint are not written again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from flray import trees
from flray.errors import FlrayError
from flray.federation.federation import Federation
from flray.trees import Packed

FORMAT = 1


class DamagedCheckpointError(FlrayError):
    """A checkpoint of which files are missing or altered."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, whenever the process or the machine dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def tree_to_bytes(tree: Mapping[str, Any]) -> bytes:
    """Return a tree as safetensors; what is no tensor goes into the header as JSON."""
    leaves = dict(trees.flatten(tree))
    tensors: dict[str, Tensor] = {}
    places: set[int] = set()
    for path, leaf in leaves.items():
        if isinstance(leaf, Tensor):
            tensor = leaf.detach().cpu().contiguous()
            place = tensor.untyped_storage().data_ptr()
            # safetensors refuses a tensor under two names, which a method's state may well hold
            tensors[path] = tensor.clone() if place in places else tensor
            places.add(place)
    rest = {path: leaf for path, leaf in leaves.items() if not isinstance(leaf, Tensor)}
    order = list(leaves)
    data: bytes = safetensors.torch.save(tensors, metadata={"rest": json.dumps(rest), "order": json.dumps(order)})
    return data


def tree_from_bytes(data: bytes) -> dict[str, Any]:
    """Return the tree of `tree_to_bytes`, with its entries in their order."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8:8 + length]).get("__metadata__", {})
    leaves: dict[str, Any] = {**safetensors.torch.load(data), **json.loads(metadata["rest"])}
    return trees.unflatten([(path, leaves[path]) for path in json.loads(metadata["order"])])


def save(federation: Federation, folder: Path, keep: int = 2) -> Path:
    """Write a checkpoint of the federation's current round.

    Parameters
    ----------
    federation : Federation
        Between two rounds.
    folder : Path
        Made if missing; several checkpoints share it.
    keep : int
        Older manifests beyond this number, and files none of the kept ones names, are removed.

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
        write_atomically(folder / name, data)
        files[name] = hashlib.sha256(data).hexdigest()

    store(f"server-{done:06d}.safetensors", federation.snapshot())
    clients: dict[str, str] = {}
    for client, (handle, version) in enumerate(zip(federation.states, federation.versions, strict=True)):
        if handle is None:
            continue
        name = f"client-{client:05d}-{version:06d}.safetensors"
        clients[str(client)] = name
        if name in known and (folder / name).is_file():
            files[name] = known[name]
        else:
            store(name, trees.unpack(federation.executor.fetch(handle)))
    manifest = {"format": FORMAT, "round": done, "files": files, "clients": clients, "versions": federation.versions,
                "data": federation.world.data.fingerprint, "partition": federation.world.data.partition_fingerprint}
    path = folder / f"round-{done:06d}.json"
    write_atomically(path, json.dumps(manifest, indent=1).encode())
    _tidy(folder, keep)
    return path


def restore(federation: Federation, folder: Path) -> int:
    """Bring a fresh federation to the newest checkpoint of a folder.

    Returns
    -------
    int
        Rounds done; 0 where there is no checkpoint, and then nothing has changed.

    Raises
    ------
    FlrayError
        If a file is missing or altered, or the data or the partition are not those of the checkpoint.
    """
    manifests = sorted(folder.glob("round-*.json"))
    if not manifests:
        return 0
    try:
        manifest = json.loads(manifests[-1].read_text())
    except ValueError:
        raise DamagedCheckpointError(f"{manifests[-1]}: the checkpoint's list of files is damaged; restore it from a "
                                     "backup, or start a new run") from None
    if manifest.get("format") != FORMAT:
        raise FlrayError(f"{manifests[-1]}: found checkpoint format {manifest.get('format')!r}; "
                         f"this flray reads {FORMAT}")
    data = federation.world.data
    for what, ours in (("data", data.fingerprint), ("partition", data.partition_fingerprint)):
        if manifest[what] != ours:
            raise FlrayError(f"{manifests[-1]}: the {what} differ from those the run began with (fingerprint "
                             f"{ours[:12]}, then {manifest[what][:12]}); bring them back, or start a new run")
    blobs = {name: _read(folder / name, digest) for name, digest in manifest["files"].items()}
    server = next(name for name in blobs if name.startswith("server-"))
    states: dict[int, Packed] = {int(client): trees.pack(tree_from_bytes(blobs[name]))
                                 for client, name in manifest["clients"].items()}
    federation.restore(tree_from_bytes(blobs[server]), states, manifest["versions"])
    return federation.rounds_done


def _read(path: Path, digest: str) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path}: the checkpoint's file is missing; "
                                     "restore it, or start a new run") from None
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise DamagedCheckpointError(f"{path}: the checkpoint's file is damaged (SHA-256 {found[:12]}, expected "
                                     f"{digest[:12]}); restore it from a backup, or start a new run")
    return data


def _known_sums(folder: Path) -> dict[str, str]:
    known: dict[str, str] = {}
    for path in sorted(folder.glob("round-*.json")):
        known.update(json.loads(path.read_text())["files"])
    return known


def _tidy(folder: Path, keep: int) -> None:
    manifests = sorted(folder.glob("round-*.json"))
    for path in manifests[:-keep]:
        path.unlink(missing_ok=True)
    needed = {name for path in manifests[-keep:] for name in json.loads(path.read_text())["files"]}
    for path in [*folder.glob("*.safetensors"), *folder.glob(".*.tmp")]:
        if path.name not in needed:
            path.unlink(missing_ok=True)
