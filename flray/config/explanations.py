"""Explain configuration errors: one line per mistake, with path, value found and values allowed."""

import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel, ValidationError

from flray.config.components import Component
from flray.config.experiment import Config, Experiment
from flray.config.plain import Plain
from flray.config.sweep import FORMS, Sweep
from flray.errors import ConfigError, nearest

BRANCHES = {
    *FORMS,
    "named",
    "dealt",
    "constrained-int",
    "int",
    "float",
    "constrained-float",
    "bool",
}
_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")
_NEEDED = {
    "int_type": "an integer is needed",
    "int_parsing": "an integer is needed",
    "int_from_float": "an integer is needed",
    "int_parsing_size": "an integer of at most 64 bits is needed",
    "float_type": "a number is needed",
    "float_parsing": "a number is needed",
    "finite_number": "it must be finite",
    "bool_type": "true or false is needed",
    "bool_parsing": "true or false is needed",
    "string_type": "a text is needed; put a number in quotes where it is meant as one",
    "tuple_type": "a list is needed",
    "list_type": "a list is needed",
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
    path = ".".join(str(part) for part in loc if not _is_branch(part))
    value = context.get("found", item["input"])
    if item["type"] == "extra_forbidden":
        allowed = _fields(root, item["loc"][:-1])
        meant = _nearest_path(str(item["loc"][-1]), item["loc"][:-1], allowed)
        return path, "an unknown key", f"allowed here: {', '.join(allowed)}{meant}"
    if item["type"] == "missing" and isinstance(loc[-1], int):
        return path.rpartition(".")[0], _format_value(item["input"]), "more values are needed"
    if item["type"] == "missing":
        return path, "nothing", "this setting is required"
    if (
        item["type"] == "component"
        and context.get("sub") == ("name",)
        and isinstance(item["input"], Mapping)
    ):
        value = item["input"].get("name")
    if item["type"] == "tuple_type" and loc[-1] == "seeds" and type(value) is int:
        numbers = ", ".join(map(str, range(value))) if value <= 5 else f"0, 1, ..., {value - 1}"
        return path, str(value), f"a list of seeds is needed, for {value} of them [{numbers}]"
    if item["type"] == "string_pattern_mismatch" and loc[-1] == "name":
        words = "letters A to Z, digits, '.', '_' and '-' are allowed, and the first is a letter or a digit"
        return path, _format_value(value), words
    return path, _format_value(value), expected_value(item["type"], item["msg"], value)


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
        and not (isinstance(made, float) and _EXPONENT.fullmatch(given))
    ):
        yield ConfigError(
            ".".join(path), _format_value(given), "a number is needed; leave the quotes out"
        )
    elif isinstance(made, int | float) and not isinstance(made, bool) and isinstance(given, bool):
        yield ConfigError(".".join(path), str(given).lower(), "a number is needed")
    elif isinstance(made, int) and isinstance(given, float):
        yield ConfigError(".".join(path), _format_value(given), f"an integer is needed: {made}")


def misplaced_settings(content: Mapping[str, Plain]) -> ConfigError | None:
    """Return the error for settings beside ``experiment:`` instead of under it, or None."""
    stray = [
        key for key in content if key in Experiment.model_fields and key not in Config.model_fields
    ]
    if not stray:
        return None
    first, verb = stray[0], "them" if len(stray) > 1 else "it"
    return ConfigError(
        ", ".join(stray),
        "beside `experiment:`",
        f"indent {verb} to stand under it: experiment.{first}",
    )


def _format_value(value: Plain) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_branch(part: int | str) -> bool:
    """Return whether a name is pydantic's for a union's branch, not a key of the file."""
    return isinstance(part, str) and ("[" in part or part in BRANCHES)


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
    candidates = [annotation, *typing.get_args(annotation)]
    return [
        c
        for c in candidates
        if inspect.isclass(c) and typing.get_origin(c) is None and issubclass(c, BaseModel)
    ]


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
