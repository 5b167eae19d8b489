"""From a search space to trials: grids and keyed draws, and their names and tags in MLflow."""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from flray import registry, rng
from flray.config import arms
from flray.config.experiment import Config, Experiment, choose_on_validation
from flray.config.loader import experiment_at
from flray.config.sweep import Choice, Domain, Grid, LogUniform, RandInt, Sweep
from flray.errors import ConfigError, ConfigErrors
from flray.records.directory import flatten_settings

Values = dict[str, Any]
Phase = Literal["comparison", "tuning"]

_OF_THE_SWEEP = ("name", "output", "tracking", "plugins")
_SHOWN_ERRORS = 20
TUNINGS = 4
"""Tunings that the default budget is spent on: twenty settings at two seeds become four times ten at one."""


@dataclass(frozen=True)
class TrialSpec:
    """One trial: a setting with a seed.

    Attributes
    ----------
    number : str
        Name of the trial and its folder; the same after a resume.
    setting : dict
        Value of each path of the space.
    seed : int
        The repetition.
    experiment : Experiment
        The resolved experiment.
    phase : {"comparison", "tuning"}
        Whether it is compared, or helps to choose what is.
    compared : dict, optional
        The part of the setting that is compared, where the rest is tuned.
    repetition : int
        The number of the tuning that it is part of, or whose choice it has.
    draw : dict
        Its draw of the data, see `draw_of_data`.
    """

    number: str
    setting: Values
    seed: int
    experiment: Experiment
    phase: Phase = "comparison"
    compared: Values | None = None
    repetition: int = 0
    draw: Values = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """The name of the folder of its setting's run; see `setting_key`."""
        return setting_key(self.setting, self.phase)

    @property
    def values(self) -> Values:
        """The setting with its draw of the data and its seed."""
        return {**self.setting, **self.draw, "seed": self.seed}

    @property
    def label(self) -> str:
        """A short label of the trial."""
        return f"{arms.label(self.setting) or self.experiment.algorithm.name} seed={self.seed}"


