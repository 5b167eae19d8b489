"""Files of a run folder for its figures; importing this takes no torch."""

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

PARTITION, INITIAL_DIAGNOSTICS, FINAL_DIAGNOSTICS = (
    "partition.json",
    "portrait-before.npz",
    "portrait.npz",
)


def save_partition(summary: dict[str, Any], folder: Path) -> None:
    """Write a summary from `partition_summary`."""
    (folder / PARTITION).write_text(json.dumps(summary), encoding="utf-8")


def encode(diagnostics: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Encode diagnostics as base64 text that a worker reports."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **diagnostics)
    return base64.b64encode(buffer.getvalue()).decode()


def save_encoded(text: str, path: Path) -> None:
    """Write diagnostics encoded by `encode` as an ``.npz`` file."""
    path.write_bytes(base64.b64decode(text))
