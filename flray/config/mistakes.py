"""Mistakes in a configuration in the user's words: pydantic's errors, and values of another type than written."""

import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel, ValidationError

from flray.config.components import Component
from flray.config.experiment import Experiment
from flray.config.sweep import FORMS, Sweep
from flray.config.yaml_files import Plain
from flray.errors import ConfigError, nearest

BRANCHES = {
    *FORMS,
    "named",
    "dealt",
    "int",
    "float",
    "bool",
    "constrained-int",
    "constrained-float",
}
_NEEDED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer is needed"),
    "int_parsing_size": "an integer of at most 64 bits is needed",
    **dict.fromkeys(("float_type", "float_parsing"), "a number is needed"),
    "finite_number": "it must be finite",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false is needed"),
    "string_type": "a text is needed",
    **dict.fromkeys(("tuple_type", "list_type"), "a list is needed"),
    "dict_type": "a mapping is needed (KEY: VALUE)",
    "model_type": "a mapping is needed (KEY: VALUE)",
    "model_attributes_type": "a mapping is needed (KEY: VALUE)",
}


def explain(error: ValidationError, root: type[BaseModel]) -> Iterator[ConfigError]:
    """Yield pydantic's errors, each path once.

    Parameters
    ----------
    error : ValidationError
        The error of the whole configuration.
    root : type of BaseModel
        The model of the whole configuration.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for item in error.errors():
        if item["type"] == "default_factory_not_called":
            continue  # a default that follows from a setting that is wrong
        path, what, allowed = _explain_one(item, root)
        if any(known.startswith(f"{path}.") for known in found):
            continue  # a parent is wrong because a part of it is
        words = found.setdefault(path, (what, []))[1]
        if allowed not in words:
            words.append(allowed)  # requirements of the value's other forms
    for path, (what, words) in found.items():
        yield ConfigError(path, what, " or ".join(words))


def _explain_one(item: Plain, root: type[BaseModel]) -> tuple[str, str, str]:
    """Return path, value found and values allowed for one of pydantic's errors."""
    context = item.get("ctx", {})
    loc = (*item["loc"], *context.get("sub", ()))
    # Pydantic's names of a union's branches are no keys of the file.
    keys = (part for part in map(str, loc) if "[" not in part and part not in BRANCHES)
    path = ".".join(keys)
    value = item["input"]
    for part in context.get("sub", ()):
        value = value.get(part, value) if isinstance(value, Mapping) else value
    value = context.get("found", value)
    if item["type"] == "extra_forbidden":
        allowed, key = _fields(root, item["loc"][:-1]), str(item["loc"][-1])
        meant = _nearest_path(key, item["loc"][:-1], allowed)
        if not path.endswith(key):  # it has the name of a branch
            path = f"{path}.{key}"
        return path, "an unknown key", f"allowed here: {', '.join(allowed)}{meant}"
    short = item["type"] == "missing" and isinstance(loc[-1], int)
    fixed = next((w for one, w in _OF_FIXED_LENGTH.items() if one in map(str, loc[-3:])), None)
    if fixed is not None and (short or item["type"] in ("tuple_type", "list_type", "too_long")):
        return path.rpartition(".")[0] if short else path, _format_value(item["input"]), fixed
    if short:
        return path.rpartition(".")[0], _format_value(item["input"]), "more values are needed"
    if item["type"] == "missing":
        return path, "nothing", "this setting is required"
    if item["type"] == "tuple_type" and loc[-1] == "seeds" and type(value) is int:
        if value < 1:
            return path, str(value), "a list of seeds is needed, for example [0]"
        numbers = ", ".join(map(str, range(value))) if value <= 5 else f"0, 1, ..., {value - 1}"
        return path, str(value), f"a list of seeds is needed, for {value} of them [{numbers}]"
    if item["type"] == "string_pattern_mismatch" and loc[-1] == "name":
        words = "letters A to Z, digits, '.', '_' and '-' are allowed, and the first is a letter or a digit"
        return path, _format_value(value), words
    words = expected_value(item["type"], item["msg"], value)
    if loc[-1] == "[number]" and isinstance(value, str):  # of participation.unseen
        words += f", or a list of names: [{_format_value(value)}]"
    return path, _format_value(value), words


