"""The units that a sweep compares, and the space that each unit is tuned over."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flray import registry, rng
from flray.config import arms
from flray.config.experiment import Config, is_place
from flray.config.loader import experiment_at, wrong_values
from flray.config.sweep import Choice, Domain, Grid, LogUniform, RandInt, Tune
from flray.errors import ConfigError, ConfigErrors, nearest
from flray.tuning.space import Values, bounds, distinct, draw_setting, errors_of, values_of

STARTUP = 10
"""Settings of an arm that are common to all arms before Optuna looks at any score."""
_ATTEMPTS = 200
"""Settings that are looked at for one that was not tried before."""
_OWN_SPACE: TypeAdapter[dict[str, Domain | None]] = TypeAdapter(dict[str, Domain | None])


@dataclass(frozen=True)
class Unit:
    """A unit that a sweep compares: a combination of arms and of values of compared grids.

    Attributes
    ----------
    setting : dict
        The arms and values that define it.
    space : dict of str to Domain
        The domains that are tuned for it.
    defaults : tuple of dict
        Settings to try first: this unit's values of the tuned paths, then those of the other units.
    repetition : int
        The number of the tuning, from 0.
    """

    setting: Values
    space: Mapping[str, Domain]
    defaults: tuple[Values, ...] = ()
    repetition: int = 0

    @property
    def name(self) -> str:
        """A short name for people."""
        return arms.label(self.setting) or "the only setting"

    def budget(self, tune: Tune) -> int:
        """Return the number of settings to try: at most all possible ones, and 0 if the space is empty."""
        return min(tune.samples, self.size or tune.samples) if self.space else 0

    @property
    def size(self) -> int | None:
        """How many settings there are; None for intervals of real numbers."""
        axes = self._axes
        return None if None in axes else math.prod(len(one) for one in axes if one is not None)

    @property
    def _axes(self) -> list[Sequence[Any] | None]:
        """The different values of each domain; None for an interval of real numbers."""
        each = {path: values_of(domain) for path, domain in self.space.items()}
        return [
            distinct(path, values) if isinstance(values, list) else values
            for path, values in each.items()
        ]

    def suggest(
        self,
        tune: Tune,
        seed: int,
        index: int,
        past: Sequence[tuple[Values, float]],
        earlier: Sequence[Values],
        mode: str,
    ) -> Values:
        """Return a setting to try: a function of its arguments alone.

        Parameters
        ----------
        tune : Tune
            The settings of the search.
        seed : int
            The seed of the sweep.
        index : int
            The number of settings before it.
        past : sequence of (dict, float)
            Tuned settings whose scores it may look at, in order.
        earlier : sequence of dict
            All tuned settings before it; it is none of them if another is found.
        mode : {"max", "min"}
            Whether a score is better high or low.
        """
        if self.size is not None and self.size <= tune.samples:
            axes = [values or () for values in self._axes]
            combination = next(itertools.islice(itertools.product(*axes), index, None))
            return dict(zip(self.space, combination, strict=True))
        if tune.search != "optuna" or index < STARTUP:
            found = self._common(seed)
        else:
            seeds = (
                rng.key(seed, "sampling", extra=f"tune/{index}/{n}") for n in itertools.count()
            )
            found = (next(suggestions(self.space, past, one, mode)) for one in seeds)
        for one in itertools.islice(found, _ATTEMPTS):
            if one not in earlier:
                break
        return one

    def _common(self, seed: int) -> Iterator[Values]:
        """Yield the defaults, then draws: units with the same domain of a path get the same values of it."""
        yield from self.defaults
        for number in itertools.count():
            yield {path: _draw(domain, seed, number, path) for path, domain in self.space.items()}


def units(config: Config) -> list[Unit]:
    """Return the compared units (arms x grid values).

    The units are all combinations of arms, of grids over components (methods, data sets, networks,
    partitions) and of grids over the data. Other domains are tuned: those of the sweep's space and
    those of an arm's space. The arm's domain replaces the sweep's, and null removes it. Options that
    a unit's method does not have do not belong to its space.

    Raises
    ------
    ConfigError
        If an arm's space is invalid, or budgets cannot be equal.
    """
    compared = {
        path: distinct(path, domain.grid)
        for path, domain in config.space.items()
        if isinstance(domain, Grid) and _is_compared(path)
    }
    shared = {path: domain for path, domain in config.space.items() if path not in compared}
    found = []
    for named in arms.combine_arms(config):
        space: dict[str, Domain | None] = dict(shared)
        for _, own_space in _own_spaces(config, named):
            space |= own_space
        for combination in itertools.product(*compared.values()):
            setting = {**named, **dict(zip(compared, combination, strict=True))}
            own = {path: domain for path, domain in space.items() if domain is not None}
            try:
                found.append(Unit(setting, dict(_applicable(config, setting, own))))
            except (ConfigError, ConfigErrors) as error:
                raise ConfigErrors(errors_of(config, setting, error)) from None
    _check(config, found)
    _check_own_values(config, found)
    return _with_defaults(config, found)


def _with_defaults(config: Config, found: Sequence[Unit]) -> list[Unit]:
    """Return the units with the settings that they try first.

    A unit tries its default, then the defaults of the other units for the domains that both have.
    So no default is tried by one unit alone. A value outside of its domain is drawn instead.
    """
    own = []
    for unit in found:
        content = experiment_at(config, unit.setting).model_dump(mode="json")
        values = {path: _value_at(content, path) for path in unit.space}
        own.append(
            {path: value for path, value in values.items() if _holds(unit.space[path], value)}
        )
    made = []
    for u, unit in enumerate(found):
        drawn = {path: _draw(one, config.sweep.seed, 0, path) for path, one in unit.space.items()}
        defaults: list[Values] = []
        for v in (u, *range(len(found))):
            shared = {p: x for p, x in own[v].items() if found[v].space[p] == unit.space.get(p)}
            setting = {**drawn, **own[u], **shared}
            if own[u] | shared and setting not in defaults:
                defaults.append(setting)
        made.append(replace(unit, defaults=tuple(defaults)))
    return made


def _value_at(content: Any, path: str) -> Any:
    for part in path.removeprefix("experiment.").split("."):
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def _holds(domain: Domain, value: Any) -> bool:
    values = values_of(domain)
    if values is not None:
        return value in values and (type(value) is int or not isinstance(values, range))
    low, high = bounds(domain)
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _draw(domain: Domain, seed: int, number: int, path: str) -> Any:
    return draw_setting(domain, seed, number, path.removeprefix("experiment."))


def _is_compared(path: str) -> bool:
    name = path.removeprefix("experiment.").removesuffix(".name")
    return is_place(path) or name in arms.registry_paths()


def _own_spaces(config: Config, setting: Values) -> Iterator[tuple[str, dict[str, Domain | None]]]:
    """Yield the spaces of a setting's arms, each with its path in the file."""
    for axis, one in config.arms.items():
        name = str(setting[f"{arms.PREFIX}{axis}"])
        where = f"arms.{axis}.{name}.{arms.SPACE}"
        try:
            space = _OWN_SPACE.validate_python(one[name].get(arms.SPACE, {}))
        except ValidationError as error:
            first = error.errors()[0]
            path = "".join(f".{part}" for part in first["loc"][:1])
            raise ConfigError(f"{where}{path}", repr(first["input"])[:80], first["msg"]) from None
        yield where, space


