"""Pieces of reStructuredText that the generated pages are made of."""

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from flray.config.schema import allowed_values

_SECTION = re.compile(r"^\w[\w ]*\n-{3,}$", re.MULTILINE)


def title(text: str, line: str = "=") -> list[str]:
    """Return a heading."""
    return [text, line * len(text), ""]


def labelled(kind: str, name: str, line: str = "=") -> list[str]:
    """Return a heading that pages can refer to."""
    return [f".. _{kind}-{name}:", "", *title(name, line)]


def plain(text: str | None) -> list[str]:
    """Return the lines of a docstring."""
    return inspect.cleandoc(text or "").splitlines()


def prose(text: str | None) -> list[str]:
    """Return a docstring without numpydoc's sections."""
    return [*_SECTION.split(inspect.cleandoc(text or ""))[0].rstrip().splitlines(), ""]


def list_of_pages(pages: Iterable[str]) -> list[str]:
    """Return links to pages, which are made by `put` with ``leaf``.

    A table of contents would put each of them into the sidebar of all others, which takes minutes.
    """
    return [*(f"- :doc:`{page}`" for page in pages), ""]


def table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return a table, whose cells are reStructuredText already."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (headings, *rows):
        cells = [" ".join(cell.split()) for cell in row]
        lines += [f"   * - {cells[0]}", *(f"     - {cell}" for cell in cells[1:])]
    return [*lines, ""]


def option_table(params: type[BaseModel]) -> list[str]:
    """Return the table of a component's options."""
    schema = params.model_json_schema()
    rows = []
    for option, field in schema.get("properties", {}).items():
        needed = option in schema.get("required", ())
        default = "required" if needed else f"``{field.get('default')!r}``"
        about = (field.get("description", ""), field.get("source", ""))
        words = map(escaped, (allowed_values(field), *about))
        rows.append((f"``{option}``", default, *words))
    if not rows:
        return ["It has no options.", ""]
    return table(("option", "default", "allowed", "meaning", "source"), rows)


def code(text: str, language: str) -> list[str]:
    """Return a block of code."""
    return [f".. code-block:: {language}", "", *(f"   {line}" for line in text.splitlines()), ""]


def flow(value: Mapping[str, Any]) -> str:
    """Return a mapping as YAML in a line; a component without options by its name."""
    if set(value) == {"name"}:
        return f"``{value['name']}``"
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return f"``{text.strip()}``"


def escaped(text: str) -> str:
    """Return text in which no character means anything to reStructuredText; names in backticks stay so."""
    return re.sub(r"([\\*|])|_(?![A-Za-z0-9])", lambda found: f"\\{found.group()}", text)


def put(path: Path, lines: Iterable[str], leaf: bool = False) -> None:
    """Write a page; a leaf is in no table of contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = ":orphan:\n\n" if leaf else ""
    path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
