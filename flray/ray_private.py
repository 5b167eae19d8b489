"""Private members of Ray and Tune: all that flray uses, reached here alone, and refused in one line if missing.

None has a public counterpart: `ray.nodes` does not say which nodes are drained, `ray.get_actor` finds named
actors only, and no option of ``ray.init`` sets the address, waits longer, reads tokens anew or starts less.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from flray.errors import FlrayError

TESTED = ">=2.52,<2.62"
"""The versions of Ray that flray was tested with, as in ``pyproject.toml``."""

DRAINING = "ray._private.state:state.get_draining_nodes"
ACTOR_TABLE = "ray._private.state:state.actor_table"
CLUSTER = "ray._private.ray_constants:ENABLE_RAY_CLUSTER"
NODE = "ray._private.services:get_node"
API_SERVER = "ray._private.services:start_api_server"
AUTOSCALER = "ray._private.node:Node.start_monitor"
NO_DASHBOARD = "ray._private.utils:get_dashboard_dependency_error"
CONFIG = "ray._raylet:Config.initialize"
TOKENS = "ray._raylet:AuthenticationTokenLoader.instance"
CACHE = "ray._raylet:AuthenticationTokenLoader.reset_cache"
LOCATIONS = "ray.experimental:get_object_locations"  # public, but no name there is promised
ADDRESS, FOLDER = "_node_ip_address", "_temp_dir"  # of ray.init, which refuses unknown ones

ON_ONE_MACHINE: dict[str, Callable[[Any], Any]] = {
    # Else its node and sockets get an address that other machines reach; a switch for other systems.
    CLUSTER: lambda _: False,
    # A dashboard that is switched off is a process without a purpose; so is an autoscaler here.
    API_SERVER: lambda _: lambda *_, **__: ("", None),
    AUTOSCALER: lambda _: lambda node: None,
    NO_DASHBOARD: lambda _: lambda: ImportError("its agent needs no packages"),
}
"""Replacements while Ray starts on this machine, which takes a quarter less CPU time with them."""

SESSION = (*ON_ONE_MACHINE, DRAINING, ACTOR_TABLE, NODE, CONFIG, TOKENS, CACHE, LOCATIONS)
"""The members that a session needs, and those of a sweep below: a module, and a path in it."""

TRIAL_STARTS = "ray.tune.execution.tune_controller:RayActorManager._actor_start_failed"
TRIAL_STEPS = "ray.tune.execution.tune_controller:RayActorManager._actor_task_failed"
TRIAL_LOST = "ray.tune.execution.tune_controller:TuneController._trial_task_failure"
RESETTING = "_resetting_trials"
CALLBACK_COUNT = "ray.air._internal.usage:tag_callbacks"
SWEEP = (TRIAL_STARTS, TRIAL_STEPS, TRIAL_LOST, CALLBACK_COUNT)


def member(name: str) -> Any:
    """Return a private member, such as `NODE`.

    Raises
    ------
    FlrayError
        If the installed Ray has none of that name.
    """
    try:
        owner, last = _place(name)
        return getattr(owner, last)
    except (ImportError, AttributeError):
        version = importlib.import_module("ray").__version__
        raise FlrayError(
            f"ray {version} has no {name.replace(':', '.')}, which flray needs; install a version "
            f"that it was tested with: pip install 'ray[tune,default]{TESTED}'"
        ) from None


def check(*names: str) -> None:
    """Refuse a Ray that lacks a member, before anything is started with it; see `member`."""
    for name in names:
        member(name)


@contextlib.contextmanager
def replaced(name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a member by the result of `make`, which receives it, until the block ends."""
    before, (owner, last) = member(name), _place(name)
    setattr(owner, last, make(before))
    try:
        yield
    finally:
        setattr(owner, last, before)


@contextlib.contextmanager
def on_one_machine() -> Iterator[None]:
    """Let `ray.init` start only the processes that one machine needs, reachable from there alone."""
    with contextlib.ExitStack() as stack:
        for name, make in ON_ONE_MACHINE.items():
            stack.enter_context(replaced(name, make))
        yield


def _place(name: str) -> tuple[Any, str]:
    module, path = name.split(":")
    *way, last = path.split(".")
    return functools.reduce(getattr, way, importlib.import_module(module)), last
