"""How functions become commands, whose help texts stand in their docstrings; arguments that several commands take."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.models import ParameterInfo

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


def complete(which: str) -> Callable[[str], list[str]]:
    """Return the function that completes an argument in a shell; see `flray.cli.completion`."""

    def words(incomplete: str) -> list[str]:
        from flray.cli import completion

        found: list[str] = getattr(completion, which)(incomplete)
        return found

    return words


ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE.yaml",
        help="the experiment or search space, or the name of one that comes with flray, such as quickstart",
        autocompletion=complete("files"),
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="settings that replace the file's, for example local.lr=0.05",
        autocompletion=complete("settings"),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="as JSON, for scripts")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="its folder, NAME/NUMBER, or NAME for the newest",
        autocompletion=complete("runs"),
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
