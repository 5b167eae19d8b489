"""Bad values, made by rule: whatever the published JSON schema refuses, in every place that it describes."""

import copy
import json
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from flray import registry
from flray.config.schema import schema
from tests.helpers import small

GOOD: dict[str, Any] = {"experiment": small(model="lenet")}
HUGE, TEXTS = (2**70, -(2**70), 1e300, -1e300), ("nul\0", "two\nlines", "\x1b[31m", "x" * 5000)
ODD = (True, 1.5, -1, "many", "1", [], {}, [[1]], {"x": 1}, None, math.nan, math.inf, ["a"])
WRONG: tuple[Any, ...] = (*ODD, *HUGE, *TEXTS)
Case = tuple[tuple[str, ...], Any]
KINDS = {"data": "datasets", "partition": "partitions", "model": "models"}
KINDS |= {"algorithm": "algorithms", "participation.sampler": "samplers", "callbacks": "callbacks"}
KINDS |= {"evaluation.metrics": "metrics", "local.loss": "losses", "local.optimizer": "optimizers"}
LISTS = ("callbacks", "metrics")


@cache
def document() -> dict[str, Any]:
    return schema()


def refused(form: dict[str, Any], value: Any) -> bool:
    """Tell whether the schema refuses a value, as YAML has it: 1.0 is no integer, infinity no number."""
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return True
    if isinstance(value, float) and not math.isfinite(value):
        numeric = any(kind in json.dumps(form) for kind in ('"number"', '"integer"'))
        return numeric or _refuses(form, value)
    return ("\0" in value if isinstance(value, str) else False) or _refuses(form, value)


def _refuses(form: dict[str, Any], value: Any) -> bool:
    return not Draft202012Validator({**form, "$defs": document()["$defs"]}).is_valid(value)


def places(
    path: tuple[str, ...] = (), form: dict[str, Any] | None = None
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield path and schema of every setting, at any depth, that may stand alone; options of components need a name."""
    found: dict[str, dict[str, Any]] = {}
    forms = list(_alternatives(form or document()["$defs"]["File"]))
    if any("const" in one.get("properties", {}).get("name", {}) for one in forms):
        return
    for one in forms:
        needed = set() if path in ((), ("experiment",)) else set(one.get("required", ()))
        every = one.get("properties", {})
        found |= {key: part for key, part in every.items() if not needed - {key}}
    for key, part in found.items():
        yield (*path, key), part
        # The others' keys are made of these, or need each other.
        if path or key in ("experiment", "sweep"):
            yield from places((*path, key), part)


def _alternatives(form: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in form:
        form = document()["$defs"][form["$ref"].rpartition("/")[2]]
    yield form
    for several in ("anyOf", "oneOf", "allOf"):
        for one in form.get(several, ()):
            yield from _alternatives(one)


def of_settings() -> Iterator[Case]:
    """Yield every bad value of every setting."""
    for path, form in places():
        for value in WRONG:
            # each key that is missing is a mistake of its own
            several = path[-1] in ("experiment", "paper", "scheduler") and isinstance(value, dict)
            if refused(form, value) and not several:
                yield path, value


def of_components() -> Iterator[Case]:
    """Yield every bad value of every option of every built-in component; of each a whole component."""
    for path, kind in KINDS.items():
        setting, entries = ("experiment", *path.split(".")), registry.ALL[kind]
        for name in sorted(set(entries.names()) - set(entries.added())):
            form = entries.params(name).model_json_schema()
            shared = {"$defs": form.get("$defs", {})}
            options = {k: {**part, **shared} for k, part in form.get("properties", {}).items()}
            required = {key: _allowed(options[key]) for key in form.get("required", ())}
            for option, part in options.items():
                for value in WRONG:
                    if not Draft202012Validator(part).is_valid(value):
                        component = {**required, "name": name, option: value}
                        yield setting, [component] if kind in LISTS else component


def _allowed(form: dict[str, Any]) -> Any:
    values = (*form.get("enum", ()), 2, 0.5, "a", [1], True)
    return next(value for value in values if Draft202012Validator(form).is_valid(value))


def with_value(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    content = copy.deepcopy(GOOD)
    node = content
    for part in path[:-1]:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[path[-1]] = value
    return content
