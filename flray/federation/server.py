"""The Ray server actor: owns a federation and its pool of client actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flray import bits
from flray.errors import FlrayError
from flray.federation import checkpoint
from flray.federation.clients import RayExecutor
from flray.federation.federation import Federation, Round
from flray.federation.placement import Plan
from flray.federation.portrait import Portrait, portrait
from flray.federation.world import World


class ServerActor:
    """Runs rounds on request; one call at a time.

    Parameters
    ----------
    world : World
        What is federated; resolved from the object store.
    world_ref : list of one ObjectRef
        The same object, to be handed on to the client actors.
    plan : Plan
        The pool's size and shares.
    group : PlacementGroup or None
        Where the client actors live.
    first_bundle : int
        Bundle of the first client actor.
    """

    def __init__(self, world: World, world_ref: list[Any], plan: Plan, group: Any, first_bundle: int) -> None:
        self._executor = RayExecutor(world_ref[0], world.config, plan.actors, plan.gpus_per_actor, group, first_bundle)
        self._lines: list[str] = []
        self._error: FlrayError | None = None
        try:
            if lacking := bits.problem(world.config):
                raise FlrayError(lacking)
            self._federation = Federation(world, self._executor, self._lines.append)
        except FlrayError as error:
            # Raised by the first call: of an actor that cannot be made Ray says no more than that it is dead.
            self._error = error

    def step(self) -> tuple[Round, list[str]]:
        """Run one round; return it with the lines a user should see."""
        finished = self._federation.step()
        lines, self._lines[:] = list(self._lines), []
        return finished, lines

    def save(self, folder: str, keep: int) -> None:
        """Write a checkpoint; see `flray.federation.checkpoint.save`."""
        checkpoint.save(self._federation, Path(folder), keep)

    def restore(self, folder: str) -> tuple[int, list[str]]:
        """Bring the federation to its newest whole checkpoint; return the rounds done with lines a user should see.

        Raises
        ------
        FlrayError
            If there is no such federation: its method raised while it was made.
        """
        if self._error is not None:
            raise self._error
        lines: list[str] = []
        return checkpoint.restore(self._federation, Path(folder), lines.append), lines

    def sha256(self) -> str:
        """Return the digest of everything the federation has learnt."""
        return self._federation.sha256()

    def portrait(self, final: bool) -> Portrait:
        """Return what figures need of the models; see `flray.federation.portrait`."""
        return portrait(self._federation, final)

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of server and client actors."""
        from flray.federation.memory import resident_bytes

        return {"server": resident_bytes(), **self._executor.memory()}

    def networks(self) -> list[dict[str, int]]:
        """Return for each client actor how many instances of each architecture it holds."""
        return self._executor.networks()

    def client_pids(self) -> list[int]:
        """Return the process ids of the client actors."""
        return self._executor.pids()

    def close(self) -> None:
        """Stop the client actors."""
        self._executor.close()