def setting_key(setting: Mapping[str, Any], phase: str) -> str:
    """Return the name of the folder of a setting's run: the same for all its seeds, and after a resume."""
    text = json.dumps([setting, phase], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def resolve_sweep(config: Config) -> Config:
    """Reject inconsistent sweeps; return the configuration with seeds, metric and validation share filled in.

    Raises
    ------
    ConfigErrors
        One line per mistake.
    """
    if not config.sweep.seeds:
        sweep = config.sweep.model_copy(update={"seeds": (config.experiment.seed,)})
        config = config.model_copy(update={"sweep": sweep})
    config = _with_tunings(config)
    if errors := [
        ConfigError(where, found, allowed)
        for is_broken, where, found, allowed in _rules(config)
        if is_broken
    ]:
        raise ConfigErrors(errors)
    return choose_on_validation(config)


def _with_tunings(config: Config) -> Config:
    """Return the sweep with the number of its tunings: the default budget is spent on several."""
    sweep, tunings = config.sweep, 1
    if sweep.repeat.tuning is not None:
        return config
    tune = sweep.tune
    chosen = {"samples", "seeds"} & (tune.model_fields_set if tune else {"seeds"})
    if tune is not None and not chosen and sweep.until is None and len(sweep.seeds) >= TUNINGS:
        tunings = TUNINGS
        tune = tune.model_copy(update={"samples": tune.samples // 2, "seeds": tune.seeds[:1]})
    repeat = sweep.repeat.model_copy(update={"tuning": tunings})
    sweep = sweep.model_copy(update={"tune": tune, "repeat": repeat})
    return config.model_copy(update={"sweep": sweep})


def _rules(config: Config) -> Iterator[tuple[object, str, str, str]]:
    """Yield each rule: whether it is broken, the setting, the value found, and the values allowed."""
    sweep, whole = config.sweep, "a setting of the whole sweep"
    choosing = () if sweep.tune is None else sweep.tune.seeds
    yield (
        set(sweep.seeds) & set(choosing),
        "sweep.tune.seeds",
        str(list(choosing)),
        "they choose settings, and none of sweep.seeds may: give others, such as [100, 101]",
    )
    yield from _rules_of_repetitions(config)
    spelled: dict[str, str] = {}
    for path in config.space:
        relative, where = path.removeprefix("experiment."), f"space.{path}"
        first = spelled.setdefault(relative, path)
        yield relative.split(".")[0] in _OF_THE_SWEEP, where, whole, "it cannot vary within it"
        yield relative == "resources.bits", where, whole, "all trials compute alike"
        yield (
            relative == "seed",
            where,
            "seeds as part of the space",
            "list them in sweep.seeds, so that they are averaged over",
        )
        yield (
            first != path,
            where,
            f"the setting of space.{first} once more",
            "paths are relative to experiment; leave one of the two out",
        )
    changed = {
        **{
            f"arms.{axis}.{name}": c for axis, one in config.arms.items() for name, c in one.items()
        },
        **{f"sweep.where.{i}.settings": rule.settings for i, rule in enumerate(sweep.where)},
    }
    refused = (*_OF_THE_SWEEP, "seed", "arms", "sweep", *(() if sweep.tune else (arms.SPACE,)))
    for where, changes in changed.items():
        for path in changes or ():
            relative = path.removeprefix("experiment.")
            is_fixed = relative == "resources.bits" or relative.split(".")[0] in refused
            why = f"{whole}; it cannot vary within it"
            if relative == arms.SPACE:
                why = "an arm's own space is for sweep.tune, which is not set: set it, or write one space for all arms"
            yield is_fixed, where, path, why
    for name, other in itertools.product(("tune", "until"), ("samples", "search", "scheduler")):
        value, where = getattr(sweep, other), f"sweep.tune.{other}" if sweep.tune else "sweep.tune"
        is_free = value == Sweep.model_fields[other].default or (
            (name, other) == ("until", "samples") and not sweep.tune
        )
        yield (
            getattr(sweep, name) is not None and not is_free,
            f"sweep.{other}",
            f"{getattr(value, 'name', value)!r} beside sweep.{name}",
            f"what is compared runs to the end; set {where}, by which it is chosen before",
        )
    random = [path for path, domain in config.space.items() if not isinstance(domain, Grid)]
    is_optuna = sweep.search == "optuna"
    yield (
        config.arms and is_optuna and sweep.tune is None,
        "sweep.search",
        "'optuna' with arms",
        "all arms are run, none is searched for; set random, write the space without arms, "
        "or tune each arm by sweep.tune",
    )
    yield (
        sweep.search == "grid" and random,
        "sweep.search",
        f"'grid', and {', '.join(random)} is no grid",
        "write the values as {grid: [...]}, or set sweep.search to random",
    )
    yield (
        sweep.samples > 1 and not random and not is_optuna,
        "sweep.samples",
        str(sweep.samples),
        "without a random domain in the space every sample is the same; set 1, and list "
        "repetitions in sweep.seeds",
    )
    yield (
        is_optuna and not config.space and sweep.tune is None,
        "sweep.search",
        "'optuna' with an empty space",
        "there is nothing to search",
    )
    yield (
        not any(True for _ in arms.combine_arms(config)),
        "sweep.skip",
        "every combination of arms",
        "leave at least one to be run",
    )


def _rules_of_repetitions(config: Config) -> Iterator[tuple[object, str, str, str]]:
    """Yield the rules of ``sweep.repeat`` and ``sweep.places``."""
    sweep, space = config.sweep, [path.removeprefix("experiment.") for path in config.space]
    data, tuning = sweep.repeat.data, sweep.repeat.tuning or 1
    most = None if sweep.until is None else sweep.until.at_most
    yield tuning > 1 and not sweep.tune, "sweep.repeat.tuning", str(tuning), "1 without sweep.tune"
    yield (
        max(data, tuning) % min(data, tuning),
        "sweep.repeat",
        f"data {data} and tuning {tuning}",
        "the larger is a multiple of the smaller, so that one lies within the other",
    )
    yield (
        data > 1 and "data.seed" in space,
        "sweep.repeat.data",
        str(data),
        "1 beside a space with data.seed",
    )
    for name, count in (("data", data), ("tuning", tuning)):
        yield (
            most is None and count > len(sweep.seeds),
            f"sweep.repeat.{name}",
            f"{count} for {len(sweep.seeds)} of sweep.seeds",
            f"at most as many as seeds; list {count} seeds at least",
        )
    yield (
        most is not None and (tuning > 1 or 1 < data < most),
        "sweep.repeat",
        f"data {data} and tuning {tuning} beside sweep.until",
        f"tuning: 1, and data: 1 or at least {most} (sweep.until.at_most): a test after every seed "
        "needs seeds that are independent",
    )
    yield (
        most is not None and len(sweep.seeds) > most,
        "sweep.seeds",
        f"{len(sweep.seeds)} seeds beside sweep.until.at_most {most}",
        "at most so many, as no further one would run; raise at_most, or list fewer",
    )
    places = sweep.places or ()
    for path in ("data.seed", "partition.seed"):
        yield (
            path in places and path not in space,
            "sweep.places",
            f"{path}, which the space does not vary",
            f"seeds of the space; write space.{path}: {{grid: [...]}}, or leave it out here",
        )
        yield (
            most is not None and path in space and sweep.places is not None and path not in places,
            f"space.{path}",
            f"repetitions beside sweep.until, as sweep.places is {list(places)}",
            "places: leave sweep.places out, or take it out of the space",
        )


def enumerate_settings(config: Config) -> list[Values]:
    """Return all settings of a grid or random search: every grid combination for each of the sweep's samples.

    Draws are keyed by sample and path, so adding a path or a sample does not change the others.
    Settings that come up twice (few choices, many samples) are run once.
    """
    grids = {path: domain.grid for path, domain in config.space.items() if isinstance(domain, Grid)}
    random = {path: domain for path, domain in config.space.items() if not isinstance(domain, Grid)}
    found: dict[str, Values] = {}
    for sample in range(config.sweep.samples):
        drawn = {
            path: draw_setting(domain, config.sweep.seed, sample, path)
            for path, domain in random.items()
        }
        for named, combination in itertools.product(
            arms.combine_arms(config), itertools.product(*grids.values())
        ):
            chosen = {**dict(zip(grids, combination, strict=True)), **drawn}
            setting = {**named, **{path: chosen[path] for path in config.space}}
            found.setdefault(_written(setting), setting)
    return list(found.values())


def _written(setting: Values) -> str:
    """Return a text that is equal for settings that are, such as a method's name alone and under ``name``."""
    return json.dumps(arms.flatten_setting(setting), sort_keys=True)


def distinct(path: str, values: Sequence[Any]) -> list[Any]:
    """Return a path's values without repetitions, whose trials would count as those of further seeds."""
    found: dict[str, Any] = {}
    for value in values:
        found.setdefault(_written({path: value}), value)
    return list(found.values())


def values_of(domain: Domain) -> Sequence[Any] | None:
    """Return the values of a domain; None for an interval of real numbers."""
    match domain:
        case Grid():
            return domain.grid
        case Choice():
            return domain.choice
        case RandInt():
            return range(*domain.randint)
    return None


def bounds(domain: Domain) -> tuple[float, float]:
    """Return the ends of an interval."""
    low, high = next(iter(domain.model_dump().values()))
    return low, high


def first_values(space: Mapping[str, Domain]) -> Values:
    """Return the first value of every domain; of batches the largest, which takes the most memory."""
    each = {path: values_of(domain) or bounds(domain) for path, domain in space.items()}
    return {
        path: max(found) if path == "local.batch_size" else found[0] for path, found in each.items()
    }


def draw_setting(domain: Domain, seed: int, sample: int, path: str) -> Any:
    """Return one value of a domain; the same for the same seed, sample and path."""
    generator = rng.numpy_generator(seed, "sampling", extra=f"sweep/{sample}/{path}")
    if (values := values_of(domain)) is not None:
        return values[int(generator.integers(len(values)))]
    low, high = bounds(domain)
    if isinstance(domain, LogUniform):
        return math.exp(generator.uniform(math.log(low), math.log(high)))
    return float(generator.uniform(low, high))


def trial_specs(config: Config, given: Sequence[Values], first: int = 0) -> list[TrialSpec]:
    """Return the trials of settings, each seed of each setting, numbered in order.

    Parameters
    ----------
    config : Config
        The sweep.
    given : sequence of dict
        Settings.
    first : int
        Number of earlier settings.

    Raises
    ------
    ConfigErrors
        One line per setting that cannot be run.
    """
    seeds, errors = config.sweep.seeds or (config.experiment.seed,), []
    made: list[TrialSpec] = []
    for position, setting in enumerate(given, start=first):
        try:
            for repetition, seed in enumerate(seeds):
                draw = draw_of_data(config, setting, repetition)
                experiment = experiment_at(config, {**setting, **draw, "seed": seed})
                number = trial_number(position * len(seeds) + repetition)
                made.append(TrialSpec(number, setting, seed, experiment, draw=draw))
        except (ConfigError, ConfigErrors) as error:
            errors += errors_of(config, setting, error)
    if len(errors) > _SHOWN_ERRORS:
        left = len(errors) - _SHOWN_ERRORS
        errors[_SHOWN_ERRORS:] = [
            ConfigError("space", f"{left} more settings that cannot be run", "see those above")
        ]
    if errors:
        raise ConfigErrors(errors)
    return made


def errors_of(
    config: Config, setting: Values, error: ConfigError | ConfigErrors
) -> list[ConfigError]:
    """Return the errors of a setting that cannot be run, which name it and the part of the file that it is from."""
    label = arms.label(setting)  # none without arms and space
    where = f"{'space' if config.space else 'arms'} ({label}): " if label else ""
    each = error.errors if isinstance(error, ConfigErrors) else [error]
    return [ConfigError(f"{where}{one.path}", one.found, one.allowed) for one in each]


def draw_of_data(config: Config, setting: Values, position: int) -> Values:
    """Return the ``data.seed`` of the seed at a position; nothing if ``sweep.repeat`` has one draw.

    Raises
    ------
    ConfigErrors
        If the data set has no seed.
    """
    draws = config.sweep.repeat.data
    if draws == 1:
        return {}
    data = experiment_at(config, setting).data
    option = registry.datasets.params(data.name).model_fields.get("seed")
    if option is None:
        error = ConfigError(
            "sweep.repeat.data",
            f"{draws}, and data set {data.name} has no seed: it is always the same",
            "1; its partition is drawn anew at each seed",
        )
        raise ConfigErrors([error])
    first = data.options.get("seed", option.default)
    return {"data.seed": first + position % draws}


def trial_number(index: int) -> str:
    """Return a trial's name, from 0001."""
    return f"{index + 1:04d}"


def setting_title(point: TrialSpec) -> str:
    """Return the name of a trial's setting: method, data, other varied settings."""
    named = {
        path.removeprefix(arms.PREFIX): str(value)
        for path, value in point.setting.items()
        if path.startswith(arms.PREFIX)
    }
    experiment = point.experiment
    method = named.pop("method", experiment.algorithm.name)
    parts = [method, *([] if "data" in named else [experiment.data.name]), *named.values()]
    rest = {
        path: value
        for path, value in arms.flatten_setting(point.setting).items()
        if not path.startswith(arms.PREFIX) and path not in arms.registry_paths()
    }
    said = set(named) or any(
        path.startswith("partition") for path in rest
    )  # arms besides the method name the differences
    if not said:
        parts += partition_label(experiment)
    parts += [
        f"{path.rsplit('.', 1)[-1]}={arms.format_value(value)}" for path, value in rest.items()
    ]
    return " · ".join(dict.fromkeys(parts))


def partition_label(experiment: Experiment) -> list[str]:
    """Return a short label of the partition, empty for one client per domain."""
    name, options = experiment.partition.name, experiment.partition.options
    if "alpha" in options:
        return [f"α={options['alpha']:g}"]
    if "classes_per_client" in options:
        return [f"{options['classes_per_client']} classes each"]
    return [] if name == "domains" else [name]


def sweep_tags(config: Config) -> dict[str, str]:
    """Return tags to find the runs of a sweep by: its paper and table."""
    paper = config.paper
    return {} if paper is None else {"paper": paper.name, "table": paper.table}


def setting_tags(config: Config, point: TrialSpec) -> dict[str, str]:
    """Return tags to find a trial by, which tell tuning from comparison."""
    algorithm = point.experiment.algorithm
    found = {
        **sweep_tags(config),
        "method": algorithm.name,
        "data": point.experiment.data.name,
        "flray.phase": point.phase,
        "flray.varied": json.dumps(arms.flatten_setting(point.setting), ensure_ascii=False),
        "setting": setting_title(point),
    }
    if "variant" in algorithm.options:
        found["variant"] = str(algorithm.options["variant"])
    if point.compared is not None:
        found["flray.repetition"] = str(point.repetition)
    return found


def setting_params(point: TrialSpec) -> dict[str, str]:
    """Return a trial's settings as parameters, each once; its arms have a prefix that MLflow sorts first."""
    named = {
        f"_{path.removeprefix(arms.PREFIX)}": str(value)
        for path, value in point.setting.items()
        if path.startswith(arms.PREFIX)
    }
    return {**named, **dict(flatten_settings(point.experiment.model_dump(mode="json")))}
