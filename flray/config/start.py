"""Files that settings name: weights to start from, a split of the samples, and the user's own Python files.

The first two have to stay as they are. Of plug-ins, all that they import counts as the run's code.
"""

import ast
import hashlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from flray import registry
from flray.config.sections import Section
from flray.config.yaml_files import read_yaml
from flray.errors import ConfigError, DataError, FlrayError, brief
from flray.files import FILE_BYTES, MAPPING, WEIGHTS_BYTES, check_name, numbered, read, read_json
from flray.files.tracking_address import at_home

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def read_known(field: str, path: str, sha256: str, most: int = WEIGHTS_BYTES) -> bytes:
    """Return the content of a file that has to stay as it was, as data have to.

    Parameters
    ----------
    field : str
        The setting, for messages.
    path : str
        The file's full path.
    sha256 : str
        Its digest at the beginning.
    most : int
        Bytes that are read at most.

    Raises
    ------
    ConfigError
        If it is gone, or is not the one that was there at the beginning.
    """
    try:
        data = read(Path(path), most)
    except (OSError, DataError) as error:
        why = f"it cannot be read: {getattr(error, 'strerror', error)}; every machine that trains needs it there"
        raise ConfigError(field, path, why) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise ConfigError(
            field,
            path,
            f"it is not the file that was there at the beginning (SHA-256 {digest[:12]}, then "
            f"{sha256[:12]}); put that back, or start a new run",
        )
    return data


class Weights(Section):
    """A file of weights. From then on it has to stay as it was, as data have to."""

    weights: str = Field(min_length=1)
    """its full path"""
    sha256: Digest
    """its digest"""

    def read(self, field: str) -> bytes:
        """Return the file's content; see `read_known`."""
        return read_known(field, self.weights, self.sha256)


class SplitFile(Section):
    """A file that says who holds which samples."""

    file: str = Field(min_length=1)
    """its full path"""
    sha256: Digest
    """its digest"""

    def read(self, field: str) -> bytes:
        """Return the file's content; see `read_known`."""
        return read_known(field, self.file, self.sha256, FILE_BYTES)


def _resolver(
    kind: str,
    absent: str,
    needed: str,
    saved: Callable[[Any], bool],
    find: Callable[[str], Any],
    **schema: Any,
) -> BeforeValidator:
    """Return a validator that puts a file with its digest, as `find` returns them, in place of a path."""

    def resolve(value: Any) -> Any:
        if saved(value):
            return value  # of a configuration that was saved
        try:
            if not isinstance(value, str):
                raise ValueError
            return find(at_home(value))
        except PydanticCustomError:
            raise
        except FlrayError as error:
            why = f"{error}; {needed}" if kind == "split" else str(error)
        except (OSError, ValueError, LookupError, StopIteration, TypeError, AttributeError):
            why = f"{absent}; {needed}"
        raise PydanticCustomError(kind, "{why}", {"why": why})

    return BeforeValidator(resolve, **schema)


def _known(path: Path, key: str = "weights", most: int = WEIGHTS_BYTES) -> dict[str, str]:
    """Return a file's full path, under `key`, with its digest."""
    return {key: str(path.resolve()), "sha256": hashlib.sha256(read(path, most)).hexdigest()}


def _weights_of(text: str) -> dict[str, str]:
    """Return the file that a run or a path stands for, with its digest."""
    run = next((p for p in (Path(text), Path("runs") / text) if p.is_dir()), None)
    if run is not None and not (run / "config.yaml").is_file():  # the newest of its name
        run /= numbered(path.parent.name for path in run.glob("*/config.yaml"))[-1]
    return _known(Path(text) if run is None else _newest_checkpoint(run))


def _newest_checkpoint(run: Path) -> Path:
    """Return the file of the server's side of a run's newest checkpoint."""
    content = read_yaml(run / "config.yaml")
    try:
        method = str(content["experiment"]["algorithm"]["name"])
    except (KeyError, TypeError):
        raise DataError(f"{run / 'config.yaml'}: experiment.algorithm.name is missing") from None
    known = registry.algorithms
    if method in known.names() and "global" not in known.outline(method).views:
        raise PydanticCustomError(
            "start",
            "{method} has no global model; flray export RUN --client NAME writes a client's",
            {"method": method},
        )
    folder = run / "checkpoint"
    newest = max(folder.glob("round-*.json"), key=lambda path: int(path.stem[6:]))
    files = read_json(newest, MAPPING)["files"]
    return folder / check_name(next(name for name in files if name.startswith("server-")), newest)


