"""Named trees of tensors, for messages, client states and checkpoints.

A *tree* is a nested dict with string keys whose leaves are tensors, numbers, strings, booleans or
None. A *packed* tree holds all tensors in one contiguous numpy buffer, which Ray passes between
processes without a copy, and which never contains anything that could execute code.
"""

import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from flray import devices

Tree: TypeAlias = Mapping[str, Any]
Weights: TypeAlias = dict[str, Tensor]

_SCALARS = (bool, int, float, str, type(None))
_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8")
} | {"uint8": torch.uint8, "bool": torch.bool}


class Leaf(NamedTuple):
    """Position of one tensor in a packed buffer (`path` uses ``/`` between levels)."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Packed:
    """A tree as one buffer.

    Attributes
    ----------
    leaves : tuple of Leaf
        The tensors, in the tree's own order.
    scalars : dict
        Every other leaf by path; empty dicts are stored as ``{}``.
    data : ndarray of uint8
        The tensors' bytes, each aligned to 64 bytes.
    """

    leaves: tuple[Leaf, ...]
    scalars: dict[str, Any]
    data: np.ndarray[Any, np.dtype[np.uint8]]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors themselves, without padding and names."""
        return sum(_DTYPES[leaf.dtype].itemsize * math.prod(leaf.shape) for leaf in self.leaves)


_EMPTY = Packed((), {}, np.empty(0, dtype=np.uint8))