def _applicable(
    config: Config, setting: Values, space: Mapping[str, Domain]
) -> Iterator[tuple[str, Domain]]:
    options = registry.algorithms.params(experiment_at(config, setting).algorithm.name).model_fields
    for path, domain in space.items():
        head, _, option = path.removeprefix("experiment.").partition(".")
        if head != "algorithm" or option.split(".")[0] in options:
            yield path, domain


def _check(config: Config, found: Sequence[Unit]) -> None:
    tune = config.sweep.tune
    assert tune is not None
    known = {path for unit in found for path in unit.space}
    spaces: dict[str, Mapping[str, Domain | None]] = {arms.SPACE: config.space}
    for unit in found:
        spaces |= dict(_own_spaces(config, unit.setting))
    for where, space in spaces.items():
        for path, domain in space.items():
            if path not in known and domain is not None and not _is_compared(path):
                raise ConfigError(
                    f"{where}.{path}",
                    "an option that no compared method has",
                    f"one of those of its method{nearest(path, known)}",
                )
    if not known:
        raise ConfigError(
            "sweep.tune",
            "nothing that could be tuned",
            "give a space, or arms with a space of their own",
        )
    if tune.search == "grid":
        sizes = {unit.name: unit.size for unit in found if unit.space}
        if None in sizes.values():
            raise ConfigError(
                "sweep.tune.search",
                "'grid', and a domain that is no grid",
                "write its values as {grid: [...]}, or search by random or optuna",
            )
        most = max(size for size in sizes.values() if size is not None)
        if len(set(sizes.values())) > 1 or most > tune.samples:
            listed = ", ".join(
                f"{name} {size}" if len(sizes) > 1 else f"{size}" for name, size in sizes.items()
            )
            raise ConfigError(
                "sweep.tune.search",
                f"'grid' over {listed} settings",
                f"grids of one size, of at most sweep.tune.samples ({tune.samples}), so that all "
                "have the same budget; or search by random or optuna",
            )


