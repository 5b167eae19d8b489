"""A cluster's nodes with GPUs: of which models they are, and the wait for the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flray.config.experiment import Experiment
from flray.errors import ConfigError, FlrayError
from flray.federation.ray_backend.memory_probe import Node
from flray.federation.state import Notify

GPU_WAIT_S = 600.0
"""Seconds to wait for a cluster's first GPU, which an autoscaler may have to start a node for."""

NO_GPU_NOW = (
    "the cluster has no GPU now, so clients are computed on CPUs; with a number in "
    "resources.gpus_per_actor a run waits for an autoscaler's first GPU"
)

MODEL_RESOURCE = "accelerator_type:"
"""With the model's name what Ray calls a resource of nodes that have such GPUs."""


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


def await_gpus(
    config: Experiment, available: Mapping[str, float], say: Notify
) -> Mapping[str, float]:
    """Wait for the first GPU of a cluster that has none, if an experiment asks for one in numbers.

    Parameters
    ----------
    config : Experiment
        Its resources.
    available : mapping
        What the cluster has.
    say : callable
        Called with one line that says what is waited for.

    Returns
    -------
    mapping
        What the cluster has now.

    Raises
    ------
    FlrayError
        If none came within `GPU_WAIT_S`.
    """
    asked = config.resources.gpus_per_actor
    if (
        asked in ("auto", 0)
        or config.resources.executor != "ray"
        or float(available.get("GPU", 0.0)) > 0
    ):
        return available
    # Imported here: Ray takes two seconds.
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    named = config.resources.gpu_model
    model = {} if named in ("one", "any") else {MODEL_RESOURCE + named: 0.001}
    say(
        f"the cluster has no GPU now; waiting up to {GPU_WAIT_S:g} s for its autoscaler to start a node "
        "with one (resources.gpus_per_actor=0 computes on CPUs)"
    )
    group = placement_group([{"GPU": float(asked), **model}])
    try:
        ray.get(group.ready(), timeout=GPU_WAIT_S)
    except ray.exceptions.GetTimeoutError:
        raise FlrayError(
            f"no GPU came to the cluster within {GPU_WAIT_S:g} s; `ray status` shows what its autoscaler "
            "does, and resources.gpus_per_actor=0 computes on CPUs"
        ) from None
    finally:
        remove_placement_group(group)
    return dict(ray.cluster_resources())
