"""Read, override and check a YAML file; `flray.config.explanations` explains its errors."""

import copy
import math
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

from pydantic import ValidationError

from flray.config import arms, spaces
from flray.config.components import Component
from flray.config.experiment import Config, Experiment
from flray.config.explanations import explain, inexact_values, misplaced_settings
from flray.config.plain import Plain
from flray.config.plugins import load_plugins
from flray.config.shapes import copy_plain
from flray.config.sweep import Grid
from flray.config.yaml_files import PARTS, parse, read_with_base, shorten
from flray.errors import ConfigError, ConfigErrors, FlrayError, brief

TRIALS = 100_000
"""Most trials of a sweep."""


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
) -> Config:
    """Return the checked configuration.

    Parameters
    ----------
    source : path or mapping
        A YAML file, the name of one that comes with flray (`flray.config.spaces`), its content, or a
        configuration that is checked already.
    overrides : iterable of str or (path, value)
        Later ones win.

    Raises
    ------
    FlrayError
        With one line per mistake: the path, what was found, what is allowed.
    """
    if isinstance(source, Config):
        overrides = list(overrides)
        if not overrides:
            return source
        source = source.model_dump(mode="json")
    if isinstance(source, Mapping):
        content = copy_plain(source)
    elif isinstance(source, str | PathLike):
        source = spaces.locate(source)
        content = copy_plain(read_with_base(source))
    else:
        raise FlrayError(
            f"found {type(source).__name__} for a configuration; give a YAML file or a mapping"
        )
    if "experiment" not in content and not set(content) & set(PARTS):
        content = {"experiment": content}
    for override in [overrides] if isinstance(overrides, str) else overrides:
        path, value = parse_override(override) if isinstance(override, str) else override
        if absolute_path(path).startswith("experiment."):
            arms.override_arms(content, absolute_path(path).removeprefix("experiment."))
        set_path(content, path, copy_plain(value, path))
    if misplaced := misplaced_settings(content):
        raise misplaced
    experiment = content.get("experiment")
    plugins = experiment.get("plugins") if isinstance(experiment, dict) else None
    if isinstance(plugins, list) and all(isinstance(text, str) and text for text in plugins):
        # Absolute paths: the resolved configuration must work from any other folder.
        found = load_plugins(plugins, base=_base_folder(source))
        content["experiment"] = {**content["experiment"], "plugins": [str(path) for path in found]}
    config = _validate(content)
    _check_size(config)
    check_space(config)
    return config


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
        values = next(iter(domain.model_dump().values()))
        for value in values:
            try:
                experiment_at(config, {path: value})
            except ConfigErrors as error:
                conditional = path.startswith("algorithm.") and (
                    "algorithm" in config.space or config.arms
                )
                if not conditional:
                    errors.append(ConfigError(f"space.{path}", repr(value), str(error.errors[0])))
                    break
            except FlrayError as error:
                errors.append(ConfigError(f"space.{path}", repr(value), str(error)))
                break
    if errors:
        raise ConfigErrors(errors)


def schema() -> dict[str, Plain]:
    """Return the JSON schema of the YAML file, with the options of every registered component."""
    document = Config.model_json_schema()
    for choice in Component.__subclasses__():
        forms: list[dict[str, Plain]] = [{"enum": choice.registry.names()}]
        for name in choice.registry.names():
            params = choice.params(name)
            options = params.model_json_schema()
            document["$defs"].update(options.pop("$defs", {}))
            presets = [preset.name for preset in getattr(params, "presets", ())]
            options["properties"] = {
                "name": {"const": name},
                **({"preset": {"enum": presets}} if presets else {}),
                **options.get("properties", {}),
            }
            options["required"] = ["name", *options.get("required", [])]
            forms.append(options)
        document["$defs"][choice.__name__] = {"anyOf": forms}
    return document


def _base_folder(source: str | Path | Mapping[str, Plain]) -> Path | None:
    return None if isinstance(source, Mapping) else Path(source).resolve().parent


def _validate(content: Mapping[str, Plain]) -> Config:
    """Validate a file's content, whose numbers are parsed already."""
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        raise ConfigErrors(list(explain(error, Config))) from None
    try:
        made = config.model_dump(mode="json")
    except Exception as error:  # an option of a user's own component may be of any type
        raise FlrayError(
            f"an option of your own component cannot be written to a file: {brief(error)}; let it "
            f"be a "
            "number, a text, a list or a mapping"
        ) from error
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
        raise ConfigError(
            "sweep",
            f"{count:,} trials (samples x grids x arms x seeds)",
            f"at most {TRIALS:,} are tried in one sweep; lower sweep.samples, or split it",
        )
