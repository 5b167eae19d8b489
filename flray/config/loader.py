"""Read, override and check a YAML file; a mistake is a line with its path, the value found and the values allowed."""

import copy
import inspect
import math
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path, PurePath

from pydantic import BaseModel, ValidationError

from flray.config import arms
from flray.config.components import Component
from flray.config.experiment import Config, Experiment
from flray.config.start import load_plugins
from flray.config.sweep import FORMS, Grid, Sweep, tried
from flray.config.yaml_files import DEPTH, PARTS, Plain, locate, parse, read_with_base, shorten
from flray.errors import ConfigError, ConfigErrors, FlrayError, explained, nearest

TRIALS = 100_000
"""Most trials of a sweep."""
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def parse_override(text: str) -> tuple[str, Plain]:
    """Return path and value of ``local.lr=0.05``; the value is read as YAML.

    Raises
    ------
    ConfigError
        If the text has no ``=``.
    """
    path, separator, value = text.partition("=")
    if not separator or not path.strip():
        raise ConfigError("override", repr(text), "write key=value, for example local.lr=0.05")
    try:
        return path.strip(), parse(value)
    except ValueError as error:
        raise ConfigError(
            path.strip(), shorten(value), f"the value must be valid YAML: {error}"
        ) from None


def absolute_path(path: str) -> str:
    """Return a dotted path from the file's root; paths are relative to ``experiment`` unless they name a part."""
    return path if path.split(".")[0] in PARTS else f"experiment.{path}"


def set_path(content: dict[str, Plain], path: str, value: Plain) -> None:
    """Set a dotted path in a nested mapping, in place; a component given by name only becomes a mapping.

    A mapping replaces what was there, except that naming another component of the same kind drops
    the old one's options, and so does naming a preset.
    """
    *parents, last = absolute_path(path).split(".")
    if parents[:1] == ["space"]:  # the keys of a space are paths themselves
        parents, last = ["space"], absolute_path(path).removeprefix("space.")
    elif parents[:1] == ["arms"]:  # and so are those of an arm
        parents, last = arms.resolve_arm_path(content, parents, last)
    node = content
    for parent in parents:
        child = node.get(parent)
        if child is None:
            child = {}
        elif isinstance(child, str):
            child = {"name": child}
        elif not isinstance(child, dict):
            raise ConfigError(
                path, f"{parent} is {child!r}", "the path leads into a value that has no parts"
            )
        node[parent] = child
        node = child
    if last == "name" and len(parents) > 1 and node.get("name") != value:
        node.clear()
    if last == "preset" and "name" in node:
        for option in node.keys() - {"name"}:
            del node[option]
    node[last] = value


def load(
    source: str | Path | Mapping[str, Plain] | Config,
    overrides: Iterable[str | tuple[str, Plain]] = (),
    **replaced: Plain,
) -> Config:
    """Return the checked configuration.

    Parameters
    ----------
    source : path or mapping
        A YAML file, the name of one that comes with flray (`flray.config.yaml_files`), its content, or a
        configuration that is checked already.
    overrides : iterable of str or (path, value)
        Later ones win; one may stand alone.
    **replaced
        Parts of the experiment to replace at last, for example ``rounds=5``.

    Raises
    ------
    FlrayError
        With one line per mistake: the path, what was found, what is allowed.
    """
    changes = [*([overrides] if isinstance(overrides, str) else overrides), *replaced.items()]
    if isinstance(source, Config):
        if not changes:
            return source
        source = source.model_dump(mode="json")
    if isinstance(source, Mapping):
        content = copy_plain(source)
    elif isinstance(source, str | PathLike):
        source = locate(source)
        content = copy_plain(read_with_base(source))
    else:
        raise FlrayError(
            f"found {type(source).__name__} for a configuration; give a YAML file or a mapping"
        )
    if "experiment" not in content and not set(content) & set(PARTS):
        content = {"experiment": content}
    for override in changes:
        path, value = parse_override(override) if isinstance(override, str) else override
        if absolute_path(path).startswith("experiment."):
            arms.override_arms(content, absolute_path(path).removeprefix("experiment."))
        set_path(content, path, copy_plain(value, path))
    stray = [
        key for key in content if key in Experiment.model_fields and key not in Config.model_fields
    ]
    if stray:
        raise ConfigError(
            ", ".join(stray),
            "beside `experiment:`",
            f"indent {'them' if len(stray) > 1 else 'it'} to stand under it: experiment.{stray[0]}",
        )
    experiment = content.get("experiment")
    plugins = experiment.get("plugins") if isinstance(experiment, dict) else None
    if isinstance(plugins, list) and all(isinstance(text, str) and text for text in plugins):
        # Absolute paths: the resolved configuration must work from any other folder.
        base = None if isinstance(source, Mapping) else Path(source).resolve().parent
        found = load_plugins(plugins, base)
        content["experiment"] = {**content["experiment"], "plugins": [str(path) for path in found]}
    config = _validate(content)
    _check_size(config)
    check_space(config)
    return config


