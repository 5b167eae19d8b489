"""Compare federated-learning methods on heterogeneous data: best method, best settings, and how sure both are."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

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
        return importlib.import_module("flray.startup").own_version()
    if name not in _LATER:
        raise AttributeError(f"module 'flray' has no attribute {name!r}")
    module, attribute = _LATER[name]
    return getattr(importlib.import_module(module), attribute)


_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
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
        library.define(f"{operator}{_SCHEMA}")
    _keep_alive.append(library)


if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, _TorchvisionFinder())
