"""Compare federated-learning methods on heterogeneous data: best method, best settings, and how sure both are."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from flray import _torchvision_cpu_shim

if TYPE_CHECKING:
    from flray.api import resume as resume
    from flray.api import tune as tune
    from flray.bits import portable as portable
    from flray.config import loader
    from flray.registry import register_algorithm as register_algorithm
    from flray.registry import register_augmentation as register_augmentation
    from flray.registry import register_callback as register_callback
    from flray.registry import register_dataset as register_dataset
    from flray.registry import register_loss as register_loss
    from flray.registry import register_metric as register_metric
    from flray.registry import register_model as register_model
    from flray.registry import register_optimizer as register_optimizer
    from flray.registry import register_partition as register_partition
    from flray.registry import register_sampler as register_sampler
    from flray.registry import register_task as register_task
    from flray.reporting.build import report as report
    from flray.runs.runner import run as run

    load_config = loader.load
    __version__: str

_torchvision_cpu_shim.install_hook()
logging.getLogger("flray").addHandler(logging.NullHandler())

_KINDS = (
    *("algorithm", "augmentation", "callback", "dataset", "loss", "metric"),
    *("model", "optimizer", "partition", "sampler", "task"),
)
_LATER = {
    "run": ("flray.runs.runner", "run"),
    "load_config": ("flray.config.loader", "load"),
    "portable": ("flray.bits", "portable"),
    **{f"register_{kind}": ("flray.registry", f"register_{kind}") for kind in _KINDS},
    "report": ("flray.reporting.build", "report"),
    "resume": ("flray.api", "resume"),
    "tune": ("flray.api", "tune"),
}
__all__ = list(_LATER)


def __getattr__(name: str) -> Any:
    """Import what is heavy when it is first asked for."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("flray")
    if name not in _LATER:
        raise AttributeError(f"module 'flray' has no attribute {name!r}")
    module, attribute = _LATER[name]
    return getattr(importlib.import_module(module), attribute)
