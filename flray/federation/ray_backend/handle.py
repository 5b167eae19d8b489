"""A federation on Ray: its server actor and client actors, driven from this process."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from flray import bits
from flray.devices import GpuIdentity
from flray.errors import FlrayError
from flray.federation import FederationSpec
from flray.federation.federation import Federation, RoundResult
from flray.federation.messages import MACHINE_ERRORS, ObjectLostError, ServerLostError
from flray.federation.ray_backend import losses, nodes
from flray.federation.ray_backend.executor import RayExecutor
from flray.federation.ray_backend.nodes import node_mark, own_node, ship_user_modules
from flray.federation.ray_backend.placement import Plan
from flray.federation.ray_backend.pool import ObjectRef, granted_device
from flray.federation.state import Notify

P = ParamSpec("P")
R = TypeVar("R")


class ServerActor(Federation):
    """The federation's server as a Ray actor: its methods run here, one call at a time.

    All aggregation happens in this process, including FedSKC's GDA and GPR and FISL's averaging.

    Parameters
    ----------
    spec : FederationSpec
        The federation; resolved from the object store.
    spec_ref : list of one ObjectRef
        The client actors' specification.
    plan : Plan
        The pool's size and shares.
    group : placement group
        Placement of the client actors.
    warned : set of str
        Subjects of warnings that the user has seen from an actor that this one replaces.
    """

    _title = ""  # Ray asks for it also where the constructor fails

    def __init__(
        self,
        spec: FederationSpec,
        spec_ref: list[ObjectRef],
        plan: Plan,
        group: object,
        warned: set[str],
    ) -> None:
        executor = RayExecutor(spec_ref[0], spec.config, plan.actors, plan.gpus_per_actor, group)
        self._pool = executor
        self._title = f"{spec.config.name} {spec.config.algorithm.name}"
        self._lines: list[str] = []
        self._error: FlrayError | None = None
        try:
            if lacking := bits.problem(spec.config):
                raise FlrayError(lacking)
            super().__init__(spec, executor, self._lines.append, granted_device(), warned)
        except FlrayError as error:
            # Raised by the first call: if an actor's constructor fails, Ray only says that it is
            # dead.
            self._error = error

    def call(
        self, method: str, *arguments: object, **named: object
    ) -> tuple[object, list[str], set[str]]:
        """Call a method; return its result or error, the lines that the user should see, and all subjects of warnings.

        The error, of flray, is that of the constructor, if it raised one.
        """
        value: object = self._error
        try:
            value = value or getattr(self, method)(*arguments, **named)
        except FlrayError as error:
            if isinstance(error.__cause__, MACHINE_ERRORS):  # goes on in a new process
                raise ServerLostError(f"the server's device failed: {error.__cause__}") from None
            value = error
        lines, self._lines[:] = list(self._lines), []
        return value, lines, self._warned

    def step(self) -> RoundResult:
        """Run a round, and see whether this node is to be saved from."""
        result = super().step()
        result.leaving = self._pool.nodes.leaves()
        return result

    def __repr__(self) -> str:
        """Return the name that Ray's dashboard and log lines show."""
        return f"flray {self._title}: server"


PLACEMENT_TIMEOUT_S = 300.0
"""Seconds for Ray to find room for the actors; an autoscaler may have to start nodes first."""


def _remote(verb: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate["RayFederation", P], R]:
    """Return a verb of the server actor as a method of its handle."""

    def call(self: "RayFederation", /, *arguments: P.args, **named: P.kwargs) -> R:
        given = [one.resolve() if isinstance(one, Path) else one for one in arguments]
        answer: R = self._get(self._server.call.remote(verb.__name__, *given, **named))
        return answer

    functools.update_wrapper(call, verb)
    return call


