"""A cluster's nodes with GPUs: of which models they are."""

from __future__ import annotations

from collections.abc import Sequence

from flray.config.experiment import Experiment
from flray.errors import ConfigError
from flray.federation.ray_backend.memory_probe import Node

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
