"""Registries of the names in a YAML file: methods, data sets, networks, metrics and so on, built in or own.

A registered function's keyword-only parameters are its options in the YAML file; their annotations
and defaults become a pydantic model, so that options are checked and shown without being written
twice.

Names, first lines, options and a method's declarations need neither torch nor another package that computes, and a
command that only shows or checks them would wait seconds for these. So until a component is made its module is run as
a second module, with a stand-in for each such package, which gives its outline; `tests/test_start.py` compares the
outline with the module that is imported.
"""

import builtins
import contextlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from flray.errors import ConfigError, DataError, FlrayError, brief, nearest

T = TypeVar("T")


class Preset:
    """The values that one paper states for a method.

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
    """Options of a registered component: unknown names are rejected, values cannot change.

    Attributes
    ----------
    presets : tuple of Preset
        Sets of values by paper, chosen in YAML as ``{name: fedprox, preset: fcclplus}``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)
    presets: ClassVar[tuple[Preset, ...]] = ()

    def resolved(self) -> Self:
        """Return the options with derived values filled in. Default: unchanged."""
        return self

    def filled(self, **values: Any) -> Self:
        """Return the options with values in place of those that are null."""
        return self.model_copy(
            update={name: one for name, one in values.items() if getattr(self, name) is None}
        )


def hyper(default: Any, doc: str, source: str, **limits: Any) -> Any:
    """Declare a hyper-parameter of an algorithm with its default, meaning and the default's source.

    Parameters
    ----------
    default : Any
        The default value.
    doc : str
        Its meaning, in one sentence.
    source : str
        Origin of the default: a paper's table or equation, or the authors' code.
    **limits : Any
        Passed to `pydantic.Field` (``ge``, ``le``, ``gt``, ``lt``).
    """
    return Field(
        default=default,
        description=doc,
        json_schema_extra={"source": source},
        validate_default=True,
        **limits,
    )


