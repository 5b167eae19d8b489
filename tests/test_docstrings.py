"""Docstrings name the parameters that there are: checked with numpydoc's own parser."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from numpydoc.validate import Validator, validate

import flray
from flray import functional

WRONG = {"PR01", "PR02", "PR03", "PR04", "PR05", "PR06"}
"""Parameters: left out, unknown, in another order, without type, with a badly written type."""
OF_RAY = "Parameters {'_ray_trace_ctx'} not documented"
"""Ray gives it to the methods of a class that was made an actor earlier in this process."""


def documented(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    for key, item in vars(module).items():
        if key.startswith("_") or getattr(item, "__module__", None) != name:
            continue
        if inspect.isfunction(item) or inspect.isclass(item):
            yield f"{name}.{key}"
        if inspect.isclass(item):
            yield from (
                f"{name}.{key}.{method}"
                for method, function in vars(item).items()
                if inspect.isfunction(function) and not method.startswith("_")
            )


def mistakes(name: str) -> list[str]:
    errors = [text for code, text in validate(name)["errors"] if code in WRONG and text != OF_RAY]
    return [f"{name}: {text}" for text in errors]


def has_parameters(name: str) -> bool:
    return "Parameters\n" in (Validator._load_obj(name).__doc__ or "")


def test_documented_parameters_are_those_of_the_signature_and_formulas_document_all() -> None:
    found = {module.name for module in pkgutil.walk_packages(flray.__path__, "flray.")}
    modules = {"flray", *found} - {"flray.run", "flray.tune"}
    names = [name for module in modules for name in documented(module) if has_parameters(name)]
    assert len(names) > 200 and [mistake for name in names for mistake in mistakes(name)] == []
    names = [f"flray.functional.{name}" for name in functional.__all__]
    names += ["flray.runs.runner.run", "flray.api.tune", "flray.config.loader.load"]
    names = [name for name in names if inspect.signature(Validator._load_obj(name)).parameters]
    assert [name for name in names if not has_parameters(name) or mistakes(name)] == []
