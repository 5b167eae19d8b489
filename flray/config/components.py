"""Components in the YAML file: a registered name with its options, checked when the file is read."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, get_args

import pydantic
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from flray import registry
from flray.config.yaml_files import Plain
from flray.errors import FlrayError, nearest
from flray.metrics import MEASURES_IN_WORDS
from flray.registry import Preset, Registry

RETIRED: Mapping[str, Mapping[str, Plain]] = {
    "camelyon17": {"by": "image"},
    "domainnet": {"classes": "ten", "incomplete": False},
    **{
        name: {"rename": {}, "incomplete": False}
        for name in ("office-caltech10", "office31", "office-home", "pacs", "vlcs")
    },
}
"""Former options of data sets with the value that they had unless they were set: runs that began with it continue."""


class Component(BaseModel):
    """A registered component by name with its options: ``{name: dirichlet, alpha: 0.2}`` or just ``iid``."""

    model_config = ConfigDict(frozen=True)
    registry: ClassVar[Registry]

    name: str
    options: dict[str, Plain] = Field(default_factory=dict)

    def __init_subclass__(cls, *, registry: Registry, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls.registry = registry

    @pydantic.model_validator(mode="before")
    @classmethod
    def _split(cls, value: Plain) -> Plain:
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            kind = cls.registry.kind
            raise PydanticCustomError(
                "component",
                "name {article} {kind}, for example `{example}`",
                {
                    "kind": kind,
                    "example": f"{{name: {cls.registry.names()[0]}}}",
                    "article": "an" if kind[0] in "aeiou" else "a",
                },
            )
        former = {"name": value["name"], **RETIRED.get(value["name"], {})}
        given = {k: v for k, v in value.items() if k not in former or v != former[k]}
        try:
            params = cls.params(value["name"])
            given = _with_preset(value["name"], given, getattr(params, "presets", ()))
            with cls.registry.guarded(value["name"], ValidationError):
                return {"name": value["name"], "options": params.model_validate(given).model_dump()}
        except FlrayError as error:
            raise PydanticCustomError(
                "component", "{message}", {"message": str(error), "sub": ("name",)}
            ) from None
        except ValidationError as error:
            first = error.errors()[0]
            sub = tuple(str(part) for part in first["loc"])
            message = first["msg"][:1].lower() + first["msg"][1:]
            if first["type"] == "extra_forbidden":
                own = {n: cls.registry.params(n).model_fields for n in cls.registry.names()}
                names = [name for name, options in own.items() if sub[-1] in options]
                have = f" ({', '.join(names)} {'has' if len(names) == 1 else 'have'} it)"
                near = nearest(sub[-1], params.model_fields) or (have if names else "")
                message = (
                    f"{value['name']} has no option {sub[-1]!r}{near}; "
                    f"its options: {', '.join(params.model_fields) or 'none'}"
                )
            elif first["type"] == "missing":
                message = f"the {cls.registry.kind} {value['name']} needs this option"
            raise PydanticCustomError(
                "component", "{message}", {"message": message, "sub": sub, "found": first["input"]}
            ) from None

    @classmethod
    def params(cls, name: str) -> type[BaseModel]:
        """Return the pydantic model of a component's options in this place."""
        return cls.registry.params(name)

    @pydantic.model_serializer
    def _join(self) -> dict[str, Plain]:
        return {"name": self.name, **self.options}


def _with_preset(name: str, given: dict[str, Plain], presets: Sequence[Preset]) -> dict[str, Plain]:
    """Fill in a preset's values for options not given."""
    if "preset" not in given:
        return given
    chosen = given.pop("preset")
    known = {preset.name: preset.values for preset in presets}
    if not isinstance(chosen, str) or chosen not in known:
        found = (
            f"{name} has no preset {chosen!r}{nearest(str(chosen), known)}; its presets: {', '.join(known)}"
            if known
            else f"{name} has no presets: no paper states values other than its defaults"
        )
        raise PydanticCustomError(
            "component", "{message}", {"message": found, "sub": ("preset",), "found": chosen}
        )
    return {**known[chosen], **given}


class DatasetChoice(Component, registry=registry.datasets):
    """A data set."""


class PublicChoice(Component, registry=registry.datasets):
    """The data set whose training images become public data; its `samples` are those taken in all."""

    @classmethod
    def params(cls, name: str) -> type[BaseModel]:
        """Return the data set's options, with `samples` as the total."""
        return pydantic.create_model(
            f"{name}-public-options",
            __base__=super().params(name),
            samples=(
                int,
                Field(5000, ge=2, description="training images taken, without their labels"),
            ),
        )


