"""Read, override and check a YAML file; word what is wrong with it so that the user can mend it."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from flray import arms, registry
from flray.config import Component, Config, Experiment
from flray.errors import ConfigError, FlrayError, nearest
from flray.reading import PARTS, read_with_base, read_yaml
from flray.sweeping import FORMS

BRANCHES = {*FORMS, "named", "dealt", "asha", "median", "pbt", "constrained-int", "int", "float", "constrained-float"}


class ConfigErrors(FlrayError):
    """Several mistakes in one file: one line each."""

    several_lines = True

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors = list(errors)
        super().__init__("\n".join(str(error) for error in errors))


def parse_override(text: str) -> tuple[str, Any]:
    """Return path and value of ``local.lr=0.05``; the value is read as YAML.

    Raises
    ------
    ConfigError
        If there is no ``=``.
    """
    path, separator, value = text.partition("=")
    if not separator or not path.strip():
        raise ConfigError("override", repr(text), "write key=value, for example local.lr=0.05")
    try:
        return path.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(path.strip(), repr(value), "the value must be valid YAML") from None


def absolute(path: str) -> str:
    """Return a dotted path from the file's root; paths are relative to ``experiment`` unless they name a part."""
    return path if path.split(".")[0] in PARTS else f"experiment.{path}"


