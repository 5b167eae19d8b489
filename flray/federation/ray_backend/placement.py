"""Plan the pool of client actors from the resources, and describe the plan."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flray.config.experiment import Experiment
from flray.errors import ConfigError, FlrayError
from flray.federation.ray_backend.nodes import (
    MODEL_RESOURCE,
    UNMEASURED,
    Node,
    ResourceSurvey,
    node_resources,
    only_model,
    should_probe,
    survey_nodes,
)
from flray.federation.spec import FederationSpec

MOST_PER_GPU = 4
"""Most actors per GPU even if memory allows more: further ones wait for each other's kernels."""

MEMORY_FRACTION = 0.9
"""Share of the free memory that is used."""


@dataclass(frozen=True)
class Plan:
    """The pool of client actors.

    Attributes
    ----------
    actors : int
        Client actors.
    cpus_per_actor, gpus_per_actor : float
        Share of each.
    clients, cohort : int
        Clients in all, and per round.
    measured : int
        Bytes of GPU memory (on the CPU: of main memory) that an actor takes; 0 if not measured.
    blocks : int
        Most blocks of clients in a round (``aggregation.block``), each run by one actor; 0
        without blocks.
    server_gpu : float
        Share of a GPU that is reserved for the server, if it trains; 0: it computes on a CPU.
    server_apart : bool
        Whether it does because the driver's node, where it is, has no GPU.
    unmeasured : str
        The reason why a needed measurement of memory failed; empty if it succeeded or was not needed.
    gpu_model : str
        The only model of GPU that the actors may use, under Ray's name; empty: the cluster has only
        one, or all may be used.
    """

    actors: int
    cpus_per_actor: float
    gpus_per_actor: float
    clients: int
    cohort: int
    measured: int = 0
    blocks: int = 0
    server_gpu: float = 0.0
    server_apart: bool = False
    unmeasured: str = ""
    gpu_model: str = ""

    @property
    def bundle(self) -> dict[str, float]:
        """The resources that Ray reserves for an actor."""
        gpus = {"GPU": self.gpus_per_actor} if self.gpus_per_actor else {}
        model = {MODEL_RESOURCE + self.gpu_model: 0.001} if gpus and self.gpu_model else {}
        return {"CPU": self.cpus_per_actor, **gpus, **model}

    def lacks_gpus(self, config: Experiment) -> bool:
        """Return whether the actors compute on CPUs only because no GPU exists."""
        return config.resources.gpus_per_actor == "auto" and not self.gpus_per_actor

    def __str__(self) -> str:
        gpu = f", {self.gpus_per_actor:g} GPU" if self.gpus_per_actor else ""
        unit, count = ("block", self.blocks) if self.blocks else ("task", self.cohort)
        each = count / self.actors
        memory = f" (an actor takes {self.measured / 2**30:.1f} GiB)" if self.measured else ""
        if self.unmeasured:
            alone = ", so no GPU is shared" if self.gpus_per_actor else ""
            memory = f" (what an actor takes could not be measured, {self.unmeasured}{alone})"
        server = f"; the server trains on {self.server_gpu:g} GPU" if self.server_gpu else ""
        if self.server_apart:
            server = "; the server trains on a CPU: the node of the driver, where it is, has no GPU"
        return (
            f"{self.clients} clients ({self.cohort} per round) -> {self.actors} "
            f"actor{'s' if self.actors > 1 else ''}, {self.cpus_per_actor:g} CPU{gpu} each, about "
            f"{each:.2g} {unit}{'s' if each > 1 else ''} per actor and round{memory}{server}"
        )


