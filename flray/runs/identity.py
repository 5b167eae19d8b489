"""What decides a run's bits: its settings, its data, and the code. Two runs of one identity are one run."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import sys
import uuid
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from flray import registry
from flray.config.experiment import Config, Experiment
from flray.federation.building import components_of
from flray.runs.resume_checks import may_change, settings_text

PACKAGE = Path(__file__).resolve().parents[1]
DECIDING = (
    "algorithms",
    "data",
    "devices",
    "federation",
    "functional",
    "metrics",
    "models",
    "samplers",
    "tasks",
    "bits.py",
    "rng.py",
    "trees.py",
)
"""Parts of flray that what is learnt and measured depends on."""
_BESIDES = ("federation/ray_backend",)
"""Parts of these that only decide where a task is run."""
_LIBRARIES = ("torch", "torchvision", "numpy", "scikit-learn", "pillow")
_LIBRARIES_OF = {("partitions", "flower"): ("flwr-datasets", "datasets")}
"""Libraries that decide what one component gives, and nothing else."""

Identity = dict[str, str]


def run_identity(experiment: Experiment, metric: str, data: str) -> Identity:
    """Return the identity of a run.

    Parameters
    ----------
    experiment : Experiment
        Its resolved settings; those that may change between a run's beginning and its resume
        (`flray.runs.resume_checks`) are left out.
    metric : str
        ``sweep.metric``, which its score is.
    data : str
        Fingerprint of the data set. Who holds what follows from it, the settings and the code.

    Returns
    -------
    dict of str to str
        SHA-256 of the ``settings``, the ``data`` and the ``code``; see `code_digest`.
    """
    settings = {
        key: value
        for key, value in settings_text(Config(experiment=experiment), "run").items()
        if not may_change(key)
    }
    settings["sweep.metric"] = metric
    if experiment.tracking.features:  # a run without them lacks figures
        settings["tracking.features"] = "True"
    text = json.dumps(settings, sort_keys=True)
    return {
        "settings": hashlib.sha256(text.encode()).hexdigest(),
        "data": data,
        "code": code_digest(experiment.plugins, components_of(experiment)),
    }


def code_digest(plugins: Iterable[str] = (), components: Iterable[tuple[str, str]] = ()) -> str:
    """Return the SHA-256 of the code that decides bits.

    That is the parts of flray in `DECIDING` without comments and docstrings, the user's files that
    are named as plug-ins or registered what is used (modules that these import are not looked at),
    and the versions of Python and the libraries that compute, or that a component is made of.

    Parameters
    ----------
    plugins : iterable of str
        The user's files.
    components : iterable of tuple of str
        Kind and name of each component that is used.
    """
    components = list(components)
    own: set[Path | None] = set(_files_of_components(components))
    own |= {Path(file) for file in plugins}
    parts = sorted(
        # What is in no file, as in a notebook, is nothing that another process could know again.
        uuid.uuid4().hex if file is None else hashlib.sha256(file.read_bytes()).hexdigest()
        for file in own
    )
    libraries = {name for component in components for name in _LIBRARIES_OF.get(component, ())}
    parts += [f"{name} {metadata.version(name)}" for name in sorted(libraries)]
    return hashlib.sha256("\n".join([_package_digest(), *parts]).encode()).hexdigest()


@cache
def _package_digest() -> str:
    digest = hashlib.sha256()
    python = ".".join(platform.python_version_tuple()[:2])
    versions = {name: metadata.version(name).partition("+")[0] for name in _LIBRARIES}
    digest.update(json.dumps({"python": python, **versions}, sort_keys=True).encode())
    for file in _modules():
        digest.update(f"\n{file.relative_to(PACKAGE).as_posix()}\n".encode())
        digest.update(_essence(file.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()


def _modules() -> Iterator[Path]:
    besides = tuple(PACKAGE / part for part in _BESIDES)
    for part in DECIDING:
        path = PACKAGE / part
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            if not any(file.is_relative_to(folder) for folder in besides):
                yield file


def _essence(source: str) -> str:
    """Return a module's code without comments, docstrings and line numbers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and (ast.get_docstring(node, clean=False) is not None):
            node.body = node.body[1:]
    return ast.dump(tree)


def _files_of_components(components: Iterable[tuple[str, str]]) -> Iterator[Path | None]:
    """Yield the files of those components that are the user's own; None for one that is in no file."""
    for kind, name in components:
        item = registry.ALL[kind].added().get(name)
        if item is not None:
            module = sys.modules.get(getattr(item, "__module__", ""))
            file = getattr(module, "__file__", None)
            yield Path(file) if file is not None and Path(file).is_file() else None
