"""Arms: named bundles of settings that a sweep compares, and the labels of settings in tables and figures.

``arms`` has one entry per axis, an axis one entry per arm, an arm the settings it changes::

    arms:
      method:
        fedavg: {algorithm: fedavg}
        fedprox: {algorithm: {name: fedprox, mu: 0.01}}
      data:
        two labels each: {partition: {name: pathological, classes_per_client: 2}}
        "alpha = 0.3": {partition: {name: dirichlet, alpha: 0.3}}

A sweep runs every combination of one arm per axis (less ``sweep.skip``), of the grids of ``space``
and of the seeds. ``sweep.where`` changes settings of single combinations::

    sweep:
      where: [{arms: {method: [fedprox], data: ["alpha = 0.3"]}, settings: {algorithm.mu: 0.1}}]
"""

import itertools
from collections.abc import Collection, Iterator, Mapping

from flray import registry
from flray.config.experiment import Config
from flray.config.yaml_files import Plain
from flray.errors import ConfigError, nearest, one_line

PREFIX = "arms."
"""Prefix of an axis in a setting, where it maps to the arm's name."""
SPACE = "space"
"""Key of an arm's own space, over which ``sweep.tune`` tunes it besides the sweep's."""


def select_arms(config: Config) -> dict[str, list[str]]:
    """Return the arms to run, by axis."""
    return {axis: list(config.sweep.only.get(axis, arms)) for axis, arms in config.arms.items()}


def combine_arms(config: Config) -> Iterator[dict[str, str]]:
    """Yield every combination of arms to run, each axis under its prefix; one empty combination without arms."""
    axes = select_arms(config)
    for names in itertools.product(*axes.values()):
        combination = dict(zip(axes, names, strict=True))
        if not any(_holds(rule, combination) for rule in config.sweep.skip):
            yield {f"{PREFIX}{axis}": name for axis, name in combination.items()}


def expand_arms(config: Config, values: Mapping[str, Plain]) -> Iterator[tuple[str, Plain]]:
    """Yield the settings to change, in order: those of the arms axis by axis, then ``sweep.where``'s, then the others.

    Of these, outer ones come first. A preset comes before its neighbours, which it would replace.

    Raises
    ------
    ConfigError
        If an arm is not known.
    """

    def depth(item: tuple[str, Plain]) -> tuple[int, bool, str]:
        return item[0].count("."), not item[0].endswith(".preset"), item[0]

    for axis, arms in config.arms.items():
        name = values.get(f"{PREFIX}{axis}")
        if name is not None and name not in arms:
            raise ConfigError(
                f"arms.{axis}", repr(name), f"one of {', '.join(arms)}{nearest(str(name), arms)}"
            )
        arm = arms.get(str(name), {})
        yield from sorted((item for item in arm.items() if item[0] != SPACE), key=depth)
    named = {
        path.removeprefix(PREFIX): str(name)
        for path, name in values.items()
        if path.startswith(PREFIX)
    }
    for rule in config.sweep.where:
        if _holds(rule.arms, named):
            yield from sorted(rule.settings.items(), key=depth)
    yield from sorted(
        ((path, value) for path, value in values.items() if not path.startswith(PREFIX)), key=depth
    )


def override_arms(content: Mapping[str, Plain], path: str) -> None:
    """Let a command-line setting override arms, and combinations of them, that change the same one, in place.

    Parameters
    ----------
    content : mapping
        The file, as read.
    path : str
        Dotted path, relative to ``experiment``.

    Raises
    ------
    ConfigError
        If an arm sets a parent of the path: the setting would be lost silently.
    """
    arms, sweep = content.get("arms"), content.get("sweep")
    if isinstance(sweep, dict) and isinstance(where := sweep.get("where"), list):
        for rule in where:
            if isinstance(rule, dict) and isinstance(rule.get("settings"), dict):
                rule["settings"] = _without(rule["settings"], path, "a rule of sweep.where", "")
        # A rule that has nothing left to change is none.
        sweep["where"] = [
            rule for rule in where if not isinstance(rule, dict) or rule.get("settings") != {}
        ]
    for axis, one in arms.items() if isinstance(arms, Mapping) else ():
        for name, settings in one.items() if isinstance(one, dict) else ():
            if isinstance(settings, dict):
                single = f"write arms.{axis}.{name}.{path}=VALUE for one arm, or "
                one[name] = _without(settings, path, f"the arm {name!r}", single)


