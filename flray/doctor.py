"""What is here, what is missing, and what is open to others: ``flray doctor``."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

import psutil

OPTIONAL = {"moabb": "EEG data sets (pip install 'flray[eeg]')", "boto3": "ray up on AWS",
            "googleapiclient": "ray up on Google Cloud", "jsonschema": "ray up (pip install 'ray[default]')"}
SERVICES = ("gcs_server", "raylet", "ray", "dashboard", "mlflow", "gunicorn", "uvicorn")
"""Parts of the command lines of what a cluster consists of."""


def report() -> Iterator[tuple[str, str]]:
    """Yield what was looked at, and what was found: versions, machine, data, what is missing, what is open."""
    import torch

    from flray import rundir

    yield from rundir.versions().items()
    yield "CPUs for this process", str(len(os.sched_getaffinity(0)))
    memory = psutil.virtual_memory()
    yield "memory", f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f}"
    yield "GPUs", ", ".join(_gpus()) or "none seen by torch"
    if not torch.cuda.is_available() and Path("/dev/nvidia0").exists():
        yield "GPUs", "there is one that torch does not see: its build lacks CUDA, or the driver is too old"
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
    from flray.data.cache import data_root
    from flray.data.get import FETCHABLE

    root = data_root()
    there = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")) if root.is_dir() else []
    yield "data folder", f"{root} ({', '.join(there) or 'empty: try flray data get digits5-local'})"
    absent = [name for name in FETCHABLE if not any(folder.startswith(name) for folder in there)]
    yield "data to be fetched", ", ".join(f"flray data get {name}" for name in absent) or "none"


def _security() -> Iterator[tuple[str, str]]:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    held = "in the environment" if os.environ.get("RAY_AUTH_TOKEN") else str(token) if token.is_file() else "none"
    yield "Ray's token", held + (f" (RAY_AUTH_MODE={mode})" if mode else "")
    if token.is_file() and token.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield "WARNING", f"others can read {token}: chmod 600 {token}"
    doors = sorted(set(listening()))
    yield "listening here", ", ".join(f"{name} {where}:{port}" for name, where, port in doors) or \
        "nothing of Ray or MLflow"
    strangers = [f"{name} {where}:{port}" for name, where, port in doors if not _loopback(where)]
    if strangers:
        yield "WARNING", (f"open to other machines: {', '.join(strangers)}; right between a cluster's nodes, with "
                          "RAY_AUTH_MODE=token and a firewall, else see cluster/README.md")


def listening() -> Iterator[tuple[str, str, int]]:
    """Yield program, address and port of every Ray and MLflow process of this machine that others can call."""
    for process in psutil.process_iter(["name", "cmdline"]):
        words = [Path(word).name for word in (process.info["cmdline"] or ())[:4]]
        name = next((s for s in SERVICES for word in [process.info["name"] or "", *words]
                     if word == s or word.startswith((f"{s}.", f"{s}:"))), None)
        if name is None:
            continue
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    yield name, connection.laddr.ip, connection.laddr.port


def _loopback(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return found.is_loopback or (mapped is not None and mapped.is_loopback)
