"""A tree of tensors and JSON values as one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
from torch import Tensor

from flray import trees


def tree_to_bytes(tree: Mapping[str, Any]) -> bytes:
    """Return a tree as safetensors; leaves other than tensors go into the header as JSON."""
    leaves = dict(trees.flatten(tree))
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
    order = list(leaves)
    data: bytes = safetensors.torch.save(
        tensors, metadata={"rest": json.dumps(rest), "order": json.dumps(order)}
    )
    return data


def tree_from_bytes(data: bytes) -> dict[str, Any]:
    """Return the tree of `tree_to_bytes`, with its entries in their order."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    leaves: dict[str, Any] = {**safetensors.torch.load(data), **json.loads(metadata["rest"])}
    return trees.unflatten([(path, leaves[path]) for path in json.loads(metadata["order"])])
