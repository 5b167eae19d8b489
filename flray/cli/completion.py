"""Completion after the Tab key: typer completes commands, this module the names that flray knows.

Install it once with ``flray --install-completion``.
"""

from pathlib import Path

from flray import registry
from flray.config import yaml_files

_PARTS = {
    "algorithm": "algorithms",
    "data": "datasets",
    "model": "models",
    "partition": "partitions",
    "public": "datasets",
}


def files(incomplete: str) -> list[str]:
    """Return YAML files of the folder at hand, and the names of those that come with flray."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    last = "" if incomplete.endswith("/") else Path(incomplete).name
    here = sorted(path for path in folder.glob("*") if path.name.startswith(last))
    found = [f"{path.as_posix()}/" if path.is_dir() else path.as_posix() for path in here]
    known = [name for name in yaml_files.names() if name.startswith(incomplete)]
    return [name for name in found if name.endswith((".yaml", ".yml", "/"))] + known


def files_and_datasets(incomplete: str) -> list[str]:
    """Return the completions of `files`, and the names of data sets."""
    return files(incomplete) + datasets(incomplete)


def datasets(incomplete: str) -> list[str]:
    """Return the data sets."""
    return [name for name in registry.datasets.names() if name.startswith(incomplete)]


def kinds(incomplete: str) -> list[str]:
    """Return the kinds of components that ``flray list`` accepts."""
    known = (*sorted(registry.ALL), "metrics", "papers", "settings")
    return [kind for kind in known if kind.startswith(incomplete)]


def names(incomplete: str) -> list[str]:
    """Return the components of every kind and the suites."""
    known = {name for entries in registry.ALL.values() for name in entries.names()}
    return [name for name in sorted({*known, *yaml_files.names()}) if name.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """Return settings of the first level, and after ``algorithm=`` and the like the names of such components."""
    from flray.config.experiment import Experiment

    path, equals, begun = incomplete.partition("=")
    kind = _PARTS.get(path.removeprefix("experiment."))
    if equals and kind is not None:
        return [f"{path}={name}" for name in registry.ALL[kind].names() if name.startswith(begun)]
    if equals:
        return []
    return [f"{name}=" for name in Experiment.model_fields if name.startswith(path)]


def runs(incomplete: str) -> list[str]:
    """Return runs and sweeps below ``runs/`` as NAME and NAME/NUMBER."""
    found = [path.parent for path in Path("runs").glob("*/*/*.json")]
    known = {f"{folder.parent.name}/{folder.name}" for folder in found}
    known |= {folder.parent.name for folder in found}
    return [name for name in sorted(known) if name.startswith(incomplete)]
