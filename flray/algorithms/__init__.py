"""The federated methods, one file each; importing this package imports every file in it, which registers them."""

import importlib
import pkgutil

from flray.algorithms.base import Algorithm
from flray.algorithms.types import Phase, Stage

__all__ = ["Algorithm", "Phase", "Stage"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
