"""The wait for the first node of a cluster whose autoscaler starts nodes when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping

from flray.config.experiment import Experiment
from flray.errors import FlrayError
from flray.federation.ray_backend.gpu_nodes import MODEL_RESOURCE
from flray.federation.state import Notify

NODE_WAIT_S = 600.0
"""Seconds to wait for the first node that can work."""


def await_first_node(
    config: Experiment, available: Mapping[str, float], say: Notify
) -> Mapping[str, float]:
    """Wait for a cluster's first CPU if it has none, and for its first GPU if an experiment asks for one in numbers.

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
