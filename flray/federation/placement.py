"""From resources to a pool of client actors, and the plan in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flray.config import Experiment
from flray.errors import ConfigError


@dataclass(frozen=True)
class Plan:
    """How the turns are spread.

    Attributes
    ----------
    actors : int
        Client actors.
    cpus_per_actor, gpus_per_actor : float
        Share of each.
    clients, cohort : int
        Clients in all, and per round.
    """

    actors: int
    cpus_per_actor: float
    gpus_per_actor: float
    clients: int
    cohort: int

    def __str__(self) -> str:
        gpu = f", {self.gpus_per_actor:g} GPU" if self.gpus_per_actor else ""
        turns = self.cohort / self.actors
        return (f"{self.clients} clients ({self.cohort} per round) -> {self.actors} "
                f"actor{'s' if self.actors > 1 else ''}, {self.cpus_per_actor:g} CPU{gpu} each, "
                f"about {turns:.2g} turn{'s' if turns > 1 else ''} per actor and round")


def make_plan(config: Experiment, clients: int, cohort: int, available: Mapping[str, float]) -> Plan:
    """Return how many client actors there will be, and what each gets.

    Parameters
    ----------
    config : Experiment
        Its resources.
    clients, cohort : int
        Clients in all, and per round.
    available : mapping
        ``"CPU"`` and ``"GPU"`` that may be used.

    Raises
    ------
    ConfigError
        If more is asked for than there is.
    """
    resources = config.resources
    cpus, gpus = float(available.get("CPU", 0.0)), float(available.get("GPU", 0.0))
    gpu_share = _gpu_share(resources.gpus_per_actor, gpus, resources.actors, cohort)
    if resources.cpus_per_actor > cpus:
        raise ConfigError("experiment.resources.cpus_per_actor", f"{resources.cpus_per_actor:g}",
                          f"{cpus:g} CPUs are available; ask for fewer")
    room = math.floor(cpus / resources.cpus_per_actor + 1e-9)
    if gpu_share:
        per_gpu = math.floor(1 / gpu_share + 1e-9) if gpu_share <= 1 else 0
        room_gpu = per_gpu * math.floor(gpus) if per_gpu else math.floor(gpus / gpu_share)
        room = min(room, room_gpu)
    actors = max(1, min(room, cohort)) if resources.actors == "auto" else resources.actors
    if actors > room:
        have = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpu_share else "")
        raise ConfigError(
            "experiment.resources.actors", f"{actors}",
            f"{have} carry {room} actor{'s' if room != 1 else ''} of {resources.cpus_per_actor:g} CPU"
            + (f" and {gpu_share:g} GPU" if gpu_share else "")
            + "; ask for fewer actors, a smaller share each, or 'auto'")
    return Plan(actors, resources.cpus_per_actor, gpu_share, clients, cohort)


def _gpu_share(asked: float | str, gpus: float, actors: int | str, cohort: int) -> float:
    if asked != "auto":
        share = float(asked)
        if share > 1 and share != int(share):
            raise ConfigError("experiment.resources.gpus_per_actor", f"{share:g}",
                              "a share below 1, or a whole number of GPUs")
        if share > gpus:
            raise ConfigError("experiment.resources.gpus_per_actor", f"{share:g}", f"{gpus:g} GPUs are available")
        return share
    if gpus < 1:
        return 0.0
    wanted = cohort if actors == "auto" else int(actors)
    return 1.0 / max(1, min(4, math.ceil(wanted / gpus)))
