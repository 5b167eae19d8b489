"""Read the declarations of flray's components without importing torch.

Names, first lines, options and a method's declarations need neither torch nor another package that
computes. A command that only shows or checks them would wait seconds for these. So a component's
module is run as a second module, with a stand-in for each such package; `tests/test_start.py`
compares its declarations with those of the imported module.
"""

import builtins
import importlib.util
import pkgutil
import sys
from abc import ABCMeta
from collections.abc import Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "flray.declarations:"
"""Before the names of modules that were run with stand-ins."""
_ROOT = Path(__file__).resolve().parents[1]
_LIGHT = ("flray.config", "flray.errors", "flray.registry")
_REAL = (sys.stdlib_module_names - {"importlib", "pkgutil"}) | {"pydantic", "pydantic_core"}
"""Packages that a module gets; without the two, a package does not import the files in it."""


class _Anything(ABCMeta):
    """The type of the stand-in, whose attributes, items and results are the stand-in itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn

    def __getitem__(cls, item: object) -> Any:
        return _StandIn

    def __call__(cls, *args: object, **options: object) -> Any:
        return _StandIn

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class _StandIn(metaclass=_Anything):
    """In place of a package that computes, and of anything in it."""


class _Module(ModuleType):
    """A module that is run with stand-ins; a package's modules are its attributes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _import(f"{self.__name__.removeprefix(PREFIX)}.{name}", {}, {}, ("__name__",))


@cache
def run_all(package: str) -> None:
    """Run the modules of a package, or the one module of that name, which register outlines."""
    folder = _ROOT.joinpath(*package.split("."))
    inside = [f"{package}.{one.name}" for one in pkgutil.iter_modules([str(folder)])]
    for name in inside or [package]:
        outline(name)


def outline(name: str) -> ModuleType:
    """Return a module of flray that was run with stand-ins."""
    if PREFIX + name in sys.modules:
        return sys.modules[PREFIX + name]
    spec = PathFinder.find_spec(name, [str(_ROOT.joinpath(*name.split(".")[:-1]))])
    if spec is None or spec.loader is None:
        raise ImportError(f"flray has no module {name}")
    module = sys.modules[PREFIX + name] = _Module(PREFIX + name)
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
    module.__file__, module.__path__ = spec.origin, []
    exec(spec.loader.get_code(name), vars(module))  # type: ignore[attr-defined]
    return module


def _import(name: str, *context: Any) -> Any:
    """Import as a module that is run with stand-ins does."""
    first = name.partition(".")[0]
    if name == "flray":
        return _Module(name)
    if first in _REAL or name.startswith(_LIGHT):
        return importlib.__import__(name, *context)
    return outline(name) if first == "flray" else _StandIn