def _without(settings: dict[str, Plain], path: str, who: str, single: str) -> dict[str, Plain]:
    """Return settings without a path and the paths below it."""
    for key in settings:
        own = key.removeprefix("experiment.")
        if own != path and path.startswith(f"{own}."):
            why = f"{who} sets the whole {own}; {single}replace {own}"
            raise ConfigError(path, "a setting of the whole sweep", why)
    return {
        key: value
        for key, value in settings.items()
        if key.removeprefix("experiment.") != path
        and not key.removeprefix("experiment.").startswith(f"{path}.")
    }


def resolve_arm_path(
    content: Mapping[str, Plain], parents: list[str], last: str
) -> tuple[list[str], str]:
    """Resolve a path such as ``arms.method.fedprox.algorithm.mu`` into its parent keys and its last key.

    The keys of an arm are paths themselves; if the arm sets a parent of the path,
    it resolves inside that.
    """
    inner = ".".join([*parents[3:], last])
    arm: Plain = content
    for parent in parents[:3]:
        arm = arm.get(parent) if isinstance(arm, Mapping) else None
    settings = arm if isinstance(arm, Mapping) else {}
    whole = next((key for key in settings if inner.startswith(f"{key}.")), None)
    if whole is None:
        return parents[:3], inner
    *rest, last = inner.removeprefix(f"{whole}.").split(".")
    return [*parents[:3], whole, *rest], last


def validate_arms(config: Config) -> Iterator[ConfigError]:
    """Yield mistakes in arms, ``sweep.only``, ``sweep.skip`` and ``sweep.where``; settings are validated separately."""
    for axis, arms in config.arms.items():
        if not arms:
            yield ConfigError(f"arms.{axis}", "no arms", "name at least one, or leave the axis out")
    rules = [
        ("sweep.only", config.sweep.only),
        *((f"sweep.skip.{i}", r) for i, r in enumerate(config.sweep.skip)),
        *((f"sweep.where.{i}.arms", r.arms) for i, r in enumerate(config.sweep.where)),
    ]
    for where, rule in rules:
        for axis, names in rule.items():
            if axis not in config.arms:
                why = f"arms has {', '.join(config.arms) or 'none'}{nearest(axis, config.arms)}"
                yield ConfigError(f"{where}.{axis}", "an unknown axis", why)
                continue
            if not names:
                why = f"name at least one of {', '.join(config.arms[axis])}, or leave the axis out"
                yield ConfigError(f"{where}.{axis}", "no arms", why)
            for name in names:
                if name not in config.arms[axis]:
                    why = f"one of {', '.join(config.arms[axis])}{nearest(name, config.arms[axis])}"
                    yield ConfigError(f"{where}.{axis}", repr(name), why)


def _holds(rule: Mapping[str, tuple[str, ...]], combination: Mapping[str, str]) -> bool:
    return all(combination.get(axis) in names for axis, names in rule.items())


def flatten_setting(setting: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return a setting with one scalar per column: a component's name stands under its path, options below it.

    For example ``{"algorithm": {"name": "fedprox", "mu": 0.1}}`` becomes
    ``{"algorithm": "fedprox", "algorithm.mu": 0.1}``.
    """
    flat: dict[str, Plain] = {}
    for path, value in setting.items():
        path = path.removeprefix("experiment.").removesuffix(".name")
        if isinstance(value, Mapping):
            flat.update(
                {
                    (path if key == "name" else f"{path}.{key}"): part
                    for key, part in flatten_setting(value).items()
                }
            )
        else:
            flat[path] = value
    return flat


def label(setting: Mapping[str, Plain]) -> str:
    """Return the label of a setting, for example ``fedprox mu=0.1 lr=0.05``."""
    return setting_label(flatten_setting(setting))


def setting_label(flat: Mapping[str, Plain], exact: Collection[str] = ()) -> str:
    """Return the label of flat columns; components appear by name only, columns in `exact` with all digits."""
    return " ".join(
        one_line(str(value))
        if is_name(path)
        else f"{_short(path)}={format_value(value if path not in exact else str(value))}"
        for path, value in flat.items()
    )


def _short(path: str) -> str:
    """Return the last part of a path, of a partition's seed more, which is not the run's."""
    last = path.rsplit(".", 1)[-1]
    return path if last == "seed" else last


def is_name(path: str) -> bool:
    """Return whether a column's value is self-explanatory: a component's or an arm's name."""
    return path in registry_paths() or path.startswith(PREFIX)


def registry_paths() -> frozenset[str]:
    """Return the paths that hold a component's name."""
    return frozenset({"data"} | {kind.removesuffix("s") for kind in registry.ALL} - {"dataset"})


def format_value(value: Plain) -> str:
    """Format a value for a table: four digits of a real number."""
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value))
