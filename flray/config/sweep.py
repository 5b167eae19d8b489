"""The parts ``space``, ``sweep`` and ``paper``: varied settings, the search over them, the printed table."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from flray.config.sections import Section
from flray.config.yaml_files import Plain
from flray.metrics import is_at_most_one, lower_is_better


class Grid(Section):
    """A grid: every value is used."""

    grid: list[Plain] = Field(min_length=1)


class Choice(Section):
    """One of the values, drawn anew for each sample."""

    choice: list[Plain] = Field(min_length=1)


class Interval(Section):
    """Two ends, low below high."""

    @model_validator(mode="after")
    def _ordered(self) -> "Interval":
        for name, (low, high) in self.model_dump().items():
            if not low < high:
                raise PydanticCustomError(
                    "interval", "{name}: the first number must be below the second", {"name": name}
                )
            if not math.isfinite(high - low):
                raise PydanticCustomError(
                    "interval", "{name}: the numbers are too far apart for a draw", {"name": name}
                )
        return self


class Uniform(Interval):
    """A real number from an interval."""

    uniform: tuple[float, float]


class LogUniform(Interval):
    """A positive real number, uniform on the logarithm."""

    loguniform: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]


class RandInt(Interval):
    """An integer from [low, high)."""

    randint: tuple[int, int]


def _domain_tag(value: Plain) -> str | None:
    """Return a domain's form, identified by its keyword."""
    words = value if isinstance(value, Mapping) else getattr(type(value), "model_fields", ())
    return next((word for word in FORMS if word in words), None)


