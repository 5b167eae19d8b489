"""``flray doctor``: versions, hardware, data sets, missing extras, who can read Ray's token."""

import os
import stat
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil

from flray.federation.ray_backend.session import PREFIX, folder_of_sessions
from flray.startup import usable_cpus

OPTIONAL = {
    "moabb": "EEG data sets (pip install 'flray[eeg]')",
    "boto3": "ray up on AWS",
    "googleapiclient": "ray up on Google Cloud",
    "jsonschema": "ray up (pip install 'ray[default]')",
}


def diagnose() -> Iterator[tuple[str, str]]:
    """Yield (check, result) rows: versions, hardware, data sets, missing extras, Ray's token and sockets."""
    import torch

    from flray.records import directory

    yield from directory.versions().items()
    yield "CPUs for this process", str(usable_cpus())
    memory = psutil.virtual_memory()
    yield "memory", f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f}"
    yield "GPUs", ", ".join(_gpus()) or "none seen by torch"
    if not torch.cuda.is_available() and Path("/dev/nvidia0").exists():
        yield (
            "GPUs",
            "there is one that torch does not see: its build lacks CUDA, or the driver is too old",
        )
    yield from _data()
    missing = [f"{name}: {what}" for name, what in OPTIONAL.items() if find_spec(name) is None]
    yield "optional, not installed", "; ".join(missing) or "nothing"
    yield from _security()


def _gpus() -> Iterator[str]:
    import torch

    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        yield f"{torch.cuda.get_device_name(index)} ({free / 2**30:.0f} GiB free of {total / 2**30:.0f})"


def _data() -> Iterator[tuple[str, str]]:
    from flray.data.inventory import FETCHABLE
    from flray.data.sources.cache import data_root

    root = data_root()
    there = sorted(path.name for path in root.glob("[!.]*") if path.is_dir())
    yield "data folder", f"{root} ({', '.join(there) or 'empty: try flray data get digits5-local'})"
    absent = [name for name in FETCHABLE if not any(folder.startswith(name) for folder in there)]
    yield "data to be fetched", ", ".join(f"flray data get {name}" for name in absent) or "none"


def _security() -> Iterator[tuple[str, str]]:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    held = str(token) if token.is_file() else "none"
    held = "in the environment" if os.environ.get("RAY_AUTH_TOKEN") else held
    yield "Ray's token", held + (f" (RAY_AUTH_MODE={mode})" if mode else "")
    if token.is_file() and token.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield "WARNING", f"others can read {token}: chmod 600 {token}"
    yield from _session_folders()


def _session_folders() -> Iterator[tuple[str, str]]:
    """Yield the folder of the sockets of a Ray that flray starts, with a warning if others can replace them."""
    base = folder_of_sessions()
    yield "Ray's sessions", f"{base / PREFIX}*: each in a folder of this user alone"
    mode = base.stat().st_mode if base.is_dir() else 0
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield (
            "WARNING",
            f"others can replace what is in {base}, Ray's sockets too: chmod o-w {base}, or set "
            "RAY_TMPDIR to a folder of yours",
        )
