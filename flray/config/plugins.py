"""Plug-ins: the user's Python files named by a configuration, and all that these import."""

import ast
import hashlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

from flray.errors import ConfigError, brief
from flray.files.border import FILE_BYTES, read

MODULE_PREFIX = "flray_plugin_"
"""Prefix of the module names of plug-ins."""
ENTRY_POINTS = "flray.plugins"
"""Group of the entry points by which installed packages name a module of theirs that registers components."""


def load_plugins(paths: Iterable[str], base: Path | None = None) -> list[Path]:
    """Run the user's own Python files, which register components, and return their paths.

    Parameters
    ----------
    paths : iterable of str
        Files; relative ones are looked up beside the YAML file, then in the current folder. Or names of
        installed packages' entry points in the group `ENTRY_POINTS`, whose modules are run as files.
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
        raise _refused(text, f"it cannot be read: {error}") from None
    if path is not None:
        return path
    installed = {one.name: one.module for one in metadata.entry_points(group=ENTRY_POINTS)}
    if text not in installed:
        places = " and ".join(str(c.parent) for c in candidates)
        names = f", and installed packages name {', '.join(sorted(installed))}" if installed else ""
        raise _refused(text, f"no such file; looked in {places}{names}")
    try:
        spec = importlib.util.find_spec(installed[text])  # runs the packages that it is in
    except Exception as error:
        raise _refused(
            text, f"its module {installed[text]} cannot be found: {brief(error)}"
        ) from None
    if spec is None or spec.origin is None:
        raise _refused(
            text, f"its module {installed[text]} is not installed; install the package anew"
        )
    return Path(spec.origin)


def _refused(text: str, why: str) -> ConfigError:
    return ConfigError("experiment.plugins", repr(text), why)


def _execute(text: str, path: Path) -> Path:
    name = f"{MODULE_PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _refused(text, "a Python file is needed")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = set(sys.modules)
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
        raise _refused(text, f"running it raised {brief(error)}{where}") from error
    path = path.resolve()
    new = [sys.modules[one] for one in sys.modules.keys() - before]
    imported = {file for one in new if (file := file_of(one)) is not None and _is_users(file)}
    earlier = _sources[path].imported if path in _sources else frozenset()
    for file in imported:
        _sources[file] = _read(file)
    _sources[path] = _read(path, earlier | imported)
    return path


@dataclass(frozen=True)
class _Source:
    """A file when it was imported: its digest, the modules that it names, and the files that its run imported."""

    sha256: str
    names: tuple[tuple[Path | None, str], ...]
    imported: frozenset[Path] = frozenset()


_sources: dict[Path, _Source] = {}
_LIBRARIES = [
    Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")
]


def user_code(files: Iterable[Path]) -> tuple[dict[str, str], set[str]]:
    """Return the SHA-256 of files of the user's and of all that they import, and the libraries among that.

    A file is read when it is first imported, or first seen; what is changed later is not what runs.

    Parameters
    ----------
    files : iterable of Path
        Plug-ins, and modules that registered components.

    Returns
    -------
    digests : dict of str to str
        By path.
    libraries : set of str
        Names of installed top-level packages that are imported; none of Python's own.
    """
    digests: dict[str, str] = {}
    libraries: set[str] = set()
    left = [file.resolve() for file in files]
    while left:
        file = left.pop()
        if str(file) in digests:
            continue
        source = _sources.setdefault(file, _read(file))
        digests[str(file)] = source.sha256
        left += source.imported
        for folder, name in source.names:
            found = list(_files_of(name, folder))
            left += found
            if not found and folder is None:
                libraries.add(name.partition(".")[0])
    return dict(sorted(digests.items())), libraries - set(sys.stdlib_module_names) - {"flray"}


def file_of(module: ModuleType | None) -> Path | None:
    """Return a module's file; None if it has none."""
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if isinstance(name, str) and Path(name).is_file() else None


def _read(file: Path, imported: frozenset[Path] | set[Path] = frozenset()) -> _Source:
    content = read(file, FILE_BYTES)
    try:
        names = tuple(dict.fromkeys(_imports(ast.parse(content), file)))
    except (SyntaxError, ValueError):  # compiled, or not Python
        names = ()
    return _Source(hashlib.sha256(content).hexdigest(), names, frozenset(imported))


def _imports(tree: ast.AST, file: Path) -> Iterator[tuple[Path | None, str]]:
    """Yield the modules that a file may import; of relative imports also the folder that they are in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((None, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folder = file.parents[node.level - 1] if node.level else None
            start = f"{node.module}." if node.module else ""
            yield from ((folder, f"{start}{alias.name}") for alias in node.names)


def _files_of(name: str, folder: Path | None) -> Iterator[Path]:
    """Yield the user's files that an import of a module reads: the module's and its packages'."""
    first, *rest = name.split(".")
    if folder is None:
        if first == "flray" or first in sys.stdlib_module_names:
            return
        try:
            spec = importlib.util.find_spec(first)
        except (ImportError, ValueError):
            return
        origin = Path(spec.origin) if spec is not None and spec.origin else None
        if origin is not None and origin.is_file() and _is_users(origin.resolve()):
            yield origin.resolve()
        places = [Path(one) for one in (spec and spec.submodule_search_locations) or ()]
        folders = [one for one in places if _is_users(one.resolve() / "module.py")]
    else:
        folders, rest = [folder], [first, *rest]
    for part in rest:
        for place in folders:
            inside = place / part / "__init__.py", place / f"{part}.py"
            yield from (one.resolve() for one in inside if one.is_file())
        folders = [place / part for place in folders]


def _is_users(file: Path) -> bool:
    """Return whether a file is neither Python's, nor an installed package's, nor flray's."""
    libraries = (*_LIBRARIES, Path(__file__).resolve().parents[1])
    return not any(file.is_relative_to(folder) for folder in libraries)
