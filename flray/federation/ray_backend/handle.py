"""Start or join Ray, and open a federation on it or in this process."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Protocol

from flray.config.experiment import Experiment
from flray.errors import FlrayError, RunFailedError, disk_is_full
from flray.federation import checkpoint
from flray.federation.diagnostics import Diagnostics, collect_diagnostics
from flray.federation.federation import Federation, Notify, RoundResult
from flray.federation.inline_executor import InlineExecutor
from flray.federation.messages import ObjectLostError
from flray.federation.ray_backend.memory_probe import node_resources, should_probe, survey_nodes
from flray.federation.ray_backend.placement import Plan, make_plan
from flray.federation.ray_backend.session import local_resources as local_resources
from flray.federation.ray_backend.session import ray_session as ray_session
from flray.federation.spec import FederationSpec

SERVER_RESTARTS = 3
PLACEMENT_TIMEOUT_S = 300.0
"""Seconds for Ray to find room for the actors; an autoscaler may have to start nodes first."""

PLUGIN_PREFIX = "flray_plugin_"


class ServerLostError(RunFailedError):
    """The server actor died, or could not be started."""


class FederationHandle(Protocol):
    """A federation that runs somewhere."""

    @property
    def between_rounds(self) -> bool:
        """Whether what it holds is that of a finished round, and not of one that was cut in two."""

    def step(self) -> RoundResult:
        """Run one round."""

    def wait_for_round(self) -> RoundResult | None:
        """After an interrupt: wait for the round under way and return it; None where it was cut in two, or none was."""

    def restart(self) -> None:
        """Begin anew after a loss; the caller restores the last checkpoint."""

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint."""

    def restore(self, folder: Path) -> int:
        """Go to the newest checkpoint; return the rounds done."""

    def sha256(self) -> str:
        """Return the digest of everything learnt."""

    def diagnostics(self, final: bool) -> Diagnostics:
        """Return what figures need of the models; see `flray.federation.diagnostics`."""

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each process."""

    def close(self) -> None:
        """Give everything back."""


class InlineFederation:
    """A federation in this process."""

    def __init__(self, spec: FederationSpec, warn: Notify) -> None:
        self._warn = warn
        self._executor = InlineExecutor(spec)
        self.federation = Federation(spec, self._executor, warn)
        self._finished: RoundResult | None = None
        self.between_rounds = True

    def step(self) -> RoundResult:
        """Run one round."""
        self.between_rounds = False
        self._finished = self.federation.step()
        self.between_rounds = True
        return self._finished

    def wait_for_round(self) -> RoundResult | None:
        """Return the last round; None where it was cut in two, for in this process it ends with the interrupt."""
        return self._finished if self.between_rounds else None

    def restart(self) -> None:
        """Begin anew."""
        self.federation = Federation(self.federation.spec, self._executor, self._warn)
        self._finished, self.between_rounds = None, True

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint."""
        checkpoint.save(self.federation, folder, keep)

    def restore(self, folder: Path) -> int:
        """Go to the newest checkpoint; return the rounds done."""
        return checkpoint.restore(self.federation, folder, self._warn)

    def sha256(self) -> str:
        """Return the digest of everything learnt."""
        return self.federation.sha256()

    def diagnostics(self, final: bool) -> Diagnostics:
        """Return what figures need of the models."""
        return collect_diagnostics(self.federation, final)

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of this process."""
        return self._executor.memory()

    def close(self) -> None:
        """Give the threads back."""
        self._executor.close()


class RayFederation:
    """A federation whose server and clients are Ray actors; the server actor is started again if it dies.

    Parameters
    ----------
    spec : FederationSpec
        Put into the object store once.
    plan : Plan
        The pool.
    warn : callable
        Gets the lines a user should see.
    """

    between_rounds = True  # the server's actor never stops in the middle of one

    def __init__(self, spec: FederationSpec, plan: Plan, warn: Notify) -> None:
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        self._plan, self._warn = plan, warn
        pickle_plugins_by_value()
        self._spec = ray.put(
            spec if spec.config.resources.data == "head" else spec.without_samples()
        )
        self._group = placement_group(
            [
                {
                    "CPU": plan.cpus_per_actor,
                    **({"GPU": plan.gpus_per_actor} if plan.gpus_per_actor else {}),
                }
            ]
            * plan.actors
        )
        try:
            ray.get(self._group.ready(), timeout=PLACEMENT_TIMEOUT_S)
        except ray.exceptions.GetTimeoutError:
            remove_placement_group(self._group)
            raise FlrayError(
                f"no room for {plan.actors} actors of {plan.cpus_per_actor:g} CPU and "
                f"{plan.gpus_per_actor:g} GPU within {PLACEMENT_TIMEOUT_S:g} s: the cluster is "
                f"busy, or a node is gone; "
                "`ray status` shows who holds what"
            ) from None
        self._server = self._start()
        self._under_way: Any = None

    def _start(self) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from flray.federation.ray_backend.server_actor import ServerActor

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return (
            ray.remote(ServerActor)
            .options(num_cpus=0, scheduling_strategy=here)
            .remote(self._spec, [self._spec], self._plan, self._group, 0)
        )

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._get(getattr(self._server, method).remote(*arguments))

    def _get(self, reference: Any) -> Any:
        import ray

        from flray.federation.ray_backend.process_loss import (
            ACTOR_DIED_ERRORS,
            OBJECT_LOST_ERRORS,
            OBJECT_LOST_MESSAGE,
            last_line,
        )

        try:
            return ray.get(reference)
        except ACTOR_DIED_ERRORS as error:
            raise ServerLostError(f"the server actor died: {last_line(error)}") from error
        except OBJECT_LOST_ERRORS as error:
            raise ObjectLostError(OBJECT_LOST_MESSAGE) from error
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, FlrayError) or disk_is_full(error.cause):
                raise error.cause from None
            raise

    def step(self) -> RoundResult:
        """Run one round."""
        self._under_way = self._server.step.remote()
        finished = self.wait_for_round()
        assert finished is not None
        return finished

    def wait_for_round(self) -> RoundResult | None:
        """Wait for the round under way and return it; None where there is none (it was returned already)."""
        reference, self._under_way = self._under_way, None
        if reference is None:
            return None
        try:
            finished, lines = self._get(reference)
        except KeyboardInterrupt:
            self._under_way = reference
            raise
        for line in lines:
            self._warn(line)
        result: RoundResult = finished
        return result

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint."""
        self._call("save", str(folder.resolve()), keep)

    def restore(self, folder: Path) -> int:
        """Go to the newest checkpoint; return the rounds done."""
        done, lines = self._call("restore", str(folder.resolve()))
        for line in lines:
            self._warn(line)
        return int(done)

    def sha256(self) -> str:
        """Return the digest of everything learnt."""
        return str(self._call("sha256"))

    def diagnostics(self, final: bool) -> Diagnostics:
        """Return what figures need of the models."""
        found: Diagnostics = self._call("portrait", final)
        return found

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each process."""
        memory: dict[str, int] = self._call("memory")
        return memory

    def client_pids(self) -> list[int]:
        """Return the process ids of the client actors."""
        pids: list[int] = self._call("client_pids")
        return pids

    def networks(self) -> list[dict[str, int]]:
        """Return for each client actor how many instances of each architecture it holds."""
        networks: list[dict[str, int]] = self._call("networks")
        return networks

    def restart(self) -> None:
        """Start a new server actor in a dead one's place; the caller restores it."""
        import ray

        with contextlib.suppress(Exception):
            ray.kill(self._server)
        self._under_way = None
        self._server = self._start()

    def close(self) -> None:
        """Stop all actors and free their resources."""
        import ray
        from ray.util.placement_group import remove_placement_group

        with contextlib.suppress(Exception):
            ray.get(self._server.close.remote(), timeout=30)
        with contextlib.suppress(Exception):
            ray.kill(self._server)
        with contextlib.suppress(Exception):
            remove_placement_group(self._group)


