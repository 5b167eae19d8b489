"""Let torchvision's CUDA-linked wheel import beside a CPU-only torch.

That wheel cannot load its compiled operators there, and its import then stops at the first operator
it expects to exist. Declaring the two operators' schemas first is enough for everything except
calling them. The hook waits until somebody imports torchvision, so that importing flray alone stays
quick, and does nothing where torch has CUDA.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_keep_alive: list[Any] = []


class _TorchvisionFinder:
    """A meta-path finder that finds nothing, but acts just before torchvision is looked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            declare_operators()
        return None


def declare_operators() -> None:
    """Declare the schemas of ``torchvision::nms`` and ``qnms`` if torch is a CPU-only build."""
    import torch

    if torch.version.cuda is not None or torch.version.hip is not None or _keep_alive:
        return
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}{_SCHEMA}")
    _keep_alive.append(library)


def install_hook() -> None:
    """Arrange for `declare_operators` to run right before the first import of torchvision."""
    if "torchvision" not in sys.modules and not any(
        isinstance(f, _TorchvisionFinder) for f in sys.meta_path
    ):
        sys.meta_path.insert(0, _TorchvisionFinder())