def flatten(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(path, leaf)`` of a tree, depth first, in insertion order; an empty dict is a leaf.

    Raises
    ------
    TypeError
        If a key is not a string without ``/``, or a leaf is of a kind that a tree cannot hold.
    """
    for name, value in tree.items():
        if not isinstance(name, str) or "/" in name:
            raise TypeError(f"tree keys are strings without '/', found {name!r}")
        path = f"{prefix}{name}"
        if isinstance(value, Tensor) or type(value) in _SCALARS:
            yield path, value
        elif isinstance(value, Mapping):
            yield from flatten(value, f"{path}/") if value else [(path, {})]
        elif isinstance(value, _SCALARS):  # NumPy's float64, for one: what a file of it gives back
            yield path, json.loads(json.dumps(value))
        else:
            raise TypeError(
                f"{path}: a tree holds tensors, numbers, strings and dicts, found {type(value).__name__}"
            )


def unflatten(leaves: Iterator[tuple[str, Any]] | list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the nested dict of ``(path, leaf)`` pairs; the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, value in leaves:
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def pack(tree: Tree) -> Packed:
    """Copy a tree into one buffer on the CPU.

    Parameters
    ----------
    tree : mapping
        Tensors on any device; they are detached and copied. Those of a device come in one copy.
    """
    return pack_all(tree)[0]


def pack_all(*trees: Tree) -> list[Packed]:
    """Copy trees into a buffer each; the tensors of a device come in one copy for all of them."""
    flat = [dict(flatten(tree)) for tree in trees]
    held = [v.detach() for leaves in flat for v in leaves.values() if isinstance(v, Tensor)]
    tensors = iter(devices.to_host(held))
    return [_packed(leaves, tensors) if leaves else _EMPTY for leaves in flat]


def _packed(flat: Tree, on_host: Iterator[Tensor]) -> Packed:
    """Return a flat tree whose tensors, in their order, are next in an iterator."""
    kinds = tuple((n, v.dtype, tuple(v.shape)) for n, v in flat.items() if isinstance(v, Tensor))
    leaves, size, gaps = _packed_layout(kinds)
    data = np.empty(size, dtype=np.uint8)
    for gap in gaps:  # all bytes leave the process, for other nodes and checkpoints
        data[gap] = 0
    for leaf, tensor in zip(leaves, on_host, strict=False):
        if tensor.numel():
            _view(data, leaf).copy_(tensor)
    scalars = {
        path: dict(value) if isinstance(value, Mapping) else value
        for path, value in flat.items()
        if not isinstance(value, Tensor)
    }
    return Packed(leaves, scalars, data)


@lru_cache(maxsize=64)
def _packed_layout(
    kinds: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...],
) -> tuple[tuple[Leaf, ...], int, tuple[slice, ...]]:
    """Return where tensors lie in a buffer (one object, which is sent once for several), its bytes, and the gaps."""
    leaves, gaps, offset = [], [], 0
    for path, dtype, shape in kinds:
        leaves.append(Leaf(path, str(dtype).removeprefix("torch."), shape, offset))
        end = offset + math.prod(shape) * dtype.itemsize
        offset = -(-end // devices.ALIGN) * devices.ALIGN
        if end < offset:
            gaps.append(slice(end, offset))
    return tuple(leaves), offset, tuple(gaps)


def unpack(packed: Packed, device: torch.device | None = None) -> dict[str, Any]:
    """Return the tree of a packed buffer; its tensors are views of the buffer and must not be written to.

    Parameters
    ----------
    packed : Packed
        The buffer.
    device : torch.device, optional
        Where the tensors are needed; the buffer is sent there in one copy. Default: the CPU.
    """
    if device is None or device.type == "cpu":
        pairs: list[tuple[str, Any]] = [
            (leaf.path, _view(packed.data, leaf)) for leaf in packed.leaves
        ]
    else:
        flat = devices.to_device(devices.from_numpy(packed.data), device)
        pairs = [
            (leaf.path, devices.view(flat, leaf.offset, _DTYPES[leaf.dtype], leaf.shape))
            for leaf in packed.leaves
        ]
    pairs += [
        (path, dict(value) if isinstance(value, dict) else value)
        for path, value in packed.scalars.items()
    ]
    return unflatten(pairs)


def _view(data: np.ndarray[Any, np.dtype[np.uint8]], leaf: Leaf) -> Tensor:
    dtype = _DTYPES[leaf.dtype]
    size = math.prod(leaf.shape) * dtype.itemsize
    if not size:
        return torch.empty(leaf.shape, dtype=dtype)
    return devices.from_numpy(data[leaf.offset : leaf.offset + size]).view(dtype).view(leaf.shape)


@dataclass(frozen=True)
class FlatLayout:
    """Where the tensors of a flat tree lie in one tensor of all their values.

    Attributes
    ----------
    dtype : torch.dtype
        The dtype of all floating-point tensors.
    start, stop : int
        The tree's bytes in its packed buffer.
    names : tuple of str
        All names, in the tree's own order.
    leaves : tuple of Leaf
        The floating-point tensors, by name.
    counters : tuple of Leaf
        The other tensors, by name.
    """

    dtype: torch.dtype
    start: int
    stop: int
    names: tuple[str, ...]
    leaves: tuple[Leaf, ...]
    counters: tuple[Leaf, ...]

    def split(self, values: Tensor, counters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tree of one tensor of all values (of any dtype) and counters; views of them."""
        found = dict(counters)
        for leaf in self.leaves:
            place = (leaf.offset - self.start) // self.dtype.itemsize
            found[leaf.path] = values[place : place + math.prod(leaf.shape)].view(leaf.shape)
        return {name: found[name] for name in self.names}


class FlatTree(NamedTuple):
    """An entry of a packed tree, names to tensors, as one tensor of all its values; none of them is copied.

    The values include the bytes between the tensors (padding, counters), which have no meaning. So many bytes stay in
    memory with them: those of the packed tree.
    """

    layout: FlatLayout
    values: Tensor
    counters: dict[str, Tensor]
    held: int


def flat_entry(packed: Packed, entry: str) -> FlatTree | None:
    """Return an entry as one tensor; None unless it maps names to tensors of one floating-point dtype."""
    layout = _flat_layout(packed.leaves, entry)
    if layout is None or any(path.startswith(f"{entry}/") for path in packed.scalars):
        return None
    values = devices.from_numpy(packed.data[layout.start : layout.stop]).view(layout.dtype)
    counters = {leaf.path: _view(packed.data, leaf) for leaf in layout.counters}
    return FlatTree(layout, values, counters, packed.data.nbytes)


@lru_cache(maxsize=64)
def _flat_layout(leaves: tuple[Leaf, ...], entry: str) -> FlatLayout | None:
    within = [
        leaf._replace(path=leaf.path.removeprefix(f"{entry}/"))
        for leaf in leaves
        if leaf.path.startswith(f"{entry}/")
    ]
    floats = [leaf for leaf in within if _DTYPES[leaf.dtype].is_floating_point]
    if len({leaf.dtype for leaf in floats}) != 1 or any("/" in leaf.path for leaf in within):
        return None
    stop = max(
        leaf.offset + math.prod(leaf.shape) * _DTYPES[leaf.dtype].itemsize for leaf in within
    )
    return FlatLayout(
        _DTYPES[floats[0].dtype],
        min(leaf.offset for leaf in within),
        -(-stop // devices.ALIGN) * devices.ALIGN,
        tuple(leaf.path for leaf in within),
        tuple(floats),
        tuple(leaf for leaf in within if leaf not in floats),
    )


def clone(tree: Tree) -> dict[str, Any]:
    """Return a deep copy: tensors cloned (detached), everything else as it is."""
    return _mapped(tree, lambda value: value.detach().clone())


@torch.no_grad()
def copy_into(entries: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy values into a model's entries, in place; a tied parameter, which has several names, gets its first one's."""
    for name in reversed(list(values)):
        entries[name].copy_(values[name])


def to_device(tree: Tree, device: torch.device) -> dict[str, Any]:
    """Return the tree with its tensors on `device`; tensors that are there already are not copied."""
    return _mapped(tree, lambda value: value.to(device))


def _mapped(tree: Tree, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {
        name: change(value)
        if isinstance(value, Tensor)
        else _mapped(value, change)
        if isinstance(value, Mapping)
        else value
        for name, value in tree.items()
    }


def total(values: Iterable[float]) -> float:
    """Return the sum from left to right; Python's own compensates for its rounding, since Python 3.12."""
    return reduce(operator.add, values, 0.0)


def tensor_bytes(tree: Tree) -> int:
    """Return the number of bytes of all tensors in a tree."""
    return sum(v.nbytes for _, v in flatten(tree) if isinstance(v, Tensor))


def check_names(name: str, tree: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless both trees have the same names."""
    if tree.keys() != expected.keys():
        missing = sorted(expected.keys() - tree.keys())
        extra = sorted(tree.keys() - expected.keys())
        raise ValueError(
            f"{name}: names differ from the first tree's: missing {missing}, unexpected {extra}"
        )


def check_like(name: str, parameters: Mapping[str, Tensor], **trees: Mapping[str, Tensor]) -> None:
    """Raise `ValueError` unless there are parameters and all trees have their names and shapes."""
    if not parameters:
        raise ValueError(f"{name}: none given, expected at least one parameter")
    for argument, tree in trees.items():
        check_names(argument, tree, parameters)
        for key, value in parameters.items():
            if tree[key].shape != value.shape:
                found = f"{argument}[{key!r}]: shape {list(tree[key].shape)}"
                raise ValueError(f"{found}, expected {list(value.shape)}")


def sha256(*trees: Tree) -> str:
    """Return the SHA-256 (hex) of trees: every path in sorted order with dtype, shape and bytes, or its value.

    Equal digests mean equal bits; memory layout, device and insertion order do not matter.
    """
    digest = hashlib.sha256()
    for tree in trees:
        for path, value in sorted(flatten(tree), key=lambda item: item[0]):
            if isinstance(value, Tensor):
                tensor = value.detach().cpu().contiguous()
                digest.update(f"{path}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
                if tensor.numel():
                    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
            else:
                digest.update(f"{path}|{value!r}|".encode())
        digest.update(b"\n")
    return digest.hexdigest()


def to_bytes(tree: Mapping[str, Any]) -> bytes:
    """Return a tree as safetensors; leaves other than tensors go into the header as JSON."""
    leaves = dict(flatten(tree))
    tensors: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for path, leaf in leaves.items():
        if isinstance(leaf, Tensor):
            tensor = leaf.detach().cpu().contiguous()
            address = tensor.untyped_storage().data_ptr()
            # safetensors refuses a tensor under two names, which a method's state may well hold
            tensors[path] = tensor.clone() if address in addresses else tensor
            addresses.add(address)
    rest = {path: leaf for path, leaf in leaves.items() if not isinstance(leaf, Tensor)}
    data: bytes = safetensors.torch.save(
        tensors, metadata={"rest": json.dumps(rest), "order": json.dumps(list(leaves))}
    )
    return data


def from_bytes(data: bytes) -> dict[str, Any]:
    """Return the tree of `to_bytes`, with its entries in their order."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    leaves: dict[str, Any] = {**safetensors.torch.load(data), **json.loads(metadata["rest"])}
    return unflatten([(path, leaves[path]) for path in json.loads(metadata["order"])])
