"""Compare federated-learning methods on heterogeneous data: best method, best settings, and how sure both are."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from flray import _torchvision_cpu_shim

if TYPE_CHECKING:
    from flray.api import resume, tune
    from flray.bits import portable
    from flray.config.loader import load as load_config
    from flray.registry import (
        register_algorithm,
        register_augmentation,
        register_callback,
        register_dataset,
        register_metric,
        register_model,
        register_partition,
        register_sampler,
    )
    from flray.reporting.build import report
    from flray.runs.runner import run

    __version__: str

_torchvision_cpu_shim.install_hook()
logging.getLogger("flray").addHandler(logging.NullHandler())

__all__ = [
    "load_config",
    "portable",
    "register_algorithm",
    "register_augmentation",
    "register_callback",
    "register_dataset",
    "register_metric",
    "register_model",
    "register_partition",
    "register_sampler",
    "report",
    "resume",
    "run",
    "tune",
]

_LATER = {
    "run": ("flray.runs.runner", "run"),
    "load_config": ("flray.config.loader", "load"),
    "portable": ("flray.bits", "portable"),
    "register_algorithm": ("flray.registry", "register_algorithm"),
    "register_augmentation": ("flray.registry", "register_augmentation"),
    "register_callback": ("flray.registry", "register_callback"),
    "register_dataset": ("flray.registry", "register_dataset"),
    "register_metric": ("flray.registry", "register_metric"),
    "register_model": ("flray.registry", "register_model"),
    "register_partition": ("flray.registry", "register_partition"),
    "register_sampler": ("flray.registry", "register_sampler"),
    "report": ("flray.reporting.build", "report"),
    "resume": ("flray.api", "resume"),
    "tune": ("flray.api", "tune"),
}


def __getattr__(name: str) -> Any:
    """Import what is heavy when it is first asked for."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("flray")
    if name not in _LATER:
        raise AttributeError(f"module 'flray' has no attribute {name!r}")
    module, attribute = _LATER[name]
    return getattr(importlib.import_module(module), attribute)
