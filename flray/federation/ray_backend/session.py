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
from flray.interrupts import preserve_handlers
from flray.startup import environment, usable_cpus

LOOPBACK = "127.0.0.1"
_CHANGED = (
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_USAGE_STATS_ENABLED",
    "RAY_max_direct_call_object_size",
    "RAY_worker_niceness",
    "PYTHONBREAKPOINT",
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
        If the cluster cannot be reached.
    """
    if _connected():
        import ray

        yield ray.cluster_resources()
        return
    if address is not None:
        _check_answers(address)
    with _environment(address):
        import ray

        try:
            with preserve_handlers():
                if address is None:
                    _start_here(ray)
                else:
                    # Processes of this machine's own Ray have this one's environment, those of a
                    # cluster have not.
                    ray.init(
                        address=address,
                        logging_level="ERROR",
                        log_to_driver=True,
                        runtime_env={"env_vars": dict(variables)} if variables else None,
                    )
        except (
            Exception
        ) as error:  # Ray raises plain ones too, as where its node does not start in time
            where = "on this machine" if address is None else f"at {address}"
            folder = os.environ.get("RAY_TMPDIR") if address is None else None
            said = f" (its folder is RAY_TMPDIR, {folder}: shorter, or unset?)" if folder else ""
            raise FlrayError(
                f"no Ray {where}: {brief(error)}{said}; `flray doctor` shows what is there"
            ) from None
        try:
            yield ray.cluster_resources()
        finally:
            ray.shutdown()


def _connected() -> bool:
    import sys

    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _start_here(ray: Any) -> None:
    here = local_resources()
    with _loopback_node():
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=int(here["CPU"]),
            num_gpus=int(here["GPU"]),
            logging_level="ERROR",
            log_to_driver=True,
            _node_ip_address=LOOPBACK,
        )


@contextlib.contextmanager
def _loopback_node() -> Iterator[None]:
    """Give Ray's node the address 127.0.0.1, so that it binds every socket to it.

    Ray replaces it by an address other machines can reach, unless it takes this machine for one
    that can be in no cluster: its switch for macOS and Windows, which it reads once, at its first
    import.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


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
                # Replies up to this size come with the call's result instead of through the
                # object store, which costs a small network's round several percent.
                os.environ.setdefault("RAY_max_direct_call_object_size", str(512 * 1024))
                # Ray's own default, 15, leaves its workers next to nothing beside any other
                # process of the machine.
                os.environ.setdefault("RAY_worker_niceness", "0")
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
