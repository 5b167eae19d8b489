"""Methods whose paper and released code differ: one switch for all differences, and a setting for each."""

from typing import Any, Literal, Self, TypeVar, cast

from flray.config.experiment import Experiment
from flray.errors import ConfigError
from flray.registry import Params, hyper

T = TypeVar("T")


def either(both: tuple[object, object], doc: str, source: str, **limits: Any) -> Any:
    """Declare a hyper-parameter whose default depends on the variant: null stands for the variant's value.

    Parameters
    ----------
    both : (object, object)
        The value in the paper, and in the authors' released code.
    doc, source : str
        As for `flray.registry.hyper`.
    **limits : Any
        Passed to `pydantic.Field`.
    """
    field = hyper(None, doc, source, **limits)
    field.json_schema_extra["variants"] = list(both)
    return field


class VariantParams(Params):
    """Hyper-parameters with a ``variant`` switch, some of them declared by `either`."""

    variant: Literal["paper", "released"] = hyper(
        "paper",
        "which reading is run where the text and the authors' released code differ",
        "a decision: the text",
    )

    def resolved(self) -> Self:
        """Fill in the variant's values for settings that are not given."""
        column = ("paper", "released").index(self.variant)
        declared = {
            name: cast(dict[str, Any], field.json_schema_extra).get("variants")
            for name, field in type(self).model_fields.items()
        }
        return self.filled(**{name: both[column] for name, both in declared.items() if both})


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
            why = f"{config.algorithm.name} trains with {value} here; write algorithm.{name}: {given} instead"
            raise ConfigError(f"experiment.local.{name}", str(given), why)
