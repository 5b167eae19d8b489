"""Pieces of reStructuredText that the generated pages are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from flray.cli import tables

_SECTION = re.compile(r"^\w[\w ]*\n-{3,}$", re.MULTILINE)


def title(text: str, line: str = "=") -> list[str]:
    """Return a heading."""
    return [text, line * len(text), ""]


def plain(text: str | None) -> list[str]:
    """Return the lines of a docstring."""
    return inspect.cleandoc(text or "").splitlines()


def prose(text: str | None) -> list[str]:
    """Return a docstring without numpydoc's sections."""
    whole = inspect.cleandoc(text or "")
    found = _SECTION.search(whole)
    return [*(whole[: found.start()] if found else whole).rstrip().splitlines(), ""]


def list_of_pages(pages: Iterable[str]) -> list[str]:
    """Return links to pages, which are made by `put` with ``leaf``.

    A table of contents would put each of them into the sidebar of all others, which takes minutes.
    """
    return [*(f"- :doc:`{page}`" for page in pages), ""]


def table(headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return a table, whose cells are reStructuredText already."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (tuple(headings), *rows):
        lines += [
            f"   {'* -' if index == 0 else '  -'} {' '.join(cell.split())}"
            for index, cell in enumerate(row)
        ]
    return [*lines, ""]


def option_table(params: type[BaseModel]) -> list[str]:
    """Return the table of a component's options."""
    schema = params.model_json_schema()
    required = schema.get("required", [])
    rows = [
        (
            f"``{option}``",
            "required" if option in required else f"``{field.get('default')!r}``",
            *map(
                escaped,
                (
                    tables.allowed_values(field),
                    field.get("description", ""),
                    field.get("source", ""),
                ),
            ),
        )
        for option, field in schema.get("properties", {}).items()
    ]
    if not rows:
        return ["It has no options.", ""]
    return table(("option", "default", "allowed", "meaning", "source"), rows)


def code(text: str, language: str) -> list[str]:
    """Return a block of code."""
    return [f".. code-block:: {language}", "", *(f"   {line}" for line in text.splitlines()), ""]


def escaped(text: str) -> str:
    """Return text in which no character means anything to reStructuredText; names in backticks stay so."""
    return re.sub(r"([\\*|])|_(?![A-Za-z0-9])", lambda found: f"\\{found.group()}", text)


def put(path: Path, lines: Iterable[str], leaf: bool = False) -> None:
    """Write a page; a leaf is in no table of contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = ":orphan:\n\n" if leaf else ""
    path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
