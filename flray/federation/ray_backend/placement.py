"""Plan the client actors that end soonest on the resources, of one run or of each trial, and describe the plan."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from flray import bits
from flray.config.experiment import Experiment
from flray.errors import ConfigError
from flray.federation import FederationSpec
from flray.federation.ray_backend.nodes import (
    MODEL_RESOURCE,
    UNMEASURED,
    Node,
    ResourceSurvey,
    await_first_node,
    node_resources,
    only_model,
    should_probe,
    survey_nodes,
)
from flray.federation.ray_backend.sharing import measure_sharing
from flray.ray_session import ray_session

MOST_PER_GPU = 4
"""Most actors per GPU even if memory allows more: further ones wait for each other's kernels."""

MEMORY_FRACTION = 0.9
"""Share of the free memory that is used."""

AS_SOON = 1.05
"""Plans whose estimated ends differ by this factor at most are equally good."""


@dataclass(frozen=True)
class Plan:
    """The pool of client actors of a run, or of each trial of a sweep.

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
        Whether it does because its node, the driver's, has no GPU.
    unmeasured : str
        The reason why a needed measurement of memory failed; empty if it succeeded or was not needed.
    gpu_model : str
        The only model of GPU that the actors may use, under Ray's name; empty: the cluster has only
        one, or all may be used.
    trials, at_once : int
        Trials in all, and how many have room at the same time.
    sharing : int
        Processes on a GPU.
    slowdown : float
        How many times as long as alone a task takes because of that.
    timed : bool
        Whether the slowdown was measured, and is not only assumed.
    busy : int
        GPUs that hold an actor or server.
    others : str
        What other jobs hold of the cluster, in words.
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
    trials: int = 1
    at_once: int = 1
    sharing: int = 1
    slowdown: float = 1.0
    timed: bool = False
    busy: int = 0
    others: str = ""

    @property
    def end(self) -> float:
        """When the last trial is estimated to end, in tasks alone: turns of trials, of tasks in a round, slowdown."""
        tasks = math.ceil((self.blocks or self.cohort) / self.actors)
        return math.ceil(self.trials / self.at_once) * tasks * self.slowdown

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
        gpu = f", {self.gpus_per_actor:.3g} GPU" if self.gpus_per_actor else ""
        unit, count = ("block", self.blocks) if self.blocks else ("task", self.cohort)
        each, sweep, beside = count / self.actors, "", ""
        memory = f" (an actor takes {self.measured / 2**30:.1f} GiB)" if self.measured else ""
        if self.unmeasured:
            alone = ", so no GPU is shared" if self.gpus_per_actor else ""
            memory = f" (what an actor takes could not be measured, {self.unmeasured}{alone})"
        server = f"; the server trains on {self.server_gpu:g} GPU" if self.server_gpu else ""
        if self.server_apart:
            server = "; the server trains on a CPU: the node of the driver, where it is, has no GPU"
        if self.sharing > 1:
            how = "as measured" if self.timed else "assumed, not measured"
            beside = (
                f"; {self.sharing} on a GPU take {self.slowdown:.3g} times as long as one ({how})"
            )
        if self.trials > 1:
            sweep = f"{self.trials} trials, {self.at_once} at once, estimated to end after {self.end:.3g} "
            sweep += f"{unit}s' time per round; each "
        return (
            f"{sweep}{self.clients} clients ({self.cohort} per round) -> {self.actors} "
            f"actor{'s' if self.actors > 1 else ''}, {self.cpus_per_actor:g} CPU{gpu} each, about "
            f"{each:.2g} {unit}{'s' if each > 1 else ''} per actor and round{beside}{memory}{server}{self.others}"
        )


def make_plan(
    config: Experiment,
    clients: int,
    cohort: int,
    available: Mapping[str, float],
    nodes: Sequence[Node] = (),
    survey: ResourceSurvey = UNMEASURED,
    trains_at_server: bool = False,
    trials: int = 1,
    concurrency: int | None = None,
) -> Plan:
    """Return the client actors of each trial that are estimated to end the last trial soonest.

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
        A task's footprint, the GPUs' free memory and the cost of sharing one, for ``auto``.
    trains_at_server : bool
        Whether the server needs a share of a GPU too, if the actors have one.
    trials : int
        Equal trials in all; 1 for a run.
    concurrency : int, optional
        Most trials at once.

    Raises
    ------
    ConfigError
        If more is requested than available.
    """
    resources, block = config.resources, config.aggregation.block
    each, auto = resources.cpus_per_actor, resources.actors == "auto"
    cpus, gpus = float(available.get("CPU", 0.0)), float(available.get("GPU", 0.0))
    blocks = min(cohort, math.ceil(clients / block)) if block else 0
    wanted = (blocks or cohort) if auto else int(resources.actors)
    shares = _shares(resources.gpus_per_actor, gpus, survey)
    if each > cpus:
        raise ConfigError(
            "experiment.resources.cpus_per_actor",
            f"{each:g}",
            f"{cpus:g} CPUs are available; ask for fewer",
        )
    found: list[Plan] = []
    for share in shares:
        measured = survey.gpu if share and survey.gpus else survey.memory
        unit = Plan(
            wanted,
            each,
            share,
            clients,
            cohort,
            measured,
            blocks,
            unmeasured=survey.problem,
            trials=trials,
        )
        most = min(trials, concurrency or trials)
        found += _plans(unit, available, nodes, survey, auto, trains_at_server, most)
    if not found:
        asked = f"{each:g} CPU" + (f" and {share:g} GPU" if share else "")
        if auto:
            raise ConfigError(
                "experiment.resources",
                asked,
                "no single node has this much; ask for less per actor",
            )
        room = sum(_room(node, each, share) for node in nodes or [available])
        room = min(room, _room(available, each, share))
        if trains_at_server and share and (room * share + min(share, 1) > gpus):
            room -= 1  # the server's share is one that an actor would have had
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
    if trials == 1:
        found = [plan for plan in found if plan.server_gpu] or found
    if not survey.sharing:  # an assumption is no reason to leave a GPU idle
        most = max(plan.busy for plan in found)
        found = [plan for plan in found if plan.busy >= _expected(plan, most, wanted)] or found
    soonest = min(plan.end for plan in found)
    return max(
        (plan for plan in found if plan.end <= AS_SOON * soonest),
        key=lambda one: (
            *(-math.ceil(trials / one.at_once), one.busy, one.at_once * one.actors),
            one.gpus_per_actor,
        ),
    )


def _expected(plan: Plan, most: int, wanted: int) -> int:
    """Return the GPUs that a plan should keep busy: equal trials leave over less than one for each of them."""
    each = min(max(1, most // plan.at_once), wanted + bool(plan.server_gpu))
    return min(most, plan.at_once * each)


def _plans(
    unit: Plan,
    available: Mapping[str, float],
    nodes: Sequence[Node],
    survey: ResourceSurvey,
    auto: bool,
    trains_at_server: bool,
    limit: int,
) -> Iterator[Plan]:
    """Yield for each number of turns of trials the plan with the most actors of a share, if there is room."""
    share, cpus, hosts = unit.gpus_per_actor, unit.cpus_per_actor, nodes or [available]
    per_gpu = math.floor(1 / share + 1e-9) if 0 < share < 1 else 1
    whole = max(1, math.floor(share))  # GPUs of an actor
    slots = per_gpu * math.floor(available.get("GPU", 0.0)) if share else 10**12
    need = survey.memory if auto and nodes else 0
    rooms = [_room(host, cpus, share, need) for host in hosts]
    carried = min(_room(available, cpus, share), sum(rooms))
    if need and any(_room(host, cpus, share) for host in hosts):
        carried = max(1, carried)  # one actor is tried even if its memory may not do
    # Ray fills one node, and there one GPU, before it takes the next.
    gpus = (math.floor(host.get("GPU", 0.0)) for host in hosts)
    filling = sorted(zip(rooms, gpus, strict=True), reverse=True)
    limit = min(limit, carried)
    for number in {min(limit, -(-unit.trials // t)) for t in range(1, unit.trials + 1)} - {0}:
        # The only share is shared by nobody: the server then computes on a CPU.
        server = int(trains_at_server and share > 0 and slots // number > whole)
        room = min(carried // number, (slots // number - server) // whole)
        actors = max(1, min(unit.actors, room)) if auto else unit.actors
        taken, busy, beside = actors * whole + server, 0, 1
        at_once = min(limit, carried // actors, slots // taken)
        left = at_once * taken
        for most, count in filling if share and at_once else ():
            here = min(left, most * whole)
            left -= here
            busy += min(count, math.ceil(here / per_gpu))
            beside = max(beside, min(per_gpu, here))
        if at_once:
            yield replace(
                unit,
                actors=actors,
                server_gpu=min(share, 1.0) if server else 0.0,
                at_once=at_once,
                sharing=beside,
                slowdown=survey.slowdown(beside),
                timed=beside <= len(survey.sharing),
                busy=busy + math.ceil(left / per_gpu) if share else 0,  # servers need no CPU
            )


def _room(node: Node, cpus: float, share: float, need: int = 0) -> int:
    """Return the number of actors that CPUs, GPUs and memory allow; a share below 1 never spans two GPUs."""
    room = math.floor(float(node.get("CPU", 0.0)) / cpus + 1e-9)
    if share:
        gpus = float(node.get("GPU", 0.0))
        per_gpu = math.floor(1 / share + 1e-9)
        room = min(room, per_gpu * math.floor(gpus) if share <= 1 else math.floor(gpus / share))
    if need and "memory" in node:
        room = min(room, math.floor(MEMORY_FRACTION * node["memory"] / need))
    return room


def _shares(asked: float | str, gpus: float, survey: ResourceSurvey) -> list[float]:
    """Return the shares of a GPU that a process may have: the setting, or those that memory allows, largest first."""
    if asked != "auto":
        if (share := float(asked)) > gpus:
            raise ConfigError(
                "experiment.resources.gpus_per_actor",
                f"{share:g}",
                f"{gpus:g} GPUs are available; set 0 or auto (`flray doctor` shows which ones torch sees)",
            )
        return [share]
    if gpus < 1:
        return [0.0]
    if survey.problem:
        return [1.0]  # shared, its memory might not do
    most = MOST_PER_GPU
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
    return [1.0 / number for number in range(1, most + 1)]


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
    held : mapping, optional
        ``"CPU"`` and ``"GPU"`` of these that other jobs hold.
    """

    def __init__(
        self,
        spec: FederationSpec,
        available: Mapping[str, float],
        driver: str = "",
        held: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._spec, self._nodes, self._held = spec, node_resources(), held
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

    def plan(
        self,
        cohort: int | None = None,
        trials: int = 1,
        concurrency: int | None = None,
        **resources: object,
    ) -> Plan:
        """Return the pool of each trial, after the cost of sharing a GPU was measured if it matters.

        Parameters
        ----------
        cohort : int, optional
            Clients per round; default: the federation's.
        trials, concurrency : int, optional
            Equal trials in all, and the most at once; default: one run.
        **resources
            Replace settings of ``resources``.
        """
        config = self._spec.config
        trains = self._spec.algorithm.trains_at_server and uses_ray(config)
        changed = config.resources.model_copy(update=resources)
        config = config.model_copy(update={"resources": changed})
        cohort = self._spec.cohort_size if cohort is None else cohort
        self._measure_sharing(config, cohort * min(trials, concurrency or trials))
        auto = config.resources.actors == "auto"
        plan = make_plan(
            config,
            len(self._spec.data.clients),
            cohort,
            self._free(config) if auto else self._available,
            self._nodes,
            self._survey,
            trains and not self._apart,
            trials,
            concurrency,
        )
        apart = trains and self._apart and plan.gpus_per_actor > 0
        held = [
            f"{self._held[kind]:g} of {self._available.get(kind, 0.0):g} {kind}s"
            for kind in ("CPU", "GPU")
            if auto and kind in self._held
        ]
        others = f"; others hold {' and '.join(held)}" if held else ""
        return replace(plan, gpu_model=self._model, server_apart=apart, others=others)

    def _free(self, config: Experiment) -> dict[str, float]:
        """Return the resources that others do not hold, and at least one actor's share, which may have to wait."""
        share = config.resources.gpus_per_actor
        least = {
            "CPU": config.resources.cpus_per_actor,
            "GPU": 1.0 if share == "auto" else math.ceil(share),
        }
        return {
            kind: max(there - self._held.get(kind, 0.0), min(there, least.get(kind, 0.0)))
            for kind, there in self._available.items()
        }

    def _measure_sharing(self, config: Experiment, tasks: int) -> None:
        """Measure what sharing a GPU costs, if so many tasks at once could share any."""
        resources, survey = config.resources, self._survey
        if not survey.gpus or survey.sharing or tasks <= len(survey.gpus):
            return
        node = next(one for one in self._nodes if one.get("GPU", 0) >= 1)
        most = len(_shares(resources.gpus_per_actor, len(survey.gpus), survey))
        most = min(most, int(node.get("CPU", 0) / resources.cpus_per_actor))
        if resources.gpus_per_actor == "auto" and most > 1:
            self._survey = replace(survey, sharing=measure_sharing(self._spec, node, most))


def open_cluster(
    stack: contextlib.ExitStack, config: Experiment, address: str | None, say: Callable[[str], None]
) -> Mapping[str, float]:
    """Start or join Ray until a stack closes; return the resources once those that an experiment waits for are there.

    Parameters
    ----------
    stack : ExitStack
        Closes it, as `flray.ray_session.ray_session` does.
    config : Experiment
        The experiment.
    address : str or None
        As in `flray.ray_session.ray_session`; only a cluster that is joined has an autoscaler to wait for.
    say : callable
        Called with one line that names the awaited resource.
    """
    available = stack.enter_context(ray_session(address, bits.variables(config)))
    return available if address is None else await_first_node(config, available, say)


def uses_ray(config: Experiment) -> bool:
    """Return whether an experiment's clients are Ray actors."""
    return config.resources.executor == "ray"