FORMS = ("grid", "choice", "uniform", "loguniform", "randint")
Domain = Annotated[
    Annotated[Grid, Tag("grid")]
    | Annotated[Choice, Tag("choice")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[LogUniform, Tag("loguniform")]
    | Annotated[RandInt, Tag("randint")],
    Discriminator(
        _domain_tag,
        custom_error_type="domain",
        custom_error_message=(
            "a domain is one of {grid: [...]}, {choice: [...]}, {uniform: [low, high]}, {loguniform: [low, high]}, "
            "{randint: [low, high]}"
        ),
    ),
]


def tried(domain: Domain) -> list[Plain]:
    """Return the values of a domain to be checked: all listed ones, or the first and the last of an interval."""
    values = next(iter(domain.model_dump().values()))
    if isinstance(domain, RandInt):
        low, high = domain.randint
        return [low, high - 1]
    return list(values)


Compared = Annotated[
    Literal["alike", "all"],
    Field(
        description="alike: a trial is compared with those of the same method, data, partition, network and seed, so "
        "that settings compete, not methods or repetitions; all: with every trial"
    ),
]


class Asha(Section):
    """Asynchronous successive halving: the worse part of the trials stops early."""

    name: Literal["asha"]
    """the scheduler"""
    grace_period: int = Field(1, ge=1)
    """rounds before a trial may be stopped"""
    reduction_factor: float = Field(3, gt=1)
    """one of so many trials goes beyond each rung"""
    compared: Compared = "alike"


def _by_name(value: Plain) -> Plain:
    """Accept a scheduler by its name alone; refuse a name that no scheduler has."""
    name = value.get("name", "asha") if isinstance(value, Mapping) else value
    if isinstance(name, str) and name != "asha":
        raise PydanticCustomError(
            "scheduler",
            "asha is allowed, or none (pbt and median were removed in 0.2.0): write scheduler: asha, or leave it out, "
            "which runs all trials to the end",
            {"found": name},
        )
    return {"name": value} if isinstance(value, str) else value


Scheduler = Annotated[
    Asha | None, BeforeValidator(_by_name, json_schema_input_type=Asha | Literal["asha"] | None)
]


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise PydanticCustomError("seeds", "seeds must differ from each other")
    return seeds


_DISTINCT = AfterValidator(_distinct)
_Seeds = tuple[Annotated[int, Field(ge=0)], ...]


class Tune(Section):
    """Tunes every arm over the arm's space, with equal budgets, and compares the best settings at `sweep.seeds`."""

    samples: int = Field(20, ge=1, le=100_000)
    """settings of each arm; fewer where all that its space has are fewer; 10 where four tunings are the default of
    sweep.repeat.tuning"""
    seeds: Annotated[_Seeds, Field(min_length=1), _DISTINCT] = (100, 101)
    """at which settings are chosen; none of sweep.seeds; the first alone where four tunings are the default of
    sweep.repeat.tuning; further tunings have the next seeds that are free"""
    search: Literal["optuna", "random", "grid"] = "optuna"
    """random: arms with the same space try the same values, their defaults first; optuna: so for the first ten
    settings, then a study per arm; grid: all that there are"""
    scheduler: Scheduler = None
    """asha: at round grace_period, and each reduction_factor times later, the best part of an arm's settings goes on;
    all wait there for each other, so that a resumed sweep decides alike"""
    metric: str = "validation"
    """what settings are chosen by, see sweep.metric"""


class Until(Section):
    """Seeds are added until each pair of settings, or each with `sweep.reference`, is decided."""

    margin: float = Field(0.5, gt=0)
    """differences below it do not matter, in points of percent (of what is no share: in its own unit)"""
    alpha: float = Field(0.05, gt=0, lt=0.5)
    """chance that any of the decisions is wrong"""
    at_least: int = Field(3, ge=2)
    """seeds of each setting before the first look; of sweep.seeds the first, if there are more"""
    at_most: int = Field(20, ge=2, le=100_000)
    """seeds of each setting"""

    @model_validator(mode="after")
    def _ordered(self) -> "Until":
        if self.at_least > self.at_most:
            raise PydanticCustomError(
                "until", "at_least must not be above at_most", {"sub": ("at_least",)}
            )
        return self


class Repeat(Section):
    """Repetitions besides the seeds, dealt over `sweep.seeds` in turn; intervals then hold for others of them too."""

    data: int = Field(1, ge=1)
    """draws of the data, for data sets with a seed: the i-th seed has draw i modulo this, counted from data.seed; as
    many as seeds: each seed its own"""
    tuning: int | None = Field(None, ge=1)
    """times that sweep.tune chooses, each time among other draws and at other seeds; the i-th seed has the choice of
    tuning i modulo this; default: 4 with the default budget of sweep.tune, at least 4 seeds and no sweep.until,
    otherwise 1"""


class Where(Section):
    """Settings of some combinations of arms."""

    arms: dict[str, tuple[str, ...]] = Field(min_length=1)
    """by axis of arms: those that it holds for"""
    settings: dict[str, Plain] = Field(min_length=1)
    """what is changed there, after all arms"""


class Sweep(Section):
    """The search over the space."""

    samples: int = Field(1, ge=1)
    """draws from the space (each with every grid value)"""
    seeds: Annotated[_Seeds, _DISTINCT] = ()
    """repetitions of each setting; none: once, at the experiment's own seed"""
    only: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """by axis of arms: those to run"""
    skip: tuple[dict[str, tuple[str, ...]], ...] = ()
    """combinations of arms that are not run: each lists arms by axis"""
    where: tuple[Where, ...] = ()
    """settings of single combinations of arms, such as a method's value for one of several data sets"""
    metric: str = "auto"
    """what settings are chosen by, and the score: auto: the method's main accuracy on test data, personal or global;
    validation: the same on validation samples, the default where a space, a scheduler or a search chooses
    (evaluation.validation is then 0.2 unless it is set); or a name (flray list metrics)"""
    mode: Literal["max", "min"] = Field(
        default_factory=lambda others: (
            "min" if lower_is_better(others.get("metric", "auto")) else "max"
        ),
        json_schema_extra={"default": "max"},
    )
    """by default min for losses and distances, max otherwise"""
    reference: str | None = Field(None, min_length=1)
    """a setting by its name in the table, such as fedavg: all others are compared with it; default: all pairs are
    compared"""
    tune: Tune | None = None
    """tune each arm, and each value of a grid over methods or data, over its own space before they are compared; an
    arm's own space stands in it under `space`"""
    until: Until | None = None
    """add seeds to sweep.seeds until what is compared is decided"""
    repeat: Repeat = Field(default_factory=Repeat)
    """what is repeated besides the seeds"""
    places: tuple[Literal["data.seed", "partition.seed"], ...] | None = None
    """seeds in the space whose values are places, each with comparisons of its own; others are repetitions, pooled in
    one interval; default: none, beside sweep.until all, because its tests need independent seeds"""
    search: Literal["random", "grid", "optuna"] = "random"
    """random: draws; grid: every combination; optuna: each draw follows from the results before it,
    and none comes twice"""
    scheduler: Scheduler = None
    """asha: the worse part of the trials stops early; null: all run to the end"""
    concurrency: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """trials that run at a time; auto: as many as the CPUs and GPUs carry"""
    max_failures: int = Field(2, ge=0)
    """times a crashed trial is tried again from its checkpoint; where it is 1 at least, the loss of a node does not
    count"""
    seed: int = Field(0, ge=0)
    """of the draws"""
    reuse: bool = True
    """take over what sweeps in the same output folder have finished: trials of the same settings, data and code;
    false: run everything"""

    @model_validator(mode="after")
    def _direction(self) -> "Sweep":
        wrong = {"max": lower_is_better, "min": is_at_most_one}[self.mode](self.metric)
        if wrong:
            right = ("lower", "min") if self.mode == "max" else ("higher", "max")
            raise PydanticCustomError(
                "mode",
                "{metric} is better the {how} it is: leave mode out or write {right}",
                {"metric": self.metric, "how": right[0], "right": right[1], "sub": ("mode",)},
            )
        return self


class PaperTable(Section):
    """Ties a sweep with arms to a table of a paper.

    A cell of the table is a combination of arms, a client and a measure. Its printed number is a row
    of `flray.papers`. The row's ``method`` is the name of the arm of the axis ``method``,
    unless `printed` gives another value; its ``client`` and ``metric`` are those of the cell.
    """

    name: Literal["fedco2", "fcclplus", "fedskc", "lgmix"]
    """the paper"""
    table: str = Field(pattern=r"^(table|fig)\d+[a-z]?$")
    """the table or figure, for example table1"""
    title: str = Field(min_length=1)
    """what it shows, in a few words"""
    rows: str = "method"
    """axis of arms whose arms are the rows; the others are columns"""
    measures: dict[str, str] = Field({"top1": "own/accuracy"}, min_length=1)
    """printed metric: what is measured here. own/X: the method's own model on each client's test part (global/local/X
    or personal/local/X); others/X: on the other clients' parts; pooled/X: the method's own model on all clients'
    test parts together (global/common/X or personal/pooled/X); auto: the method's main metric; a metric's name; any
    of them with `>= 75`: first round that reaches 75 %; hours; memory (most MiB on a GPU, without one of a client
    process); several with ` | ` between them: the first that was measured"""
    clients: dict[str, tuple[str, ...]] | None = Field({})
    """printed client: clients or domains here, where the names differ; of several, as with several data sets, the one
    that there is; null: averages only"""
    printed: dict[
        str, dict[str, dict[Literal["method", "dataset", "setting", "client", "metric"], str]]
    ] = Field(default_factory=dict)
    """by axis and arm: columns of the printed rows with their values"""
    departures: tuple[str, ...] = ()
    """how this suite differs from the paper's experiment"""

    @field_validator("measures", mode="before", json_schema_input_type=dict[str, str | None])
    @classmethod
    def _taken_out(cls, value: object) -> object:
        """Leave out measures of a base that are set to null."""
        if not isinstance(value, dict):
            return value
        return {key: one for key, one in value.items() if one is not None}

    @field_validator("measures")
    @classmethod
    def _readable(cls, value: dict[str, str]) -> dict[str, str]:
        """Refuse a target that is not a number, and a model's test part without a measure."""
        for measure in value.values():
            if not re.fullmatch(r"[^>]+(>=\s*(\d+\.?\d*|\.\d+))?", measure):
                raise PydanticCustomError(
                    "measure", "a number comes after >=, such as own/accuracy >= 75"
                )
            if {"others", "pooled"} & set(re.split(r" \| |\s*>=", measure)):
                raise PydanticCustomError(
                    "measure", "a measure comes after it, such as others/accuracy"
                )
        return value
