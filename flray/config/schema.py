"""The YAML file as others read it: its JSON schema, for editors, and the list of its settings, for people."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic.json_schema import GenerateJsonSchema

from flray.config.arms import SPACE
from flray.config.components import Component
from flray.config.experiment import Config
from flray.config.yaml_files import PARTS

Node = dict[str, Any]
_BASES: Node = {
    "description": "files that this one is laid over, relative to it; later ones win",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}],
}
_REFS = "#/$defs/"
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


class _Untitled(GenerateJsonSchema):
    """Without the titles that pydantic makes of the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema() -> Node:
    """Return the JSON schema of the YAML file, with the options of every registered component.

    It accepts files over a base, settings without ``experiment:`` above them, and null under
    ``arms``. Only a file without a base has to name data, model and algorithm.
    """
    document = Config.model_json_schema(schema_generator=_Untitled)
    defs, parts = document["$defs"], document["properties"]
    for choice in Component.__subclasses__():
        defs[choice.__name__] = {"anyOf": list(_forms(choice, defs))}
    needed = defs["Experiment"].pop("required")
    del defs["PaperTable"]["required"]  # a base may have it
    paths = dict(_paths(defs, "Experiment", ""))
    pattern = "|".join(re.escape(path).replace(r"\*", ".+") for path in paths)
    named = {"pattern": f"^(experiment\\.)?({pattern})$"}
    single = {path: {"$ref": place} for path, place in paths.items() if place}
    defs["Domain"] = parts["space"].pop("additionalProperties")
    parts["space"] |= {
        "propertyNames": named,
        "additionalProperties": {"$ref": f"{_REFS}Domain"},
        "properties": {path: {"$ref": f"{_REFS}Domain"} for path in single},
    }
    defs["Space"] = parts["space"]
    defs["Arm"] = {
        "type": ["object", "null"],
        "propertyNames": {"anyOf": [{"const": SPACE}, named]},
        "properties": {
            SPACE: {"$ref": f"{_REFS}Space"},
            **{path: {"anyOf": [field, {"type": "null"}]} for path, field in single.items()},
        },
    }
    parts["arms"]["additionalProperties"] = False
    for axis in parts["arms"]["patternProperties"].values():
        axis["type"] = ["object", "null"]
        axis["patternProperties"] = {
            name: {"$ref": f"{_REFS}Arm"} for name in axis["patternProperties"]
        }
    defs["Where"]["properties"]["settings"] = {"$ref": f"{_REFS}Arm"}
    parts["space"] = {"$ref": f"{_REFS}Space"}
    components = [n for n, field in defs["Experiment"]["properties"].items() if _component(field)]
    whole = {"if": {"type": "object"}, "then": {"required": ["name"]}}
    defs["Whole"] = {
        "allOf": [
            {"$ref": f"{_REFS}Experiment"},
            {"required": needed, "properties": dict.fromkeys(components, whole)},
        ]
    }
    defs["File"] = {
        "type": "object",
        "properties": {"base": _BASES, **parts},
        "additionalProperties": False,
    }
    alone = {
        "if": {"not": {"required": ["base"]}},
        "then": {
            "required": ["experiment"],
            "properties": {"experiment": {"$ref": f"{_REFS}Whole"}},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:flray:schema",
        "title": "an experiment or sweep of flray",
        "type": "object",
        "if": {"anyOf": [{"required": [part]} for part in ("base", *PARTS)]},
        "then": {"allOf": [{"$ref": f"{_REFS}File"}, alone]},
        "else": {"$ref": f"{_REFS}Whole"},
        "$defs": defs,
    }


def _forms(choice: type[Component], defs: Node) -> Iterator[Node]:
    """Yield the forms of a component: a name alone, a name with its options, over a base also options alone."""
    yield {"enum": choice.registry.names()}
    every: dict[str, dict[str, Node]] = {}
    for number, name in enumerate(choice.registry.names(), 1):
        params = choice.params(name)
        form = params.model_json_schema(schema_generator=_Untitled)
        defs.update(form.pop("$defs", {}))
        options = form.get("properties", {})
        if presets := [preset.name for preset in getattr(params, "presets", ())]:
            options = {"preset": {"enum": presets}, **options}
        for option, field in options.items():
            field.pop("variants", None)  # for the method alone
            place = {"$ref": f"{_REFS}{choice.__name__}/anyOf/{number}/properties/{option}"}
            every.setdefault(option, {}).setdefault(json.dumps(field, sort_keys=True), place)
        form["properties"] = {"name": {"const": name}, **options}
        form["required"] = ["name", *form.get("required", [])]
        yield form
    fields = {option: {"anyOf": [*places.values()]} for option, places in every.items()}
    yield {"type": "object", "properties": fields, "additionalProperties": False}


def _component(field: Mapping[str, Any]) -> Node:
    """Return the reference to a component that a field is, or may be; empty if it may be none."""
    forms = [field, *field.get("anyOf", ())]
    names = {f"{_REFS}{choice.__name__}" for choice in Component.__subclasses__()}
    return next((one for one in forms if one.get("$ref") in names), {})


def _paths(defs: Node, section: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the path of every setting, options of components too, and its place in the schema; ``*`` is any name."""
    for name, field in defs[section]["properties"].items():
        path = f"{prefix}{name}"
        yield path, f"{_REFS}{section}/properties/{name}"
        for form in (field, *field.get("anyOf", ()), *field.get("oneOf", ())):
            below = form.get("$ref", "").removeprefix(_REFS)
            if "properties" in defs.get(below, {}):
                yield from _paths(defs, below, f"{path}.")
            elif below:
                forms = defs[below]["anyOf"]
                place = f"{_REFS}{below}/anyOf/{len(forms) - 1}/properties/"
                yield from ((f"{path}.{one}", f"{place}{one}") for one in forms[-1]["properties"])
                yield f"{path}.name", f"{_REFS}{below}/anyOf/0"
            elif "additionalProperties" in form:
                yield f"{path}.*", ""


class Setting(NamedTuple):
    """A setting of the YAML file.

    Attributes
    ----------
    path : str
        Its path as on the command line, without ``experiment.``.
    default : str
        Its default, or that it is required.
    allowed, meaning : str
        Its possible values, and its purpose.
    """

    path: str
    default: str
    allowed: str
    meaning: str


def settings() -> Iterator[tuple[str, str, list[Setting]]]:
    """Yield the sections of the YAML file: the path, what it is for, and its settings."""
    document = Config.model_json_schema()
    yield from _sections(document["$defs"], document, "")


def _sections(defs: Node, section: Node, path: str) -> Iterator[tuple[str, str, list[Setting]]]:
    rows, inner = [], []
    prefix = "" if path in ("", "experiment") else f"{path}."
    for name, field in section["properties"].items():
        forms = (field, *field.get("anyOf", ()))
        found = [defs.get(one.get("$ref", "").removeprefix(_REFS), {}) for one in forms]
        below = next((form for form in found if "properties" in form), None)
        if below is not None and not _component(field):
            inner.append((below, f"{prefix}{name}"))
            if field.get("default", below) is not None:  # always there: its own settings say it all
                continue
        default = json.dumps(field["default"]) if "default" in field else ""
        if name in section.get("required", ()):
            default = "required"
        about = field.get("description", "")
        rows.append(Setting(f"{prefix}{name}", default, allowed_values(field), about))
    yield path, section.get("description", ""), rows
    for below, place in inner:
        yield from _sections(defs, below, place)


def allowed_values(field: Mapping[str, Any]) -> str:
    """Return in words what a field of a JSON schema may be."""
    words = []
    for form in field.get("anyOf") or field.get("oneOf") or [field]:
        if "anyOf" in form or "oneOf" in form:
            words.append(allowed_values(form))
        elif "const" in form:
            words.append(str(form["const"]))
        elif "enum" in form:
            words.append(" | ".join(map(str, form["enum"])))
        elif component := _component(form):
            kinds = {one.__name__: one.registry.plural for one in Component.__subclasses__()}
            words.append(f"flray list {kinds[component['$ref'].removeprefix(_REFS)]}")
        elif "$ref" in form:
            words.append("a mapping of its own settings")
        elif form.get("type") == "array" and "items" in form:
            words.append(f"list of {allowed_values(form['items'])}")
        elif "prefixItems" in form:
            words.append(f"[{', '.join(map(allowed_values, form['prefixItems']))}]")
        else:
            limits = [f"{sign} {form[key]:g}" for key, sign in _LIMITS.items() if key in form]
            words.append(" ".join([str(form.get("type", "any")), *limits]))
    return " or ".join(words)
