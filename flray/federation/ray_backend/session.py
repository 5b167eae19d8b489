"""Start Ray on this machine, or join one that runs."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flray.errors import FlrayError, brief
from flray.federation.ray_backend.local_ray import local_ray
from flray.interrupts import preserve_handlers
from flray.startup import environment, usable_cpus

_HERE = {
    # Replies up to this size come with the call's result instead of through the object store,
    # which costs a small network's round several percent.
    "RAY_max_direct_call_object_size": str(512 * 1024),
    # Ray's own default, 15, leaves its workers next to nothing beside any other process of the
    # machine.
    "RAY_worker_niceness": "0",
    # Its record of every task, for a dashboard that is not started, grows by a third of a MiB in a
    # round of 200 clients.
    "RAY_task_events_report_interval_ms": "0",
    # Else its agents print the log of a node process that was killed before they can be ended.
    "RAY_enable_pipe_based_agent_to_parent_health_check": "0",
}
"""Environment variables of a Ray that is started here, unless the user set them."""

_CHANGED = (
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_USAGE_STATS_ENABLED",
    "PYTHONBREAKPOINT",
    *_HERE,
)
"""Environment variables that a session changes, including those that Ray sets."""


def local_resources() -> dict[str, float]:
    """Return the CPUs this process may use and the GPUs torch sees."""
    import torch

    return {"CPU": float(usable_cpus()), "GPU": float(torch.cuda.device_count())}


def chosen_address(address: str | None, notify: Callable[[str], None]) -> str | None:
    """Return the cluster to join: the one that is named, else that of the environment; None starts Ray here.

    Ray sets ``RAY_ADDRESS`` in the jobs that it is given, which belong on its cluster and not on a
    second Ray beside it. ``local``, as with Ray, starts one here in any case.

    Parameters
    ----------
    address : str, optional
        As the user gave it.
    notify : callable
        Called with a line where the environment decides.
    """
    found = os.environ.get("RAY_ADDRESS")
    if address is None and found and found != "local":
        notify(f"joining the Ray at {found}, as RAY_ADDRESS says (--address local: start one here)")
        return found
    return None if address == "local" else address


@contextlib.contextmanager
def ray_session(
    address: str | None, variables: Mapping[str, str] | None = None
) -> Iterator[dict[str, float]]:
    """Start or join Ray and yield its resources; stop it and restore the environment afterwards.

    A Ray started here listens on 127.0.0.1 only and asks for a token of its own, whatever the
    environment says: it runs what it is sent.

    Parameters
    ----------
    address : str or None
        A running cluster; None starts Ray on this machine, whatever else runs here.
    variables : mapping, optional
        Variables for the environment of all its processes; this process has them already.

    Raises
    ------
    FlrayError
        If the cluster cannot be reached, or Ray cannot be started here.
    RayLostError
        In this thread, if the Ray that was started here loses its node process.
    """
    if _connected():
        import ray

        yield ray.cluster_resources()
        return
    if address is not None:
        _check_answers(address)
    with _environment(address), contextlib.ExitStack() as stack:
        import ray

        if address is None:
            stack.enter_context(local_ray(local_resources()))
        else:
            stack.callback(ray.shutdown)
            try:
                with preserve_handlers():
                    # Processes of this machine's own Ray have this one's environment, those of a
                    # cluster have not.
                    ray.init(
                        address=address,
                        logging_level="ERROR",
                        log_to_driver=True,
                        runtime_env={"env_vars": dict(variables)} if variables else None,
                    )
            except Exception as error:  # Ray raises plain ones too
                raise FlrayError(
                    f"no Ray at {address}: {brief(error)}; `flray doctor` shows what is there"
                ) from None
        yield ray.cluster_resources()


def _connected() -> bool:
    import sys

    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@contextlib.contextmanager
def _environment(address: str | None) -> Iterator[None]:
    """Set the environment variables of Ray's processes, and restore them afterwards."""
    try:
        with environment(dict.fromkeys(_CHANGED)):
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            if address is None:
                # A token for this session only: neither a cluster's, nor one that Ray would
                # write into the home.
                os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
                os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
                for name, value in _HERE.items():
                    os.environ.setdefault(name, value)
            _read_authentication_anew()
            yield
    finally:
        _read_authentication_anew()


def _read_authentication_anew() -> None:
    """Make Ray's native code read the token settings from the environment again."""
    native: Any = importlib.import_module("ray._raylet")
    # In this order: a thread of a session that has just ended may still ask for the token its mode
    # wants.
    native.Config.initialize("")
    native.AuthenticationTokenLoader.instance().reset_cache()


def _check_answers(address: str) -> None:
    """Reject an address where nothing listens; Ray itself would retry silently for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        if address.startswith("ray://"):
            raise FlrayError(f"no Ray at {address}: write ray://HOST:PORT")
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (
        OSError,
        OverflowError,
        ValueError,
    ) as error:  # ports above 65535, names that are no host's
        why = getattr(error, "strerror", None) or error
        raise FlrayError(
            f"no Ray at {address}: {why}; start it there (ray start --head), or leave "
            "the address out to run on this machine"
        ) from None