GivenSplit = Annotated[
    SplitFile,
    _resolver(
        "split",
        "there is no such file",
        "needed is a JSON file, as flray data show FILE.yaml --split SPLIT.json writes",
        lambda value: isinstance(value, SplitFile | dict),
        lambda text: _known(Path(text), "file", FILE_BYTES),
        json_schema_input_type=SplitFile | str,
    ),
]
Start = Annotated[
    Weights,
    _resolver(
        "start",
        "no weights are there",
        "needed is a run, for example demo/001, or a safetensors file, as flray export RUN writes",
        lambda value: (
            isinstance(value, Weights)
            or (isinstance(value, dict) and set(value) == set(Weights.model_fields))
        ),
        _weights_of,
        json_schema_input_type=Weights | str,
    ),
]
Pretrained = Annotated[
    Weights | str | None,
    _resolver(
        "weights",
        "there is no such file",
        "needed is a file of weights, or torchvision's name for some, such as IMAGENET1K_V1",
        lambda value: not isinstance(value, str) or re.fullmatch("[A-Z0-9_]+", value) is not None,
        lambda text: _known(Path(text)),
    ),
    Field(
        description="a file of the network's weights, or torchvision's name for some whose file lies in "
        "torch's cache; null: fresh ones"
    ),
]


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
        If a file is missing, is not Python, raises or ends the process; it names file and line. If it
        registers a component under the name of another file's.
    """
    files: list[Path] = []
    owners: dict[tuple[str, str], Path | None] = {}
    for text in paths:
        before = _components()
        files.append(_execute(text, _locate(text, base)))
        for (kind, name), item in _components().items():
            file = file_of(sys.modules.get(item.__module__))
            changed = before.get((kind, name)) is not item
            if changed and owners.setdefault((kind, name), file) != file:
                why = f"it registers the {kind} {name!r}, as {owners[kind, name]} does; give one of them another name"
                raise _refused(text, why)
    return files


def _components() -> dict[tuple[str, str], Any]:
    """Return the user's components by kind and name."""
    kinds = registry.ALL.values()
    return {(one.kind, name): item for one in kinds for name, item in one.added().items()}


def _locate(text: str, base: Path | None) -> Path:
    own = at_home(text)
    candidates = [folder / own for folder in (base, Path.cwd()) if folder is not None]
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


class _FromSource(SourceFileLoader):
    """Runs a file as it reads now, and writes nothing beside it.

    Python looks at time and size alone before it takes byte code: an edit may change neither.
    """

    def path_stats(self, path: str) -> Any:
        """Know no time of the file: without one Python neither reads nor writes byte code."""
        raise OSError(f"{path}: no byte code")


def _forget_changed(plugin: Path) -> None:
    """Have all modules of the user's that a plug-in has imported read anew if one of their files has changed since."""
    known = user_code([plugin])[0] if plugin in _sources else {}
    files = {Path(file): digest for file, digest in known.items()}
    if any(
        file != plugin and not (file.is_file() and _read(file).sha256 == digest)
        for file, digest in files.items()
    ):
        for name, module in list(sys.modules.items()):
            if file_of(module) in files and name != "__main__":
                del sys.modules[name]
        for file in files:
            del _sources[file]


def _execute(text: str, path: Path) -> Path:
    _forget_changed(path.resolve())
    name = f"{MODULE_PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _refused(text, "a Python file is needed")
    if isinstance(spec.loader, SourceFileLoader):
        spec.loader = _FromSource(name, str(path))
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
    # Python's multiprocessing, once imported, gives the command's own file a second name.
    new = [sys.modules[one] for one in sys.modules.keys() - before - {"__mp_main__"}]
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
        source = _sources[file] = _sources.get(file) or _read(file)
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
