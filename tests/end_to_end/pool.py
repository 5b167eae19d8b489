"""Client actors that outlive the federations they serve: a process and its imports cost seconds."""

from flray.federation.federation import Federation
from flray.federation.ray_backend.executor import RayExecutor
from flray.federation.spec import FederationSpec
from flray.federation.state import Notify


class Pool:
    """Client actors, which start with the first federation; the server's side runs in this process."""

    def __init__(self, actors: int) -> None:
        self.actors = actors
        self.executor: RayExecutor | None = None

    def executor_for(self, spec: FederationSpec) -> RayExecutor:
        """Return the actors, made ready for a federation."""
        import ray

        # Next to no CPU, so that several pools find room on the same Ray.
        config = spec.config.model_copy(
            update={"resources": spec.config.resources.model_copy(update={"cpus_per_actor": 0.1})}
        )
        put = ray.put(spec)
        if self.executor is None:
            self.executor = RayExecutor(put, config, self.actors, 0)
        else:
            self.executor.reset(put, config)
        return self.executor

    def federation(self, spec: FederationSpec, warn: Notify = print) -> Federation:
        """Return a new federation on the actors."""
        return Federation(spec, self.executor_for(spec), warn)

    def run_federation(self, spec: FederationSpec) -> Federation:
        """Return a federation after all its rounds."""
        federation = self.federation(spec)
        for _ in range(spec.config.rounds):
            federation.step()
        return federation

    def close(self) -> None:
        """Stop the actors."""
        if self.executor is not None:
            self.executor.close()


class Pools(dict[int, Pool]):
    """Pools by their number of actors, made when first asked for."""

    def __missing__(self, actors: int) -> Pool:
        self[actors] = Pool(actors)
        return self[actors]
