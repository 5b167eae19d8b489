"""Methods whose paper and released code differ: one switch for all differences, and a setting for each."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self, TypeVar

from flray.config.experiment import Experiment
from flray.errors import ConfigError
from flray.registry import Params, hyper

T = TypeVar("T")


class VariantParams(Params):
    """Hyper-parameters with a ``variant`` switch.

    Attributes
    ----------
    deviations : dict of str to (object, object)
        For each hyper-parameter whose default depends on the variant, its value in the paper and in
        the authors' released code. Such a hyper-parameter's own default is null, which stands for
        the variant's value.
    """

    deviations: ClassVar[Mapping[str, tuple[object, object]]] = {}

    variant: Literal["paper", "released"] = hyper(
        "paper",
        "which reading is run where the text and the authors' released code differ",
        "a decision: the text",
    )

    def resolved(self) -> Self:
        """Fill in the variant's values for settings that are not given."""
        column = ("paper", "released").index(self.variant)
        return self.model_copy(
            update={
                name: values[column]
                for name, values in self.deviations.items()
                if getattr(self, name) is None
            }
        )


def require(value: T | None) -> T:
    """Return an option that `Params.resolved` has filled in, which its declaration as null does not tell."""
    assert value is not None
    return value


def refuse_overridden(config: Experiment, **values: object) -> None:
    """Refuse settings of ``local`` that the method would overwrite.

    Parameters
    ----------
    config : Experiment
        The experiment.
    **values : object
        The method's value of each setting, or None.

    Raises
    ------
    ConfigError
        If a setting is neither the engine's default nor the method's value.
    """
    for name, value in values.items():
        given, default = getattr(config.local, name), type(config.local).model_fields[name].default
        if value is not None and given not in (default, value):
            raise ConfigError(
                f"experiment.local.{name}",
                str(given),
                f"{config.algorithm.name} trains with {value} here; write algorithm.{name}: "
                f"{given} instead",
            )
