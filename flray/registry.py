"""Names a YAML file may use: algorithms, data sets, models, partitions, augmentations, built in or the user's own.

A registered function's keyword-only parameters are its options in the YAML file; their annotations and
defaults become a pydantic model, so that options are checked and shown without being written twice.
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from flray.errors import FlrayError, nearest

T = TypeVar("T")


class Preset:
    """What one paper used for a method, where it states it.

    Parameters
    ----------
    name : str
        The paper: fedskc, fcclplus, fedco2, lgmix or the one of another source.
    source : str
        Table, section or released code.
    **values : Any
        Options by name.
    """

    def __init__(self, name: str, source: str, **values: Any) -> None:
        self.name, self.source, self.values = name, source, values


class Params(BaseModel):
    """Options of a registered component: unknown names are refused, values cannot change.

    Attributes
    ----------
    presets : tuple of Preset
        Sets of values by paper, chosen in YAML as ``{name: fedprox, preset: fcclplus}``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    presets: ClassVar[tuple[Preset, ...]] = ()

    def resolved(self) -> Self:
        """Return the options with every value filled in that follows from another one. Default: as they are."""
        return self


def hyper(default: Any, doc: str, source: str, **limits: Any) -> Any:
    """Declare a hyper-parameter of an algorithm with its default, meaning and the default's source.

    Parameters
    ----------
    default : Any
        The default value.
    doc : str
        One sentence: what it does.
    source : str
        Where the default comes from: a paper's table or equation, or the authors' code.
    **limits : Any
        Passed on to `pydantic.Field` (``ge``, ``le``, ``gt``, ``lt``).
    """
    return Field(default=default, description=doc, json_schema_extra={"source": source}, validate_default=True,
                 **limits)


class Registry:
    """Components of one kind by name.

    Parameters
    ----------
    kind : str
        Singular noun for messages, for example ``"model"``.
    package : str
        Module that registers the built-in ones; imported on first use.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self._entries: dict[str, Any] = {}
        self._builtin: set[str] = set()
        self._loaded = False

    def register(self, *names: str) -> Callable[[T], T]:
        """Return a decorator that registers a function or class under one or several names."""

        def decorate(item: T) -> T:
            self._load()
            for name in names:
                self._entries[name] = item
                self._builtin.discard(name)
                if getattr(item, "__module__", "").startswith("flray."):
                    self._builtin.add(name)
            return item

        return decorate

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._load()
        return sorted(self._entries)

    def get(self, name: str) -> Any:
        """Return the component called `name`.

        Raises
        ------
        FlrayError
            If there is none; the message names the nearest one.
        """
        self._load()
        if name not in self._entries:
            raise FlrayError(
                f"unknown {self.kind} {name!r}{nearest(name, self._entries)} (`flray list {self.kind}s` shows all)"
            )
        return self._entries[name]

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Return what the component called `name` returns.

        Raises
        ------
        FlrayError
            If there is none, or if it is the user's own and raises: with the line of the user's file.
        """
        item = self.get(name)
        try:
            return item(*args, **options)
        except FlrayError:
            raise
        except Exception as error:
            if name in self._builtin:
                raise
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if frame.filename == item.__code__.co_filename] \
                if inspect.isfunction(item) else []
            frame = (own or list(frames))[-1]
            raise FlrayError(f"{self.kind} {name!r} raised {type(error).__name__}: {error} "
                             f"({frame.filename}:{frame.lineno})") from error

    def params(self, name: str) -> type[BaseModel]:
        """Return the pydantic model of the options of `name`."""
        item = self.get(name)
        declared = getattr(item, "Params", None)
        return declared if declared is not None else signature_model(item, name)

    def added(self) -> dict[str, Any]:
        """Return what the user registered, to be carried into other processes."""
        self._load()
        return {name: item for name, item in self._entries.items() if name not in self._builtin}

    def add(self, entries: Mapping[str, Any]) -> None:
        """Register what `added` returned in another process."""
        self._load()
        self._entries.update(entries)

    def _load(self) -> None:
        if not self._loaded:
            self._loaded = True
            importlib.import_module(self.package)


def signature_model(item: Callable[..., Any], name: str) -> type[BaseModel]:
    """Return a pydantic model of a function's keyword-only parameters."""
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(item, eval_str=True).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
            fields[parameter.name] = (annotation, ... if parameter.default is parameter.empty else parameter.default)
    return create_model(f"{name}-options", __base__=Params, **fields)


algorithms = Registry("algorithm", "flray.algorithms")
datasets = Registry("dataset", "flray.data")
models = Registry("model", "flray.models")
partitions = Registry("partition", "flray.data")
augmentations = Registry("augmentation", "flray.data")

register_algorithm = algorithms.register
register_dataset = datasets.register
register_model = models.register
register_partition = partitions.register
register_augmentation = augmentations.register
ALL = {"algorithms": algorithms, "datasets": datasets, "models": models, "partitions": partitions,
       "augmentations": augmentations}