class Registry:
    """Components of one kind by name.

    Parameters
    ----------
    kind : str
        Singular noun for messages, for example ``"model"``.
    package : str
        Module, or package of modules, that registers the built-in ones; imported on first use. Until
        then they are outlines, because importing them takes torch.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self.plural = f"{kind}{'es' if kind.endswith('s') else 's'}"
        self._entries: dict[str, Any] = {}
        self._signatures: dict[str, tuple[object, type[BaseModel]]] = {}
        self._outlines: dict[str, Any] = {}
        self._builtin: set[str] = set()
        self._loaded = False

    def register(self, *names: str) -> Callable[[T], T]:
        """Return a decorator that registers a function or class under one or several names.

        Raises
        ------
        TypeError
            If names are missing, a name is not a one-line text, or the component is not callable.
        """
        if not names or not all(
            isinstance(name, str) and name and name.isprintable() for name in names
        ):
            raise TypeError(
                f'a {self.kind} is registered under a name: @register_{self.kind}("mine")'
            )

        def decorate(item: T) -> T:
            if not callable(item):
                raise TypeError(
                    f"{self.kind} {names[0]!r} is {type(item).__name__}, not a function or a class"
                )
            if getattr(item, "__module__", "").startswith(PREFIX):
                self._outlines.update(dict.fromkeys(names, item))
                return item
            builtin = getattr(item, "__module__", "").startswith("flray.")
            if not builtin:  # which is to take the place of a built-in one of its name
                self.load()
            self._entries.update(dict.fromkeys(names, item))
            self._builtin = self._builtin | {*names} if builtin else self._builtin - {*names}
            return item

        return decorate

    def names(self) -> list[str]:
        """Return all names, sorted."""
        # The outlines first: to ask for them may import, which fills the entries.
        return sorted({*self._outlined(), *self._entries})

    def outline(self, name: str) -> Any:
        """Return the component called `name`; before the built-in ones are imported, its outline.

        Its docstring, ``Params`` or signature of options and a method's declarations are the same,
        as the module says.

        Raises
        ------
        FlrayError
            If there is none.
        """
        return self._entries.get(name) or self._outlined().get(name) or self.get(name)

    def get(self, name: str) -> Any:
        """Return the component called `name`.

        Raises
        ------
        FlrayError
            If there is none; the message names the nearest one.
        """
        if name not in self.names():
            raise FlrayError(
                f"unknown {self.kind} {name!r}{nearest(name, self.names())} (`flray list {self.plural}` shows all)"
            )
        self.load()
        return self._entries[name]

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call the component called `name`.

        Raises
        ------
        FlrayError
            If there is none, or if it is the user's own and raises: with the line of the user's
            file.
        """
        item = self.get(name)
        with self.guarded(name):
            return item(*args, **options)

    @contextlib.contextmanager
    def guarded(self, name: str, *passing: type[BaseException]) -> Iterator[None]:
        """Report an error of the user's own component in one line, with the line of the user's file.

        Parameters
        ----------
        name : str
            The component.
        *passing : type of Exception
            Exceptions to pass unchanged.

        Raises
        ------
        FlrayError
            Instead of anything but a FlrayError that the user's own component `name` raises.
        """
        try:
            yield
        except (Exception, SystemExit) as error:
            if isinstance(error, (FlrayError, *passing)) or not self.is_own(name):
                raise
            raise blame_component(error, [(self, name)]) from error

    def is_own(self, name: str) -> bool:
        """Return whether the component called `name` is the user's own."""
        return name in self._entries and name not in self._builtin

    def params(self, name: str) -> type[BaseModel]:
        """Return the pydantic model of the options of `name`."""
        item = self.outline(name)
        with self.guarded(name):
            declared = getattr(item, "Params", None)
            if declared is not None and not (
                inspect.isclass(declared) and issubclass(declared, BaseModel)
            ):
                raise TypeError("its Params are no class of flray.registry.Params")
            if declared is not None:
                return declared
            known = self._signatures.get(name)
            if known is None or known[0] is not item:  # a sweep asks for every trial
                known = self._signatures[name] = (item, signature_model(item, name))
            return known[1]

    def checked(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a component's options with its defaults.

        Raises
        ------
        ConfigError
            If one is unknown or has a value that is not allowed.
        """
        model = self.params(name)
        try:
            return dict(model(**options))
        except ValidationError as error:
            first = error.errors()[0]
            path = ".".join([self.kind, name, *map(str, first["loc"])])
            allowed = ", ".join(model.model_fields) or "none"
            found = f"{first['msg']} (options: {allowed})"
            raise ConfigError(path, repr(first["input"]), found) from None

    def added(self) -> dict[str, Any]:
        """Return the user's components, for registration in other processes."""
        return {name: item for name, item in self._entries.items() if name not in self._builtin}

    def add(self, entries: Mapping[str, Any]) -> None:
        """Register the user's components of another process."""
        self.load()
        self._entries.update(entries)
        self._builtin = self._builtin - entries.keys()  # as there, where it was registered

    def _outlined(self) -> Mapping[str, Any]:
        """Return the outlines of the built-in components; none once these are imported."""
        if "torch" in sys.modules:
            self.load()
        if self._loaded:
            return {}
        run_all(self.package)
        return self._outlines

    def load(self) -> None:
        """Import the modules of the built-in components, which register them."""
        if not self._loaded:
            self._loaded = True
            try:
                for name in _modules(self.package):
                    importlib.import_module(name)
            except BaseException:  # Ctrl-C in a notebook, which goes on
                self._loaded = False
                raise


def blame_component(error: BaseException, own: Sequence[tuple[Registry, str]]) -> FlrayError:
    """Return an error in one line, naming the user's component that raised it.

    Parameters
    ----------
    error : BaseException
        The error.
    own : sequence of (Registry, str)
        The components in use; at least one. The one in the traceback is named, else
        the last.
    """
    frames = traceback.extract_tb(error.__traceback__)
    for registry, name in own:
        item = registry.get(name)
        home = getattr(sys.modules.get(getattr(item, "__module__", None) or ""), "__file__", None)
        file = item.__code__.co_filename if inspect.isfunction(item) else home
        lines = [frame for frame in frames if frame.filename == file]
        if lines:
            break
    place = (lines or list(frames))[-1:]
    where = f" ({place[0].filename}:{place[0].lineno})" if place else ""
    return FlrayError(f"{registry.kind} {name!r} raised {brief(error)}{where}")


def signature_model(item: Callable[..., Any], name: str) -> type[BaseModel]:
    """Return a pydantic model of a function's keyword-only parameters."""
    fields: dict[str, Any] = {
        one.name: (
            Any if one.annotation is one.empty else one.annotation,
            ... if one.default is one.empty else one.default,
        )
        for one in inspect.signature(item, eval_str=True).parameters.values()
        if one.kind is one.KEYWORD_ONLY
    }
    return create_model(f"{name}-options", __base__=Params, **fields)


def require_package(user: str, package: str, extra: str) -> None:
    """Refuse a component whose package is not installed, naming the extra of flray that has it.

    Raises
    ------
    DataError
        If the package is missing.
    """
    if importlib.util.find_spec(package) is None:
        raise DataError(f"{user} needs the package {package}; pip install 'flray[{extra}]'")


def takes(function: Any, positional: int) -> bool:
    """Return whether a function takes `positional` positional arguments; True if `function` is None.

    Parameters
    ----------
    function : callable or None
        A function or class.
    positional : int
        The number of arguments, including ``self`` if the function is a method.
    """
    if function is None:
        return True
    signature = inspect.signature(function)
    options = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    try:
        signature.bind(*[None] * positional, **dict.fromkeys(options))
    except TypeError:
        return False
    return True


algorithms = Registry("algorithm", "flray.algorithms")
datasets = Registry("dataset", "flray.data.datasets")
models = Registry("model", "flray.models")
partitions = Registry("partition", "flray.data.partitions")
augmentations = Registry("augmentation", "flray.data.augment")
metrics = Registry("metric", "flray.metrics.builtin")
samplers = Registry("sampler", "flray.samplers")
callbacks = Registry("callback", "flray.callbacks")
losses = Registry("loss", "flray.tasks.base")
optimizers = Registry("optimizer", "flray.algorithms.common.optimizers")
tasks = Registry("task", "flray.tasks")

register_algorithm = algorithms.register
register_dataset = datasets.register
register_model = models.register
register_partition = partitions.register
register_augmentation = augmentations.register
register_metric = metrics.register
register_sampler = samplers.register
register_callback = callbacks.register
register_loss = losses.register
register_optimizer = optimizers.register
register_task = tasks.register
ALL = {
    one.plural: one
    for one in (
        *(algorithms, datasets, models, partitions),
        *(augmentations, losses, metrics, optimizers, samplers, callbacks, tasks),
    )
}


PREFIX = "flray.registry:"
"""Before the names of modules that were run with stand-ins."""
_ROOT = Path(__file__).resolve().parents[1]
_LIGHT = ("flray.config", "flray.errors", "flray.registry")
_REAL = (sys.stdlib_module_names - {"importlib"}) | {"pydantic", "pydantic_core"}
"""Packages that a module gets; with importlib it would import others."""


class _Anything(ABCMeta):
    """The type of the stand-in, whose attributes, items and results are the stand-in itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn

    def __getitem__(cls, item: object) -> Any:
        return _StandIn

    def __call__(cls, *args: object, **options: object) -> Any:
        return _StandIn

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class _StandIn(metaclass=_Anything):
    """In place of a package that computes, and of anything in it."""


class _Module(ModuleType):
    """A module that is run with stand-ins; a package's modules are its attributes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _import(f"{self.__name__.removeprefix(PREFIX)}.{name}", {}, {}, ("__name__",))


def _modules(package: str) -> list[str]:
    """Return the names of the modules in a package, or of the one module of that name."""
    folder = _ROOT.joinpath(*package.split("."))
    return [f"{package}.{one.name}" for one in pkgutil.iter_modules([str(folder)])] or [package]


@cache
def run_all(package: str) -> None:
    """Run the modules of a package with stand-ins, which register outlines."""
    for name in _modules(package):
        outline(name)


def outline(name: str) -> ModuleType:
    """Return a module of flray that was run with stand-ins."""
    if PREFIX + name in sys.modules:
        return sys.modules[PREFIX + name]
    spec = PathFinder.find_spec(name, [str(_ROOT.joinpath(*name.split(".")[:-1]))])
    if spec is None or spec.loader is None:
        raise ImportError(f"flray has no module {name}")
    module = sys.modules[PREFIX + name] = _Module(PREFIX + name)
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
    module.__file__, module.__path__ = spec.origin, []
    exec(spec.loader.get_code(name), vars(module))  # type: ignore[attr-defined]
    return module


def _import(name: str, *context: Any) -> Any:
    """Import as a module that is run with stand-ins does."""
    first = name.partition(".")[0]
    if name == "flray":
        return _Module(name)
    if first in _REAL or name.startswith(_LIGHT):
        return importlib.__import__(name, *context)
    return outline(name) if first == "flray" else _StandIn
