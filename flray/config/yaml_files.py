"""Read YAML files, merged over their bases: the result is plain values, or a one-line error.

Stricter than YAML: duplicate keys are rejected. A date is text. The files that come with flray (spaces of methods, the
quickstart, the papers' suites) have names that are known in any folder.
"""

import contextlib
import copy
import functools
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from yaml.composer import Composer

from flray.errors import FlrayError, brief, explained, nearest
from flray.files import read

Plain: TypeAlias = Any
# None, a truth value, a number, a text, or a list or mapping of these: a recursive type that pydantic
# and mypy would have to narrow at every step of code that only passes such values on.

PARTS = ("experiment", "arms", "space", "sweep", "paper")
BYTES, VALUES, DEPTH, FILES = 2**20, 50_000, 64, 64
"""Most bytes of a YAML file, most keys and values in it (an alias counts as what it stands for), deepest nesting, most
files that one is laid over."""

_HINTS = {
    "mapping values are not allowed": "this line is indented otherwise than those above it, or a text with ': ' in it "
    "lacks its quotes",
    "cannot start any token": "indent with spaces, and put a text that begins with a special character in quotes",
    "but found another document": "a file holds one configuration; take the line --- out",
    "could not find expected ':'": "a key needs a colon and a space before its value",
    "did not find expected key": "lines of one part are indented alike",
}
_DATE = "tag:yaml.org,2002:timestamp"
# libyaml's parser is six times as quick; PyYAML may have been built without it.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(Composer, _SafeLoader):  # type: ignore[misc]
    """A safe loader that refuses duplicate keys and aliases that stand for too much; dates stay text.

    Nodes are composed in Python: libyaml's own composer ends the process at deep nesting.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 (as PyYAML declares it)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        _SafeLoader.__init__(self, text)
        Composer.__init__(self)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return the next mapping, whose keys are scalars, each of them once."""
        node = super().compose_mapping_node(anchor)
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _parser_error("a list or a mapping as a key", key)
            if key.value in seen:
                found = f"the key {key.value!r} a second time (first in line {seen[key.value]}); keep one of them"
                raise _parser_error(found, key)
            seen[key.value] = key.start_mark.line + 1
        return node

    def get_single_node(self) -> yaml.Node | None:
        """Return the document's node, having counted what is in it."""
        node = super().get_single_node()
        if node is not None and _count(node, {}) > VALUES:
            raise _parser_error(
                f"more than {VALUES:,} keys and values, counting what aliases stand for", node
            )
        return node


def _integer(loader: Any, node: yaml.ScalarNode) -> int:
    """Return an integer; refuse one that YAML 1.1 takes for another than people do: 010 is 8, and 1:30 is 90."""
    found = int(loader.construct_yaml_int(node))
    digits = node.value.lstrip("+-").replace("_", "")
    if ":" in digits or (digits.isdecimal() and int(digits) != abs(found)):
        raise _parser_error(
            f"{node.value}, which YAML reads as {found}; write a number without zeros before it and "
            "without colons, and a text in quotes",
            node,
        )
    return found


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def _count(node: yaml.Node, counted: dict[int, float]) -> float:
    """Return the number of values of a node; each is visited once, and one within itself has infinitely many."""
    if id(node) not in counted:
        counted[id(node)] = math.inf
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            parts = itertools.chain.from_iterable(parts)
        counted[id(node)] = 1 + sum(_count(part, counted) for part in parts)
    return counted[id(node)]


def shorten(text: str) -> str:
    """Return a text in quotes, truncated if long."""
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."


def _parser_error(found: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=f"found {found}", problem_mark=node.start_mark)