def make_plan(
    config: Experiment,
    clients: int,
    cohort: int,
    available: Mapping[str, float],
    nodes: Sequence[Node] = (),
    survey: ResourceSurvey = UNMEASURED,
    trains_at_server: bool = False,
) -> Plan:
    """Return the number of client actors, and the share of each.

    Parameters
    ----------
    config : Experiment
        Its resources.
    clients, cohort : int
        Clients in all, and per round.
    available : mapping
        Total ``"CPU"`` and ``"GPU"`` that may be used.
    nodes : sequence of mapping, optional
        The same for each node, because an actor cannot span two nodes.
    survey : ResourceSurvey, optional
        A task's footprint and the GPUs' free memory, for ``auto``.
    trains_at_server : bool
        Whether the server needs a share of a GPU too, if the actors have one.

    Raises
    ------
    ConfigError
        If more is requested than available.
    """
    resources, block = config.resources, config.aggregation.block
    each = resources.cpus_per_actor
    cpus, gpus = float(available.get("CPU", 0.0)), float(available.get("GPU", 0.0))
    blocks = min(cohort, math.ceil(clients / block)) if block else 0
    wanted = (blocks or cohort) if resources.actors == "auto" else int(resources.actors)
    hosts = [node for node in nodes if float(node.get("GPU", 0.0)) >= 1] or [available]
    carried = [(math.floor(float(host.get("GPU", 0.0))), _room(host, each, 0.0)) for host in hosts]
    share = _gpu_share(resources.gpus_per_actor, gpus, carried, wanted + trains_at_server, survey)
    if each > cpus:
        raise ConfigError(
            "experiment.resources.cpus_per_actor",
            f"{each:g}",
            f"{cpus:g} CPUs are available; ask for fewer",
        )
    room = _room(available, each, share)
    if nodes:
        room = min(room, sum(_room(node, each, share) for node in nodes))
    server = min(share, 1.0) if trains_at_server else 0.0
    if server and room * share + server > math.floor(gpus) + 1e-9:
        # The server's share is one that an actor would have had; the only one is shared by nobody.
        server, room = (server, room - 1) if room > 1 else (0.0, room)
    asked = f"{each:g} CPU" + (f" and {share:g} GPU" if share else "")
    if resources.actors == "auto":
        if survey.memory and nodes:
            room = max(1, min(room, sum(_memory_room(node, survey.memory) for node in nodes)))
        if not room:
            raise ConfigError(
                "experiment.resources",
                asked,
                "no single node has this much; ask for less per actor",
            )
    elif wanted > room:
        have = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if share else "")
        have += f" on {len(nodes)} nodes" if len(nodes) > 1 else ""
        if share and survey.problem:
            have = f"what an actor takes could not be measured ({survey.problem}), and {have}"
        raise ConfigError(
            "experiment.resources.actors",
            f"{wanted}",
            f"{have} carry {room} actor{'s' if room != 1 else ''} of {asked}; ask for fewer actors, "
            "a smaller share each, or 'auto'",
        )
    return Plan(
        min(room, wanted),
        each,
        share,
        clients,
        cohort,
        survey.gpu if share and survey.gpus else survey.memory,
        blocks,
        server,
        unmeasured=survey.problem,
    )


def _room(resources: Node | Mapping[str, float], cpus_per_actor: float, gpu_share: float) -> int:
    """Return the number of actors that CPUs and GPUs allow; a share below 1 never spans two GPUs."""
    room = math.floor(float(resources.get("CPU", 0.0)) / cpus_per_actor + 1e-9)
    if gpu_share:
        gpus = float(resources.get("GPU", 0.0))
        room = min(
            room,
            math.floor(1 / gpu_share + 1e-9) * math.floor(gpus)
            if gpu_share <= 1
            else math.floor(gpus / gpu_share),
        )
    return room


def _memory_room(node: Node, need: int) -> int:
    return math.floor(MEMORY_FRACTION * node["memory"] / need) if "memory" in node else 10**9


