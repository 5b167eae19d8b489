"""How functions become commands, whose help texts stand in their docstrings; arguments of several commands.

The Tab key completes the names that flray knows, once ``flray --install-completion`` has run.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.models import ParameterInfo

from flray.errors import FlrayError

Function = TypeVar("Function", bound=Callable[..., None])
_MEANING = re.compile(r"^(\w+) : .*\n((?:    .*\n?)+)", re.MULTILINE)


def command(group: typer.Typer, name: str, example: str) -> Callable[[Function], Function]:
    """Return a decorator that makes a function a command.

    Parameters
    ----------
    group : Typer
        The commands that it belongs to.
    name : str
        The command's name.
    example : str
        A command line, which its help text ends with.
    """

    def decorate(function: Function) -> Function:
        about = inspect.getdoc(function) or ""
        told = {one: " ".join(text.split()) for one, text in _MEANING.findall(about)}
        kinds: dict[str, Any] = get_type_hints(function, include_extras=True)
        for one in kinds.keys() - {"return"}:
            infos = getattr(kinds[one], "__metadata__", ())
            info = next((info for info in infos if isinstance(info, ParameterInfo)), None)
            if info is None:
                # A truth value has no --no- form.
                flag = [f"--{one.replace('_', '-')}"] * (kinds[one] is bool)
                kinds[one] = Annotated[kinds[one], typer.Option(*flag, help=told[one])]
            elif info.help is None:
                info.help = told[one]
        function.__annotations__ = kinds
        about = about.partition("\n")[0]
        group.command(name, help=about, epilog=f"Example: {example}")(function)
        return function

    return decorate


def refuse_together(option: str, given: object, *others: tuple[str, object]) -> None:
    """Refuse an option with others that would have no effect beside it.

    Raises
    ------
    FlrayError
        If the option and another are given.
    """
    for name, value in others:
        if given and value:
            raise FlrayError(f"{name}: found with {option}; use one of them")


# Typer leaves out the completions that do not begin with the text typed so far.
_PARTS = {
    "algorithm": "algorithms",
    "data": "datasets",
    "model": "models",
    "partition": "partitions",
    "public": "datasets",
}


def files(incomplete: str) -> list[str]:
    """Return YAML files of the folder at hand, and the names of those that come with flray."""
    from flray.config import yaml_files

    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    here = sorted(folder.glob("*"))
    found = [f"{path.as_posix()}/" if path.is_dir() else path.as_posix() for path in here]
    return [*(n for n in found if n.endswith((".yaml", ".yml", "/"))), *yaml_files.names()]


def datasets(incomplete: str) -> list[str]:
    """Return the data sets."""
    from flray import registry

    return list(registry.datasets.names())


def kinds(incomplete: str) -> list[str]:
    """Return the kinds of components that ``flray list`` accepts."""
    from flray import registry

    return sorted({*registry.ALL, "papers", "settings"})


def names(incomplete: str) -> list[str]:
    """Return the components of every kind and the suites."""
    from flray import registry
    from flray.config import yaml_files

    known = {name for entries in registry.ALL.values() for name in entries.names()}
    return sorted({*known, *yaml_files.names()})


def settings(incomplete: str) -> list[str]:
    """Return settings of the first level, and after ``algorithm=`` and the like the names of such components."""
    from flray import registry
    from flray.config.experiment import Experiment

    path, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in Experiment.model_fields]
    kind = _PARTS.get(path.removeprefix("experiment."))
    return [f"{path}={name}" for name in registry.ALL[kind].names()] if kind else []


def runs(incomplete: str) -> list[str]:
    """Return runs and sweeps below ``runs/`` as NAME and NAME/NUMBER."""
    found = [path.parent for path in Path("runs").glob("*/*/*.json")]
    names = {f"{folder.parent.name}/{folder.name}" for folder in found}
    return sorted({*names, *(folder.parent.name for folder in found)})


ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE.yaml",
        help="the experiment or search space, or the name of one that comes with flray, such as quickstart",
        autocompletion=files,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="settings that replace the file's, for example local.lr=0.05",
        autocompletion=settings,
    ),
]


def _json_alone(wanted: bool) -> bool:
    """Leave the output to the JSON, if that is wanted: messages go to the error stream."""
    if wanted:
        from flray.cli import display

        display.to_stderr(True)
    return wanted


AsJson = Annotated[bool, typer.Option("--json", help="as JSON, for scripts", callback=_json_alone)]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="its folder, NAME/NUMBER, or NAME for the newest", autocompletion=runs
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="a running Ray cluster ('auto' on its head), or local; default: RAY_ADDRESS, else this machine"
    ),
]
OutputFolder = Annotated[str, typer.Option(help="folder of runs and sweeps")]
PluginFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="your own file in place of those of the settings (may be given several times)",
    ),
]