def copy_plain(value: Plain, path: str = "", depth: int = 0) -> Plain:
    """Return a copy of a configuration's content, made of mappings, lists, texts, numbers, truth values and null.

    Parameters
    ----------
    value : Plain
        Content of a file, or values from Python code: tuples, ranges, paths, NumPy's numbers and
        pydantic's models too.
    path : str
        Its path, which the message names.
    depth : int
        Of the value within the content.

    Raises
    ------
    ConfigError
        If it holds anything else, an integer beyond 64 bits, a character that no setting may hold,
        or more than `DEPTH` parts within each other.
    """
    if depth > DEPTH:
        found = f"more than {DEPTH} parts within each other"
        raise ConfigError(path[:80], found, "write fewer")
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    elif isinstance(value, PurePath):
        value = str(value)
    elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        value = value.item()  # who has such a number has imported numpy
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ConfigError(
                path, "an integer of more than 64 bits", "between -2**63 and 2**63 - 1"
            )
        return value
    if isinstance(value, str):
        if bad := _FORBIDDEN.search(value):
            raise ConfigError(path, shorten(value), f"no setting may hold the character {bad[0]!r}")
        return value
    if isinstance(value, Mapping):
        content = {}
        for key, one in value.items():
            if not isinstance(key, str) or _FORBIDDEN.search(key):
                raise ConfigError(
                    path or "configuration",
                    f"the key {shorten(str(key))} ({type(key).__name__})",
                    "keys are text: put it in quotes" if not isinstance(key, str) else "rename it",
                )
            content[key] = copy_plain(one, f"{path}.{key}" if path else key, depth + 1)
        return content
    if isinstance(value, list | tuple | range):
        return [copy_plain(one, f"{path}.{n}", depth + 1) for n, one in enumerate(value)]
    why = "numbers, texts, true, false, null, lists and mappings only"
    raise ConfigError(path, f"a value of type {type(value).__name__}", why)


def check_single(config: Config, source: object) -> None:
    """Reject a configuration that describes several runs, because only one of them would be run.

    Parameters
    ----------
    config : Config
        The checked configuration.
    source : object
        The file or object that the configuration was read from; the message names it.

    Raises
    ------
    FlrayError
        If it has arms, a space, or other seeds than the experiment's.
    """
    own, seeds = config.experiment.seed, config.sweep.seeds
    found = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}" if seeds else ""
    several = {
        **({"arms": "arms={}"} if config.arms else {}),
        **({"space": "space={}"} if config.space else {}),
        **({f"{found} in sweep.seeds": "sweep.seeds=[]"} if {*seeds} - {own} else {}),
    }
    if several:
        file = source if isinstance(source, str | Path) else "FILE.yaml"
        raise FlrayError(
            f"{file}: found {' and '.join(several)}; that is a sweep: run it with flray tune "
            f"{file}, or one federation of it with {' '.join(several.values())}"
        )


def experiment_at(config: Config, values: Mapping[str, Plain]) -> Experiment:
    """Return the experiment with the values of one point of the space filled in.

    Raises
    ------
    FlrayError
        If the values do not fit.
    """
    content = config.model_dump(mode="json", include={"experiment"})
    for path, value in arms.expand_arms(config, values):
        # A copy: a later path may lead into this value, which belongs to the configuration.
        set_path(content, path, copy.deepcopy(value))
    return _validate(content).experiment


def check_space(config: Config) -> None:
    """Reject a space with unknown paths or invalid values.

    Raises
    ------
    ConfigErrors
        One line per path or value.
    """
    errors: list[ConfigError] = list(arms.validate_arms(config))
    for path, domain in config.space.items():
        conditional = path.startswith("algorithm.") and ("algorithm" in config.space or config.arms)
        for value in tried(domain):
            try:
                experiment_at(config, {path: value})
            except FlrayError as error:
                if isinstance(error, ConfigErrors) and conditional:
                    continue
                first = error.errors[0] if isinstance(error, ConfigErrors) else error
                errors.append(ConfigError(f"space.{path}", repr(value), str(first)))
                break
    if errors:
        raise ConfigErrors(errors)


def _validate(content: Mapping[str, Plain]) -> Config:
    """Validate a file's content, whose numbers are parsed already."""
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        raise ConfigErrors(list(explain(error, Config))) from None
    with explained(  # an option of a user's own component may be of any type
        Exception,
        "an option of your own component cannot be written to a file",
        "let it be a number, a text, a list or a mapping",
        FlrayError,
    ):
        made = config.model_dump(mode="json")
    if errors := list(inexact_values(content, made)):
        raise ConfigErrors(errors)
    return config


def _check_size(config: Config) -> None:
    sweep = config.sweep
    values = (
        len(next(iter(domain.model_dump().values())))
        for domain in config.space.values()
        if sweep.search != "optuna" and isinstance(domain, Grid)
    )
    count = (
        sweep.samples
        * max(1, len(sweep.seeds))
        * math.prod(values)
        * math.prod(map(len, arms.select_arms(config).values()))
    )
    if count > TRIALS:
        why = f"at most {TRIALS:,} are tried in one sweep; lower sweep.samples, or split it"
        raise ConfigError("sweep", f"{count:,} trials (samples x grids x arms x seeds)", why)


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
    "string_type": "a text is needed; put a number in quotes where it is meant as one",
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
        allowed = _fields(root, item["loc"][:-1])
        meant = _nearest_path(str(item["loc"][-1]), item["loc"][:-1], allowed)
        return path, "an unknown key", f"allowed here: {', '.join(allowed)}{meant}"
    if item["type"] == "missing" and isinstance(loc[-1], int):
        return path.rpartition(".")[0], _format_value(item["input"]), "more values are needed"
    if item["type"] == "missing":
        return path, "nothing", "this setting is required"
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
        and not (
            isinstance(made, float) and re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+", given)
        )
    ):
        yield ConfigError(
            ".".join(path), _format_value(given), "a number is needed; leave the quotes out"
        )
    elif isinstance(made, int | float) and not isinstance(made, bool) and isinstance(given, bool):
        yield ConfigError(".".join(path), str(given).lower(), "a number is needed")
    elif isinstance(made, int) and isinstance(given, float):
        yield ConfigError(".".join(path), _format_value(given), f"an integer is needed: {made}")


def _format_value(value: Plain) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
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
