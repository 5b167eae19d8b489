"""The Ray server actor: owns a federation and its pool of client actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flray import bits
from flray.errors import FlrayError
from flray.federation import checkpoint
from flray.federation.diagnostics import Diagnostics, collect_diagnostics
from flray.federation.federation import Federation, RoundResult
from flray.federation.ray_backend.executor import RayExecutor
from flray.federation.ray_backend.placement import Plan
from flray.federation.spec import FederationSpec


class ServerActor:
    """Runs rounds on request; one call at a time.

    Parameters
    ----------
    spec : FederationSpec
        What is federated; resolved from the object store.
    spec_ref : list of one ObjectRef
        The same object, to be handed on to the client actors.
    plan : Plan
        The pool's size and shares.
    group : PlacementGroup or None
        Where the client actors live.
    first_bundle : int
        Bundle of the first client actor.
    """

    def __init__(
        self, spec: FederationSpec, spec_ref: list[Any], plan: Plan, group: Any, first_bundle: int
    ) -> None:
        self._executor = RayExecutor(
            spec_ref[0], spec.config, plan.actors, plan.gpus_per_actor, group, first_bundle
        )
        self._lines: list[str] = []
        self._error: FlrayError | None = None
        try:
            if lacking := bits.problem(spec.config):
                raise FlrayError(lacking)
            self._federation = Federation(spec, self._executor, self._lines.append)
        except FlrayError as error:
            # Raised by the first call: of an actor that cannot be made Ray says no more than that
            # it is dead.
            self._error = error

    def step(self) -> tuple[RoundResult, list[str]]:
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

    def diagnostics(self, final: bool) -> Diagnostics:
        """Return what figures need of the models; see `flray.federation.diagnostics`."""
        return collect_diagnostics(self._federation, final)

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
