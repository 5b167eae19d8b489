"""Client actors that outlive the federations they play for: a process and its imports cost seconds."""

from __future__ import annotations

from flray.federation.clients import RayExecutor
from flray.federation.federation import Federation, Warn
from flray.federation.world import World


class Pool:
    """So many client actors; the server's side runs in this process.

    Parameters
    ----------
    actors : int
        How many. They start with the first world.
    """

    def __init__(self, actors: int) -> None:
        self.actors = actors
        self.executor: RayExecutor | None = None

    def executor_for(self, world: World) -> RayExecutor:
        """Return the actors, made ready for a world."""
        import ray

        # Next to no CPU, so that several pools find room on the same Ray.
        config = world.config.model_copy(update={
            "resources": world.config.resources.model_copy(update={"cpus_per_actor": 0.1})})
        put = ray.put(world)
        if self.executor is None:
            self.executor = RayExecutor(put, config, self.actors, 0)
        else:
            self.executor.reset(put, config)
        return self.executor

    def federation(self, world: World, warn: Warn = print) -> Federation:
        """Return a new federation of a world on the actors."""
        return Federation(world, self.executor_for(world), warn)

    def played(self, world: World) -> Federation:
        """Return a federation after all its rounds."""
        federation = self.federation(world)
        for _ in range(world.config.rounds):
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
