"""Compare federated-learning methods on heterogeneous data: best method, best settings, and how sure both are."""

from __future__ import annotations

import gc
import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from flray.api import resume, tune
    from flray.bits import portable
    from flray.config.loader import load as load_config
    from flray.registry import (
        register_algorithm,
        register_augmentation,
        register_callback,
        register_dataset,
        register_loss,
        register_metric,
        register_model,
        register_optimizer,
        register_partition,
        register_sampler,
        register_task,
    )
    from flray.reporting.build import report
    from flray.runs.runner import run

    __version__: str

logging.getLogger("flray").addHandler(logging.NullHandler())
if sys.argv[0].endswith("/default_worker.py"):
    # A process of Ray that is about to import torch: see `flray.cli.main.main`.
    gc.set_threshold(50_000)

__all__ = [
    "load_config",
    "portable",
    "register_algorithm",
    "register_augmentation",
    "register_callback",
    "register_dataset",
    "register_loss",
    "register_metric",
    "register_model",
    "register_optimizer",
    "register_partition",
    "register_sampler",
    "register_task",
    "report",
    "resume",
    "run",
    "tune",
]
_LATER = {
    **{name: ("flray.registry", name) for name in __all__ if name.startswith("register_")},
    "load_config": ("flray.config.loader", "load"),
    "portable": ("flray.bits", "portable"),
    "report": ("flray.reporting.build", "report"),
    "resume": ("flray.api", "resume"),
    "run": ("flray.runs.runner", "run"),
    "tune": ("flray.api", "tune"),
}


def __getattr__(name: str) -> Any:
    """Import what is heavy when it is first asked for."""
    if name == "__version__":
        return importlib.import_module("flray.process").own_version()
    if name not in _LATER:
        raise AttributeError(f"module 'flray' has no attribute {name!r}")
    module, attribute = _LATER[name]
    return getattr(importlib.import_module(module), attribute)


_keep_alive: list[Any] = []


class _TorchvisionFinder:
    """A meta-path finder that finds nothing, but acts just before torchvision is looked for.

    torchvision's CUDA-linked wheel cannot load its compiled operators beside a CPU-only torch, and its import then
    stops at the first operator that it expects. Declaring the two operators' schemas first is enough for everything
    except calling them. The finder waits until somebody imports torchvision, so that importing flray stays quick.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            _declare_operators()
        return None


def _declare_operators() -> None:
    """Declare the schemas of ``torchvision::nms`` and ``qnms`` if torch is a CPU-only build."""
    import torch

    if torch.version.cuda is not None or torch.version.hip is not None or _keep_alive:
        return
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _keep_alive.append(library)


if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, _TorchvisionFinder())
