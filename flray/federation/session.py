"""Start Ray on this machine, or join one that runs."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator

from flray.errors import FlrayError
from flray.stopping import handlers_kept


def local_resources() -> dict[str, float]:
    """Return the CPUs this process may use and the GPUs torch sees."""
    import torch

    return {"CPU": float(len(os.sched_getaffinity(0))), "GPU": float(torch.cuda.device_count())}


@contextlib.contextmanager
def ray_session(address: str | None) -> Iterator[dict[str, float]]:
    """Have Ray at hand, and yield its resources; what was started here is stopped again.

    Parameters
    ----------
    address : str or None
        A running cluster; None starts Ray on this machine only, bound to it, whatever else runs here.

    Raises
    ------
    FlrayError
        If the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        _check_answers(address)
    if address is None:
        # Ray listens on every address of the machine and runs what it is sent. It asks for a token unless told not to;
        # one of this process's own keeps it from writing one into the home directory.
        if not os.environ.get("RAY_AUTH_TOKEN") and not os.environ.get("RAY_AUTH_TOKEN_PATH"):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # Replies up to this size come with the call's answer instead of by way of the object store, which costs a
        # small network's round several percent.
        os.environ.setdefault("RAY_max_direct_call_object_size", str(512 * 1024))
        # Ray's own default, 15, leaves its workers next to nothing beside any other process of the machine.
        os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    if ray.is_initialized():
        yield ray.cluster_resources()
        return
    try:
        with handlers_kept():
            if address is None:
                here = local_resources()
                ray.init(address="local", include_dashboard=False, num_cpus=int(here["CPU"]),
                         num_gpus=int(here["GPU"]), logging_level="ERROR", log_to_driver=True)
            else:
                ray.init(address=address, logging_level="ERROR", log_to_driver=True)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = "on this machine" if address is None else f"at {address}"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FlrayError(f"no Ray {where}: {reason}; `flray doctor` shows what is there") from None
    try:
        yield ray.cluster_resources()
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Refuse an address where nothing listens; Ray itself would try for many minutes and say nothing."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise FlrayError(f"no Ray at {address}: {error.strerror or error}; start it there (ray start --head), or leave "
                         "the address out to run on this machine") from None
