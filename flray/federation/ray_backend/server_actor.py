"""The Ray server actor: owns a federation and its pool of client actors."""

from __future__ import annotations

from flray import bits
from flray.errors import FlrayError, MethodError
from flray.federation.failures import MACHINE_ERRORS, ServerLostError
from flray.federation.federation import Federation, RoundResult
from flray.federation.memory import resident_bytes
from flray.federation.ray_backend.executor import RayExecutor
from flray.federation.ray_backend.gauges import publish
from flray.federation.ray_backend.granted import granted_device
from flray.federation.ray_backend.handles import ObjectRef, PlacementGroup
from flray.federation.ray_backend.placement import Plan
from flray.federation.spec import FederationSpec


class ServerActor(Federation):
    """The federation's server as a Ray actor: its methods run here, one call at a time.

    All aggregation happens in this process, including FedSKC's GDA and GPR and FISL's averaging.

    Parameters
    ----------
    spec : FederationSpec
        The federation; resolved from the object store.
    spec_ref : list of one ObjectRef
        The same object, to pass to the client actors.
    plan : Plan
        The pool's size and shares.
    group : PlacementGroup or None
        Placement of the client actors.
    first_bundle : int
        Bundle of the first client actor.
    """

    _title = ""  # Ray asks for it also where the constructor fails

    def __init__(
        self,
        spec: FederationSpec,
        spec_ref: list[ObjectRef],
        plan: Plan,
        group: PlacementGroup,
        first_bundle: int,
    ) -> None:
        executor = RayExecutor(
            spec_ref[0], spec.config, plan.actors, plan.gpus_per_actor, group, first_bundle
        )
        self._pool = executor
        self._title = f"{spec.config.name} {spec.config.algorithm.name}"
        self._lines: list[str] = []
        self._error: FlrayError | None = None
        try:
            if lacking := bits.problem(spec.config):
                raise FlrayError(lacking)
            super().__init__(spec, executor, self._lines.append, granted_device())
        except FlrayError as error:
            # Raised by the first call: if an actor's constructor fails, Ray only says that it is
            # dead.
            self._error = error

    def call(self, method: str, *arguments: object) -> tuple[object, list[str]]:
        """Call a method; return its result with the lines that the user should see.

        Raises
        ------
        FlrayError
            If there is no federation, because its constructor raised.
        """
        if self._error is not None:
            raise self._error
        try:
            value = getattr(self, method)(*arguments)
        except MethodError as error:
            if isinstance(error.__cause__, MACHINE_ERRORS):  # goes on in a new process
                raise ServerLostError(f"the server's device failed: {error.__cause__}") from None
            raise
        lines, self._lines[:] = list(self._lines), []
        return value, lines

    def step(self) -> RoundResult:
        """Run a round, show it in Ray's metrics, and see whether this node is to be saved from."""
        result = super().step()
        publish(self.spec, result)
        result.leaving = self._pool.nodes.leaves()
        return result

    def __repr__(self) -> str:
        """Return the name that Ray's dashboard and log lines show."""
        return f"flray {self._title}: server"

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of server and client actors."""
        return {"server": resident_bytes(), **super().memory()}

    def networks(self) -> list[dict[str, int]]:
        """Return for each client actor how many instances of each architecture it holds."""
        return self._pool.networks()

    def client_pids(self) -> list[int]:
        """Return the process ids of the client actors."""
        return self._pool.pids()