def put(content: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted path in a nested mapping, in place; a component given by name only is opened up.

    A mapping replaces what was there, except that naming another component of the same kind drops the old
    one's options, and so does naming a preset.
    """
    *parents, last = absolute(path).split(".")
    if parents[:1] == ["space"]:  # the keys of a space are paths themselves
        parents, last = ["space"], absolute(path).removeprefix("space.")
    elif parents[:1] == ["arms"]:  # and so are those of an arm
        parents, last = arms.place(content, parents, last)
    node = content
    for parent in parents:
        child = node.get(parent)
        if child is None:
            child = {}
        elif isinstance(child, str):
            child = {"name": child}
        elif not isinstance(child, dict):
            raise ConfigError(path, f"{parent} is {child!r}", "the path leads into a value that has no parts")
        node[parent] = child
        node = child
    if last == "name" and len(parents) > 1 and node.get("name") != value:
        node.clear()
    if last == "preset" and "name" in node:
        for option in node.keys() - {"name"}:
            del node[option]
    node[last] = value


def load(source: str | Path | Mapping[str, Any], overrides: Iterable[str | tuple[str, Any]] = ()) -> Config:
    """Return the checked configuration.

    Parameters
    ----------
    source : path or mapping
        A YAML file, or its content.
    overrides : iterable of str or (path, value)
        Later ones win.

    Raises
    ------
    FlrayError
        With one line per mistake: the path, what was found, what is allowed.
    """
    content = _copy(source) if isinstance(source, Mapping) else read_with_base(Path(source))
    if "experiment" not in content and not set(content) & set(PARTS):
        content = {"experiment": content}
    for override in overrides:
        path, value = parse_override(override) if isinstance(override, str) else override
        if absolute(path).startswith("experiment."):
            arms.give_way(content.get("arms"), absolute(path).removeprefix("experiment."))
        put(content, path, value)
    experiment = content.get("experiment")
    if isinstance(experiment, Mapping):
        # Whole paths: the resolved configuration must be found again from any other folder.
        found = load_plugins(experiment.get("plugins") or (), base=_folder(source))
        if found:
            content["experiment"] = {**experiment, "plugins": [str(path) for path in found]}
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        raise ConfigErrors(list(_explain(error, Config))) from None
    check_space(config)
    return config


def load_plugins(paths: Iterable[str], base: Path | None = None) -> list[Path]:
    """Run the user's own Python files, which register components, and return where they lie.

    Parameters
    ----------
    paths : iterable of str
        Files; relative ones are looked up beside the YAML file, then in the current folder.
    base : Path, optional
        Folder of the YAML file.
    """
    found: list[Path] = []
    for text in paths:
        candidates = [folder / text for folder in (base, Path.cwd()) if folder is not None]
        path = next((c for c in candidates if c.is_file()), None)
        if path is None:
            raise ConfigError("experiment.plugins", repr(text), "no such file; looked in " +
                              " and ".join(str(c.parent) for c in candidates))
        name = f"flray_plugin_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ConfigError("experiment.plugins", repr(text), "a Python file is needed")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
            where = f" (line {lines[-1]})" if lines else ""
            raise ConfigError("experiment.plugins", repr(text),
                              f"running it raised {type(error).__name__}: {error}{where}") from error
        found.append(path.resolve())
    return found


def variant(config: Config, values: Mapping[str, Any]) -> Experiment:
    """Return the experiment with the values of one point of the space filled in.

    Raises
    ------
    FlrayError
        If the values do not fit.
    """
    content = config.model_dump(mode="json", include={"experiment"})
    for path, value in arms.expanded(config, values):
        put(content, path, value)
    try:
        return Config.model_validate(content).experiment
    except ValidationError as error:
        raise ConfigErrors(list(_explain(error, Config))) from None


def check_space(config: Config) -> None:
    """Refuse a space whose paths lead nowhere, or whose values do not fit.

    Raises
    ------
    ConfigErrors
        One line per path or value.
    """
    errors: list[ConfigError] = list(arms.problems(config))
    for path, domain in config.space.items():
        values = next(iter(domain.model_dump().values()))
        for value in values:
            try:
                variant(config, {path: value})
            except ConfigErrors as error:
                conditional = path.startswith("algorithm.") and ("algorithm" in config.space or config.arms)
                if not conditional:
                    errors.append(ConfigError(f"space.{path}", repr(value), str(error.errors[0])))
                    break
            except FlrayError as error:
                errors.append(ConfigError(f"space.{path}", repr(value), str(error)))
                break
    if errors:
        raise ConfigErrors(errors)


def schema() -> dict[str, Any]:
    """Return the JSON schema of the YAML file, with the options of every registered component."""
    document = Config.model_json_schema()
    for choice in Component.__subclasses__():
        forms: list[dict[str, Any]] = [{"enum": choice.registry.names()}]
        for name in choice.registry.names():
            params = choice.params(name)
            options = params.model_json_schema()
            document["$defs"].update(options.pop("$defs", {}))
            presets = [preset.name for preset in getattr(params, "presets", ())]
            options["properties"] = {"name": {"const": name}, **({"preset": {"enum": presets}} if presets else {}),
                                     **options.get("properties", {})}
            options["required"] = ["name", *options.get("required", [])]
            forms.append(options)
        document["$defs"][choice.__name__] = {"anyOf": forms}
    return document


def _folder(source: str | Path | Mapping[str, Any]) -> Path | None:
    return None if isinstance(source, Mapping) else Path(source).resolve().parent


def _copy(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _copy(value) for key, value in content.items()}
    return list(content) if isinstance(content, (list, tuple)) else content


def _explain(error: ValidationError, root: type[BaseModel]) -> Iterable[ConfigError]:
    seen: set[str] = set()
    for item in error.errors():
        context = item.get("ctx", {})
        loc = (*item["loc"], *context.get("sub", ()))
        path = ".".join(str(part) for part in loc if not _is_branch(part))
        if path in seen:
            continue
        seen.add(path)
        found = repr(context.get("found", item["input"]))
        if item["type"] == "component" and context.get("sub") == ("name",) and isinstance(item["input"], Mapping):
            found = repr(item["input"].get("name"))
        elif len(found) > 80:
            found = found[:77] + "..."
        if item["type"] == "extra_forbidden":
            allowed = _fields(root, item["loc"][:-1])
            yield ConfigError(path, "an unknown key", f"allowed here: {', '.join(allowed)}" +
                              nearest(str(item["loc"][-1]), allowed))
        elif item["type"] == "missing":
            yield ConfigError(path, "nothing", "this setting is required")
        else:
            yield ConfigError(path, found, item["msg"][:1].lower() + item["msg"][1:])


def _is_branch(part: int | str) -> bool:
    """Tell the names pydantic gives to a union's branches from keys of the file."""
    return isinstance(part, str) and ("[" in part or part in BRANCHES)


def _fields(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        candidates = [field.annotation, *typing.get_args(field.annotation)]
        inner = [c for c in candidates if inspect.isclass(c) and typing.get_origin(c) is None
                 and issubclass(c, BaseModel)]
        branch = next((c for c in inner if c.__name__.lower() == str(loc[-1]).lower()), None)
        model = branch or (inner[0] if inner else model)
    return list(model.model_fields)


__all__ = ["ConfigErrors", "absolute", "check_space", "load", "load_plugins", "parse_override", "put", "read_with_base",
           "read_yaml", "registry", "schema", "variant"]
