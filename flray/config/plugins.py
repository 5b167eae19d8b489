"""Plug-ins: the user's Python files named by a configuration; their errors are reported in one line."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from flray.errors import ConfigError, brief

MODULE_PREFIX = "flray_plugin_"
"""Prefix of the module names of plug-ins."""


def load_plugins(paths: Iterable[str], base: Path | None = None) -> list[Path]:
    """Run the user's own Python files, which register components, and return their paths.

    Parameters
    ----------
    paths : iterable of str
        Files; relative ones are looked up beside the YAML file, then in the current folder.
    base : Path, optional
        Folder of the YAML file.

    Raises
    ------
    ConfigError
        If a file is missing, is not Python, raises or ends the process; it names file and line.
    """
    return [_execute(text, _locate(text, base)) for text in paths]


def _locate(text: str, base: Path | None) -> Path:
    candidates = [folder / text for folder in (base, Path.cwd()) if folder is not None]
    try:
        path = next((c for c in candidates if c.is_file()), None)
    except (OSError, ValueError) as error:
        raise ConfigError("experiment.plugins", repr(text), f"it cannot be read: {error}") from None
    if path is None:
        raise ConfigError(
            "experiment.plugins",
            repr(text),
            "no such file; looked in " + " and ".join(str(c.parent) for c in candidates),
        )
    return path


def _execute(text: str, path: Path) -> Path:
    name = f"{MODULE_PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("experiment.plugins", repr(text), "a Python file is needed")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise  # a file that raises it cannot be told from a user who stops the command
    except BaseException as error:
        del sys.modules[name]
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        if not lines and isinstance(error, SyntaxError):
            lines = [error.lineno]
        where = f" (line {lines[-1]})" if lines else ""
        raise ConfigError(
            "experiment.plugins", repr(text), f"running it raised {brief(error)}{where}"
        ) from error
    return path.resolve()