@cache
def _with_seed(declared: type[BaseModel]) -> type[BaseModel]:
    """Return a partition's options plus an option `seed`, unless they have that one already."""
    if "seed" in declared.model_fields:
        return declared
    text = "who holds what (also for validation), apart from the run's seed; null: by that one"
    return pydantic.create_model(
        f"{declared.__name__}-with-seed",
        __base__=declared,
        seed=(
            int | None,
            Field(None, ge=0, description=text, exclude_if=lambda seed: seed is None),
        ),
    )


class PartitionChoice(Component, registry=registry.partitions):
    """A partition of the training data over the clients; its ``seed`` may be another than the run's."""

    @classmethod
    def params(cls, name: str) -> type[BaseModel]:
        """Return the partition's options, which always include `seed`."""
        return _with_seed(super().params(name))

    @property
    def _has_seed(self) -> bool:
        return "seed" not in self.registry.params(self.name).model_fields

    @property
    def arguments(self) -> dict[str, Plain]:
        """The options that are passed to the partition's function."""
        return {k: v for k, v in self.options.items() if not (self._has_seed and k == "seed")}

    def seed(self, run: int) -> int:
        """Return the seed of who holds what, given the run's."""
        own = self.options.get("seed") if self._has_seed else None
        return run if own is None else int(own)


class ModelChoice(Component, registry=registry.models):
    """A network."""


class AlgorithmChoice(Component, registry=registry.algorithms):
    """A federated method."""


Networks = Annotated[
    Annotated[dict[str, ModelChoice], Tag("named")]
    | Annotated[tuple[ModelChoice, ...], Tag("dealt")],
    Discriminator(lambda value: "dealt" if isinstance(value, list | tuple) else "named"),
]


class AugmentChoice(Component, registry=registry.augmentations):
    """A step of augmentation."""


_Usual = Literal["none", "flip", "crop", "resized", "weak", "strong"]


def _check_augment(value: Plain) -> Plain:
    """Refuse another name: a step stands in a list."""
    usual = get_args(_Usual)
    if isinstance(value, str) and value not in usual:
        known = registry.augmentations.names()
        meant = f": [{value}]" if value in known else nearest(value, [*usual, *known])
        raise PydanticCustomError(
            "augment",
            "one of {usual}, or a list of steps (flray list augmentations){meant}",
            {"usual": ", ".join(usual), "meant": meant},
        )
    return value


Augment = Annotated[
    Annotated[_Usual, Tag("[name]")] | Annotated[tuple[AugmentChoice, ...], Tag("[steps]")],
    Discriminator(lambda value: "[name]" if isinstance(value, str) else "[steps]"),
    BeforeValidator(_check_augment),
]


class MetricChoice(Component, registry=registry.metrics):
    """A metric besides the task's own."""

    @classmethod
    def params(cls, name: str) -> type[BaseModel]:
        """Return the metric's options, or say which task measures it."""
        if name in MEASURES_IN_WORDS and name not in cls.registry.names():
            raise FlrayError(
                "a task measures it by itself and only where it is defined (auc, sensitivity, specificity and "
                "f1: data.task: binary); leave it out here"
            )
        return super().params(name)


class LossChoice(Component, registry=registry.losses):
    """The loss of local training, in place of the task's."""


_UNFIT = {
    "lbfgs": "evaluates the loss several times in a step, and flray's steps have one batch and one loss",
    "muon": "changes matrices alone, no biases or convolutions",
    "rprop": "needs the same batch in each step",
    "sparseadam": "needs sparse gradients, which no network here has",
}
"""Why some of torch's optimisers are not taken."""


class OptimizerChoice(Component, registry=registry.optimizers):
    """An optimiser other than sgd, adam and adamw."""

    @classmethod
    def params(cls, name: str) -> type[BaseModel]:
        """Return the optimiser's options; those of the usual three are settings of ``local``."""
        if name.lower() in ("sgd", "adam", "adamw"):
            raise FlrayError(
                "its options are settings of local (momentum, weight_decay, betas): write optimizer: "
                f"{name.lower()}"
            )
        why = _UNFIT.get(name.lower())
        if why is not None and name not in cls.registry.names():
            raise FlrayError(
                f"torch's {name} {why}; take another (`flray list optimizers`) or register_optimizer yours"
            )
        return super().params(name)

    def __str__(self) -> str:
        return self.name


Optimizer = Annotated[
    Annotated[Literal["sgd", "adam", "adamw"], Tag("[name]")]
    | Annotated[OptimizerChoice, Tag("[component]")],
    Discriminator(lambda value: "[name]" if value in ("sgd", "adam", "adamw") else "[component]"),
]


class SamplerChoice(Component, registry=registry.samplers):
    """How a round's clients are chosen."""


class CallbackChoice(Component, registry=registry.callbacks):
    """A callback that is called after each round, with its options."""
