"""Read YAML files, one laid over another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from flray.arms import merged
from flray.errors import FlrayError, nearest

PARTS = ("experiment", "arms", "space", "sweep", "paper")


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML file's mapping.

    Raises
    ------
    FlrayError
        If the file is missing, is not YAML, or holds something other than a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = nearest(path.name, (p.name for p in path.parent.glob("*.y*ml"))) if path.parent.is_dir() else ""
        raise FlrayError(f"{path}: no such file{near}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FlrayError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise FlrayError(f"{path}{where}: not valid YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(content, dict):
        raise FlrayError(f"{path}: found {type(content).__name__}; "
                         f"a mapping with the parts {', '.join(PARTS)} is needed")
    return content


def read_with_base(path: Path, within: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return a YAML file's mapping laid over those of the files it names as ``base``, later ones over earlier ones.

    Raises
    ------
    FlrayError
        If a file cannot be read, or is its own base.
    """
    if path.resolve() in within:
        raise FlrayError(f"{path}: found itself as its base; take one `base` out")
    content = read_yaml(path)
    bases = content.pop("base", None) or []
    joined: dict[str, Any] = {}
    for name in [bases] if isinstance(bases, str) else bases:
        joined = merged(joined, read_with_base(path.parent / str(name), (*within, path.resolve())))
    return dict(merged(joined, content))