def _gpu_share(
    asked: float | str,
    gpus: float,
    carried: Sequence[tuple[int, int]],
    wanted: int,
    survey: ResourceSurvey,
) -> float:
    """Return each process's share of a GPU: the setting, or the smallest share that leaves no GPU idle.

    Ray fills one GPU before it takes the next. `carried` holds each node's GPUs, and the number of
    actors that its CPUs allow.
    """
    if asked != "auto":
        if (share := float(asked)) > gpus:
            raise ConfigError(
                "experiment.resources.gpus_per_actor",
                f"{share:g}",
                f"{gpus:g} GPUs are available; set 0 or auto (`flray doctor` shows which ones torch sees)",
            )
        return share
    if gpus < 1:
        return 0.0
    if survey.problem:
        return 1.0  # shared, its memory might not do
    wanted = min(wanted, sum(room for _, room in carried))
    most = min(MOST_PER_GPU, math.ceil(wanted / gpus))
    for gpu in survey.gpus:
        fits = math.floor(MEMORY_FRACTION * gpu.free / survey.gpu)
        if not fits:
            raise ConfigError(
                "experiment.resources.gpus_per_actor",
                "auto",
                f"GPU {gpu.index} of {gpu.node} has {gpu.free / 2**30:.1f} GiB free and a task takes "
                f"{survey.gpu / 2**30:.1f}; end what else runs there, leave it out "
                "(CUDA_VISIBLE_DEVICES), or lower local.batch_size",
            )
        most = min(most, fits)
    shared = (number for number in range(most, 1, -1) if _uses_all(number, carried, wanted))
    return 1.0 / next(shared, 1)


def _uses_all(per_gpu: int, carried: Sequence[tuple[int, int]], wanted: int) -> bool:
    """Return whether packing `per_gpu` processes per GPU leaves no GPU idle."""
    filled = [min(room, per_gpu * gpus) for gpus, room in carried]
    total = min(wanted, sum(filled))
    return math.ceil(total / per_gpu) >= sum(gpus for gpus, _ in carried) and all(
        math.ceil(count / per_gpu) >= gpus for count, (gpus, _) in zip(filled, carried, strict=True)
    )


class PoolPlanner:
    """Plans pools of client actors for one federation on what is available.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    available : mapping
        ``"CPU"`` and ``"GPU"`` of the machine or cluster. Where Ray runs, its nodes count
        too, and a task's memory is measured there if it may limit the pool.
    driver : str
        The id of the driver's node, if the server has to be there.
    """

    def __init__(
        self, spec: FederationSpec, available: Mapping[str, float], driver: str = ""
    ) -> None:
        self._spec, self._nodes = spec, node_resources()
        self._available, config = dict(available), spec.config
        self._model = only_model(config, self._nodes)
        if self._model:
            self._nodes = [node for node in self._nodes if MODEL_RESOURCE + self._model in node]
            self._available |= {
                kind: sum(float(node.get(kind, 0.0)) for node in self._nodes)
                for kind in ("CPU", "GPU")
            }
        with_gpus = [node["id"] for node in self._nodes if float(node.get("GPU", 0.0)) >= 1]
        self._apart = bool(driver) and driver not in with_gpus
        probing = self._nodes and uses_ray(config) and should_probe(spec, self._nodes)
        self._survey = survey_nodes(spec, self._nodes) if probing else UNMEASURED

    def plan(self, cohort: int | None = None, **resources: object) -> Plan:
        """Return a pool.

        Parameters
        ----------
        cohort : int, optional
            Clients per round; default: the federation's.
        **resources
            Replace settings of ``resources``.
        """
        config, trains = self._spec.config, self._spec.algorithm.trains_at_server
        if resources:
            changed = config.resources.model_copy(update=resources)
            config = config.model_copy(update={"resources": changed})
        plan = make_plan(
            config,
            len(self._spec.data.clients),
            self._spec.cohort_size if cohort is None else cohort,
            self._available,
            self._nodes,
            self._survey,
            trains and not self._apart,
        )
        apart = trains and self._apart and plan.gpus_per_actor > 0
        return replace(plan, gpu_model=self._model, server_apart=apart)


def uses_ray(config: Experiment) -> bool:
    """Return whether an experiment's clients are Ray actors."""
    return config.resources.executor == "ray"


def check_address(config: Experiment, address: str | None) -> None:
    """Reject a cluster's address for an experiment that does not use Ray.

    Raises
    ------
    FlrayError
        Naming the setting.
    """
    if address is not None and not uses_ray(config):
        raise FlrayError(
            f"--address {address}: resources.executor is {config.resources.executor}, which runs all "
            "clients in this process; set it to ray, or leave the address out"
        )