def parse(text: str) -> Plain:
    """Return the content of a YAML text: mappings, lists, texts, numbers, truth values and null only.

    Raises
    ------
    ValueError
        If it is not YAML or holds anything else. The message is one line; it names line and column
        if the parser knows them.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        problem = str(error.problem or error.context or "it cannot be understood")
        hint = next((f"; {hint}" for sign, hint in _HINTS.items() if sign in problem), "")
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ValueError(f"{where}{problem}{hint}") from None
    except RecursionError:
        raise ValueError(f"more than {DEPTH} parts within each other") from None
    except Exception as error:  # a constructor fails with what Python's own conversions raise
        raise ValueError(brief(error)) from None


def dump(content: Plain) -> str:
    """Return plain values as YAML that `parse` reads back unchanged; letters are not escaped.

    PyYAML writes a next-line character (U+0085) as it is and reads it as a space, so a text with
    one is escaped whole.
    """
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return text if "\x85" not in text else str(yaml.safe_dump(content, sort_keys=False))


def read_text(path: Path) -> str:
    """Return a small text file's content.

    Raises
    ------
    FlrayError
        If it is missing, not a regular file, larger than `BYTES` or not UTF-8 text.
    """
    try:
        if path.is_dir():
            inside = path / "config.yaml"
            more = f", for example {inside}; an interrupted run goes on with: flray resume {path}"
            raise FlrayError(
                f"{path}: found a folder; name a file{more if inside.is_file() else ''}"
            )
        return read(path, BYTES).decode("utf-8")
    except FileNotFoundError:
        near = nearest(path.name, (p.name for p in path.parent.glob("*.y*ml")))
        raise FlrayError(f"{path}: no such file{near}") from None
    except UnicodeDecodeError as error:
        raise FlrayError(
            f"{path}: found no UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None
    except (OSError, ValueError) as error:  # such as a name with NUL in it
        raise FlrayError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None


def read_yaml(path: Path) -> dict[str, Plain]:
    """Return a YAML file's mapping.

    Raises
    ------
    FlrayError
        If the file is missing, is not YAML, or holds something other than a mapping.
    """
    try:
        content = copy.deepcopy(_parse_once(read_text(path)))
    except ValueError as error:
        place, separator, rest = str(error).partition(": ")
        if separator and place.startswith("line "):
            raise FlrayError(f"{path}, {place}: not valid YAML: {rest}") from None
        raise FlrayError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise FlrayError(
            f"{path}: found {type(content).__name__}; a mapping with the parts {', '.join(PARTS)} is needed"
        )
    return content


_parse_once = functools.lru_cache(maxsize=256)(parse)
"""The suites of a paper have one file as their base, which would be parsed for each of them."""


def read_with_base(path: Path) -> dict[str, Plain]:
    """Return a YAML file's mapping merged over those of its ``base`` files, later ones over earlier ones.

    Raises
    ------
    FlrayError
        If a file cannot be read, or if it is, directly or through others, a base of itself.
    """
    return _merge_base(path, (), [])


def _merge_base(path: Path, within: tuple[Path, ...], read: list[Path]) -> dict[str, Plain]:
    with explained(  # a loop of links, a name with NUL in it
        (OSError, ValueError, RuntimeError), f"{path}: cannot be read", kind=FlrayError
    ):
        whole = path.resolve()
    if whole in within:
        raise FlrayError(f"{path}: found itself as its base; take one `base` out")
    read.append(whole)
    if len(read) > FILES:
        raise FlrayError(
            f"{path}: base: found more than {FILES} files, repetitions among them; name fewer"
        )
    content = read_yaml(path)
    named = content.pop("base", None)
    bases = [named] if isinstance(named, str) else [] if named is None else named
    if not isinstance(bases, list) or not all(isinstance(name, str) and name for name in bases):
        raise FlrayError(
            f"{path}: base: found {shorten(str(bases))}; name a YAML file, or a list of them"
        )
    joined: Mapping[str, Plain] = {}
    for name in bases:
        joined = _deep_merge(joined, _merge_base(path.parent / name, (*within, whole), read))
    return dict(_deep_merge(joined, content))


def _deep_merge(base: Plain, own: Plain, path: tuple[str, ...] = ()) -> Plain:
    """Merge a file's content over its base's: mappings are joined, anything else is replaced.

    A component of another name replaces the base's with all its options. Under ``arms``, null
    removes an axis, an arm or a setting of an arm. A base's departures from its paper hold for the
    files over it too: ``paper.departures`` are joined.
    """
    if path == ("paper", "departures") and isinstance(base, list) and isinstance(own, list):
        return [*base, *own]
    if not isinstance(base, Mapping) or not isinstance(own, Mapping):
        return own
    if "name" in own and own["name"] != base.get("name", own["name"]) and len(path) > 1:
        return dict(own)
    joined = {
        key: _deep_merge(value, own[key], (*path, key)) if key in own else value
        for key, value in base.items()
        if not (path[:1] == ("arms",) and key in own and own[key] is None)
    }
    return joined | {key: value for key, value in own.items() if key not in base}


FOLDER = "search_spaces"
_PACKAGE = Path(__file__).resolve().parents[1]


def folder() -> Path:
    """Return the folder of the files: in a checkout, or in an installed package.

    Raises
    ------
    FlrayError
        If neither has one.
    """
    places = (_PACKAGE.parent / FOLDER, _PACKAGE / FOLDER)
    for place in places:
        if (place / "quickstart.yaml").is_file():
            return place
    raise FlrayError(
        f"the files that come with flray are not in {' or '.join(map(str, places))}; "
        "install flray again, or run in a checkout"
    )


def names() -> dict[str, Path]:
    """Return the files by name: ``quickstart``, ``fedskc``, ``fedskc/table5``."""
    root = folder()
    found = [*root.glob("*.yaml"), *(root / "papers").glob("*/*.yaml")]
    return {
        path.relative_to(root).with_suffix("").as_posix().removeprefix("papers/"): path
        for path in sorted(found)
        if not path.name.startswith("_")
    }


def locate(source: str | Path) -> Path:
    """Return the file that a path or a name means; what lies in the folder at hand wins.

    Parameters
    ----------
    source : str or Path
        A path, or a name of `names`, with or without ``search_spaces/``, ``papers/`` before it and
        ``.yaml`` behind it.

    Raises
    ------
    FlrayError
        If there is neither such a file nor such a name, or it is a setting. Of a path with a suffix,
        reading it says so.
    """
    path = Path(source)
    with contextlib.suppress(OSError, ValueError):  # a name that no file can have
        if not path.is_file() and not path.is_absolute():
            known = names()
            text = path.as_posix().removesuffix(".yaml")
            name = text.removeprefix(f"{FOLDER}/").removeprefix("papers/")
            if name in known:
                return known[name]
            if "=" in text and not path.exists():
                raise FlrayError(
                    f"{source}: this is a setting; a file comes before it, or a name such as quickstart"
                )
            if not path.suffix and not path.exists():
                raise FlrayError(
                    f"{source}: no such file, and flray comes with none of that "
                    f"name{nearest(name, known)} (flray list papers names the suites)"
                )
    return path
