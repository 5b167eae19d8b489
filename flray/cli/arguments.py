"""Arguments that several commands take."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer


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