def pickle_plugins_by_value() -> None:
    """Let the user's own files travel to the other processes with what is defined in them."""
    import sys

    from ray import cloudpickle

    for name, module in list(sys.modules.items()):
        if name.startswith(PLUGIN_PREFIX):
            cloudpickle.register_pickle_by_value(module)


def plan_pool(spec: FederationSpec, available: dict[str, float]) -> Plan:
    """Return the plan of a world for what is available, on the nodes of the Ray that runs (if one does)."""
    import ray

    nodes = node_resources() if ray.is_initialized() else []
    measured = survey_nodes(spec, nodes) if nodes and should_probe(spec, nodes) else None
    return make_plan(
        spec.config, len(spec.data.clients), spec.cohort_size, available, nodes, measured
    )


def uses_ray(config: Experiment) -> bool:
    """Tell whether an experiment's clients are Ray actors."""
    return config.resources.executor == "ray"


def check_address(config: Experiment, address: str | None) -> None:
    """Refuse a cluster's address for an experiment that would not go there.

    Raises
    ------
    FlrayError
        Naming the setting.
    """
    if address is not None and not uses_ray(config):
        raise FlrayError(
            f"--address {address}: resources.executor is {config.resources.executor}, which plays "
            f"all "
            "clients in this process; set it to ray, or leave the address out"
        )
