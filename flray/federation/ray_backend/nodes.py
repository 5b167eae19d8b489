"""A cluster's nodes: resources, models of GPU, the wait for the first that can work, and the user's modules there."""

import sys
import sysconfig
from collections.abc import Mapping, Sequence
from typing import Any

from flray import registry
from flray.config.experiment import Experiment
from flray.config.plugins import MODULE_PREFIX
from flray.errors import ConfigError, FlrayError
from flray.federation.state import Notify

# Resources of one node of the cluster by name, its ``id`` and its ``name``.
Node = Mapping[str, Any]

NO_GPU_NOW = (
    "the cluster has no GPU now, so clients are computed on CPUs; with a number in "
    "resources.gpus_per_actor a run waits for an autoscaler's first GPU"
)

MODEL_RESOURCE = "accelerator_type:"
"""With the model's name what Ray calls a resource of nodes that have such GPUs."""


def node_resources() -> list[Node]:
    """Return the resources of every living node of the connected Ray cluster, if any."""
    import ray

    if not ray.is_initialized():
        return []
    return [
        {**node["Resources"], "id": node["NodeID"], "name": node["NodeManagerHostname"]}
        for node in ray.nodes()
        if node["Alive"]
    ]


def own_node() -> str:
    """Return the id of this process's node."""
    import ray

    node: str = ray.get_runtime_context().get_node_id()
    return node


def node_mark() -> str:
    """Return the resource that this process's node alone has."""
    (here,) = [node for node in node_resources() if node["id"] == own_node()]
    (mark,) = [name for name in here if name.startswith("node:") and "node:__" not in name]
    return str(mark)


def only_model(config: Experiment, nodes: Sequence[Node]) -> str:
    """Return the one model of GPU that an experiment's actors may have; empty where all may be used.

    Raises
    ------
    ConfigError
        If there are several and none is named, or the named one is not there.
    """
    wanted = config.resources.gpu_model
    if config.resources.gpus_per_actor == 0 or wanted == "any":
        return ""
    models = sorted(
        {
            name.removeprefix(MODEL_RESOURCE)
            for node in nodes
            if float(node.get("GPU", 0.0)) > 0
            for name in node
            if name.startswith(MODEL_RESOURCE)
        }
    )
    there = ", ".join(models) or "none that Ray knows the model of"
    if wanted != "one":
        if wanted in models or not nodes:
            return wanted
        raise ConfigError("experiment.resources.gpu_model", wanted, f"the GPUs are {there}")
    if len(models) > 1:
        raise ConfigError(
            "experiment.resources.gpu_model",
            wanted,
            f"the cluster's GPUs are of several models ({there}), whose last bits differ; name one of "
            "them, or set any to use all",
        )
    return ""


NODE_WAIT_S = 600.0
"""Seconds to wait for the first node that can work."""


def await_first_node(
    config: Experiment, available: Mapping[str, float], say: Notify
) -> Mapping[str, float]:
    """Wait for a cluster's first CPU if it has none, and for its first GPU if an experiment asks for one in numbers.

    Parameters
    ----------
    config : Experiment
        The experiment.
    available : mapping
        The resources of the cluster.
    say : callable
        Called with one line that names the awaited resource.

    Returns
    -------
    mapping
        The resources of the cluster after the wait.

    Raises
    ------
    FlrayError
        If none came within `NODE_WAIT_S`.
    """
    resources = config.resources
    asked = resources.gpus_per_actor
    if (
        asked not in ("auto", 0)
        and resources.executor == "ray"
        and not float(available.get("GPU", 0.0))
    ):
        named = resources.gpu_model
        model = {} if named in ("one", "any") else {MODEL_RESOURCE + named: 0.001}
        advice = "resources.gpus_per_actor=0 computes on CPUs"
        return _await("GPU", {"GPU": float(asked), **model}, advice, say)
    if not float(available.get("CPU", 0.0)):
        advice = "without --address Ray is started on this machine"
        return _await("CPU", {"CPU": resources.cpus_per_actor}, advice, say)
    return available


def _await(kind: str, bundle: dict[str, float], advice: str, say: Notify) -> Mapping[str, float]:
    # Imported here: Ray takes two seconds.
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    say(
        f"the cluster has no {kind} now; waiting up to {NODE_WAIT_S:g} s for its autoscaler to start a node "
        f"with one ({advice})"
    )
    group = placement_group([bundle])
    try:
        ray.get(group.ready(), timeout=NODE_WAIT_S)
    except ray.exceptions.GetTimeoutError:
        raise FlrayError(
            f"no {kind} came to the cluster within {NODE_WAIT_S:g} s; `ray status` shows what its "
            f"autoscaler does, and {advice}"
        ) from None
    finally:
        remove_placement_group(group)
    return dict(ray.cluster_resources())


def ship_user_modules() -> None:
    """Pickle everything defined in the user's own modules by value.

    These are the plug-ins that a configuration names, and the modules that registered components
    from Python. Installed packages are assumed to be installed everywhere.
    """
    from ray import cloudpickle

    installed = sysconfig.get_paths()
    names = {name for name in list(sys.modules) if name.startswith(MODULE_PREFIX)}
    names |= {
        getattr(item, "__module__", "")
        for entries in registry.ALL.values()
        for item in entries.added().values()
    }
    for name in sorted(names):
        module = sys.modules.get(name)
        path = getattr(module, "__file__", None)
        if module and path and not path.startswith((installed["purelib"], installed["platlib"])):
            cloudpickle.register_pickle_by_value(module)
