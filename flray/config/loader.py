"""Read, override and check a YAML file; a mistake is a line with its path, the value found and the values allowed."""

import copy
import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path, PurePath

from pydantic import BaseModel, ValidationError

from flray.config import arms
from flray.config.experiment import Config, Experiment
from flray.config.mistakes import explain, inexact_values
from flray.config.start import load_plugins
from flray.config.sweep import Domain, Grid, tried
from flray.config.yaml_files import DEPTH, PARTS, Plain, locate, parse, read_with_base, shorten
from flray.errors import ConfigError, ConfigErrors, FlrayError, explained

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
        # Unwritten defaults stay unwritten: others follow from what the user has chosen.
        source = source.model_dump(mode="json", exclude_unset=True)
    if isinstance(source, Mapping):
        content = copy_plain(source)
    elif isinstance(source, str | PathLike):
        source = locate(source)
        content = copy_plain(read_with_base(source))
    else:
        raise FlrayError(
            f"found {type(source).__name__} for a configuration; give a YAML file or a mapping"
        )
    if "experiment" not in content and not set(content) & {*PARTS, "base"}:
        content = {"experiment": content}
    for override in changes:
        path, value = parse_override(override) if isinstance(override, str) else override
        if path == "base":
            content["base"] = value
            break
        if absolute_path(path).startswith("experiment."):
            arms.override_arms(content, absolute_path(path).removeprefix("experiment."))
        set_path(content, path, copy_plain(value, path))
    if "base" in content:
        why = "only a YAML file names the files that it is laid over; write it into one"
        raise ConfigError("base", shorten(str(content["base"])), why)
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
        varied = "algorithm" in config.space or bool(config.arms)
        conditional = path.startswith("algorithm.") and varied
        errors += itertools.islice(wrong_values(config, {}, path, domain, "space", conditional), 1)
    if errors:
        raise ConfigErrors(errors)


def wrong_values(
    config: Config,
    setting: Mapping[str, Plain],
    path: str,
    domain: Domain,
    where: str,
    conditional: bool = False,
) -> Iterator[ConfigError]:
    """Yield a mistake for each value of a domain that a setting cannot be run with.

    Parameters
    ----------
    config : Config
        The sweep.
    setting : mapping
        The values of other paths.
    path, domain : str, Domain
        The domain and its path.
    where : str
        The path of its space in the file.
    conditional : bool
        Whether other settings decide if the path is there at all.
    """
    for value in tried(domain):
        try:
            experiment_at(config, {**setting, path: value})
        except FlrayError as error:
            if not (isinstance(error, ConfigErrors) and conditional):
                first = error.errors[0] if isinstance(error, ConfigErrors) else error
                yield ConfigError(f"{where}.{path}", repr(value), str(first))


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