def _check_own_values(config: Config, found: Sequence[Unit]) -> None:
    """Refuse values of an arm's own space that it cannot be run with: a late draw would end the sweep.

    Those of the sweep's space are checked when its file is read.
    """
    errors: dict[str, ConfigError] = {}
    for unit in found:
        for where, space in _own_spaces(config, unit.setting):
            for path, domain in space.items():
                if domain is None or unit.space.get(path) != domain:
                    continue
                for error in wrong_values(config, unit.setting, path, domain, where):
                    errors.setdefault(error.path, error)
    if errors:
        raise ConfigErrors(list(errors.values()))


def _distribution(domain: Domain) -> Any:
    """Return a domain in Optuna's form; of grids and choices the indices of their values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Grid | Choice):
        return CategoricalDistribution(range(len(values_of(domain) or ())))
    low, high = bounds(domain)
    if isinstance(domain, RandInt):
        return IntDistribution(low, high - 1)
    return FloatDistribution(low, high, log=isinstance(domain, LogUniform))


def suggestions(
    space: Mapping[str, Domain], past: Sequence[tuple[Values, float | None]], seed: int, mode: str
) -> Iterator[Values]:
    """Yield settings of Optuna's tree-structured Parzen estimator; they depend on the arguments alone.

    Parameters
    ----------
    space : mapping of str to Domain
        The domains to search.
    past : sequence of (dict, float or None)
        Settings with their scores, in order: NaN of a failed one, None of one that still runs, whose
        surroundings are avoided.
    seed : int
        The seed of these suggestions; each replaces the one before.
    mode : {"max", "min"}
        Whether a score is better high or low.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize" if mode == "max" else "minimize",
        sampler=optuna.samplers.TPESampler(seed=seed % 2**32),
    )
    known = {path: _distribution(domain) for path, domain in space.items()}
    lists = {path: values_of(d) or () for path, d in space.items() if isinstance(d, Grid | Choice)}
    failed = optuna.trial.TrialState.FAIL
    for setting, score in past:
        if score is None:
            outcome: dict[str, Any] = {"state": optuna.trial.TrialState.RUNNING}
        else:
            outcome = {"state": failed} if math.isnan(score) else {"value": score}
        taken = {
            path: lists[path].index(setting[path]) if path in lists else setting[path]
            for path in space
        }
        study.add_trial(optuna.trial.create_trial(params=taken, distributions=known, **outcome))
    while True:
        asked = study.ask(known)
        given = asked.params
        yield {path: lists[path][given[path]] if path in lists else given[path] for path in space}
        study.tell(asked, state=failed)