_OF_FIXED_LENGTH = {
    "split": "three shares are needed, for training, validation and test, for example [0.6, 0.2, 0.2]",
    "betas": "two numbers are needed, for example [0.9, 0.999]",
    **dict.fromkeys(
        ("uniform", "loguniform", "randint"),
        "a list of two numbers is needed, the low one and the high one",
    ),
}
"""Lists that have as many values as is said, by the last steps of their paths."""


def expected_value(kind: str, message: str, value: Plain) -> str:
    """Return a plain description of the expected value.

    Parameters
    ----------
    kind, message : str
        pydantic's type of error and its text.
    value : Plain
        The value found.
    """
    words = _NEEDED.get(kind)
    if words is None:
        return message[:1].lower() + message[1:]
    if kind == "string_type" and isinstance(value, bool):
        return f"{words}; put yes, no, on, off, true or false in quotes where it is meant as one"
    if kind == "string_type" and isinstance(value, int | float):
        return f"{words}; put a number in quotes where it is meant as one"
    if kind in ("tuple_type", "list_type") and isinstance(value, str | int | float):
        return f"{words}, for example [{_format_value(value)}]"
    if (
        kind == "float_parsing"
        and isinstance(value, str)
        and re.fullmatch(r"\s*\d+(\.\d+)?\s*%\s*", value)
    ):
        return f"{words}: {float(value.strip().rstrip('% ')) / 100:g}"
    return words


def inexact_values(given: Plain, made: Plain, path: tuple[str, ...] = ()) -> Iterator[ConfigError]:
    """Yield values coerced to another type than written: ``rounds: true``, ``rounds: '1'``, ``1.0``.

    An exponent without a point (``1e-3``), which YAML takes for a text, is a number.

    Parameters
    ----------
    given, made : Plain
        The content as written, and as the checked configuration has it.
    path : tuple of str
        Path of both.
    """
    if isinstance(given, Mapping) and isinstance(made, Mapping):
        for key in given:
            if key in made:
                yield from inexact_values(given[key], made[key], (*path, str(key)))
    elif (
        isinstance(given, list | tuple)
        and isinstance(made, list | tuple)
        and len(given) == len(made)
    ):
        for position, (one, other) in enumerate(zip(given, made, strict=True)):
            yield from inexact_values(one, other, (*path, str(position)))
    elif isinstance(made, bool) and not isinstance(given, bool):
        yield ConfigError(
            ".".join(path), _format_value(given), "true or false is needed, without quotes"
        )
    elif (
        isinstance(made, int | float)
        and isinstance(given, str)
        and not re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+", given)
    ):
        yield ConfigError(
            ".".join(path), _format_value(given), "a number is needed; leave the quotes out"
        )
    elif isinstance(made, int | float) and not isinstance(made, bool) and isinstance(given, bool):
        yield ConfigError(".".join(path), str(given).lower(), "a number is needed")
    elif isinstance(made, int) and isinstance(given, float):
        yield ConfigError(".".join(path), _format_value(given), f"an integer is needed: {made}")


def _format_value(value: Plain) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fields(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        inner = _models(field.annotation)
        branch = next((c for c in inner if c.__name__.lower() == str(loc[-1]).lower()), None)
        model = branch or (inner[0] if inner else model)
    return list(model.model_fields)


def _models(annotation: Plain) -> list[type[BaseModel]]:
    if parts := typing.get_args(annotation):
        return [model for part in parts for model in _models(part)]
    return [annotation] if inspect.isclass(annotation) and issubclass(annotation, BaseModel) else []


def _nearest_path(key: str, loc: Sequence[int | str], allowed: Iterable[str]) -> str:
    """Return the setting that an unknown key of the experiment is the name or the beginning of, or the nearest."""
    if tuple(loc) == ("experiment",):
        deeper = {
            f"{name}.{inner}": inner
            for name, field in Experiment.model_fields.items()
            for model in _models(field.annotation)
            if not issubclass(model, Component)
            for inner in model.model_fields
        }
        deeper |= {f"sweep.{name}": name for name in Sweep.model_fields}
        for fits in (str.__eq__, str.startswith):
            if found := next((path for path, inner in deeper.items() if fits(inner, key)), None):
                return f"; did you mean {found!r}?"
    return nearest(key, allowed)