class RayFederation:
    """A federation whose server and clients are Ray actors; the server actor is restarted if it dies.

    Parameters
    ----------
    spec : FederationSpec
        Put into the object store once.
    plan : Plan
        The pool.
    warn : callable
        Called with lines that the user should see.
    """

    def __init__(self, spec: FederationSpec, plan: Plan, warn: Notify) -> None:
        self._plan, self._warn, self._warned = plan, warn, set[str]()
        ship_user_modules()
        whole = spec.config.resources.data == "head"
        self._spec = self._server_spec = ray.put(spec if whole else spec.without_samples())
        if not whole:
            self._server_spec = ray.put(spec.without_samples(spec.data.public))
        # A server with a share of a GPU has a bundle, on the node of the driver.
        own = [{"GPU": plan.server_gpu, node_mark(): 0.001}] if plan.server_gpu else []
        bundles = [plan.bundle] * plan.actors + own
        self._group = placement_group(bundles)
        ready = self._group.ready()
        if not ray.wait([ready], timeout=nodes.WAIT_SECONDS)[0]:
            warn(nodes.no_room("the run", bundles))
        try:
            ray.get(ready, timeout=PLACEMENT_TIMEOUT_S)
        except ray.exceptions.GetTimeoutError:
            remove_placement_group(self._group)
            raise FlrayError(
                f"no room for {plan.actors} actors of {plan.cpus_per_actor:g} CPU and "
                f"{plan.gpus_per_actor:g} GPU within {PLACEMENT_TIMEOUT_S:g} s: the cluster is "
                "busy, or a node is gone; `ray status` shows who holds what"
            ) from None
        self._server = self._start()
        self._under_way: ObjectRef | None = None

    def _start(self) -> Any:
        # It writes checkpoints to the folder of the run, so it is where the driver is.
        place = (
            PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._plan.actors
            )
            if self._plan.server_gpu
            else NodeAffinitySchedulingStrategy(own_node(), soft=False)
        )
        return (
            ray.remote(ServerActor)
            .options(num_cpus=0, num_gpus=self._plan.server_gpu, scheduling_strategy=place)
            .remote(self._server_spec, [self._spec], self._plan, self._group, self._warned)
        )

    def step(self) -> RoundResult:
        """Run one round."""
        self._under_way = self._server.call.remote("step")
        finished: RoundResult = self._get(self._under_way)
        self._under_way = None
        return finished

    def wait_for_round(self) -> RoundResult | None:
        """Wait for the current round, if one is under way, and return the server's last; None if it ran none.

        The server knows better: an interrupt may have come before this process knew of a round or had
        recorded it, and the next checkpoint has it in any case.
        """
        if self._under_way is not None:
            self._get(self._under_way)
            self._under_way = None
        return self._last()

    save = _remote(ServerActor.save)
    restore = _remote(ServerActor.restore)
    has_ended = _remote(ServerActor.has_ended)
    sha256 = _remote(ServerActor.sha256)
    diagnostics = _remote(ServerActor.diagnostics)
    _asked_gpus = _remote(ServerActor.gpus)
    _last = _remote(ServerActor.wait_for_round)

    def gpus(self) -> list[GpuIdentity]:
        """Return the kinds of GPU that the federation computes on; waits for its actors to start."""
        return self._asked_gpus() if self._plan.gpus_per_actor else []

    def _get(self, reference: ObjectRef) -> Any:
        """Return the server's result, or raise its error, after the lines that came with it were passed on."""
        try:
            with losses.unwrapped():
                value, lines, self._warned = ray.get(reference)
        except losses.ACTOR_DIED_ERRORS as error:
            raise ServerLostError(f"the server actor died: {losses.last_line(error)}") from error
        except losses.OBJECT_LOST_ERRORS as error:
            raise ObjectLostError(losses.OBJECT_LOST_MESSAGE) from error
        for line in lines:
            self._warn(line)
        if isinstance(value, FlrayError):
            raise value
        return value

    def restart(self) -> None:
        """Replace a dead server actor; the caller restores its state."""
        with contextlib.suppress(Exception):
            ray.kill(self._server)
        self._under_way = None
        self._server = self._start()

    def close(self) -> None:
        """Stop all actors and free their resources."""
        with contextlib.suppress(Exception):
            ray.get(self._server.close.remote(), timeout=30)
        with contextlib.suppress(Exception):
            ray.kill(self._server)
        with contextlib.suppress(Exception):
            remove_placement_group(self._group)
