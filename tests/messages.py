"""Texts of errors on one page, ``tests/messages.txt``, which a person reads when a text changes.

``FLRAY_MESSAGES=write pytest -n 0 TESTS`` writes the texts of the tests that it runs.
"""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import told

PAGE = Path(__file__).with_suffix(".txt")
WRITING = os.environ.get("FLRAY_MESSAGES") == "write"
COLLECTED = pytest.StashKey[set[str]]()  # the names of all tests of the files that are run
_SEEN: dict[str, list[str]] = {}
_REPLACED = {
    re.escape(str(Path(__file__).parents[1])): "FLRAY",
    rf"\b{re.escape(socket.gethostname())}\b": "HOST",
    r"[^\s'\"=:,;(]*/pytest-of-[^/\s]+/pytest-\d+/(popen-gw\d+/)?[\w-]+": "TMP",
    r"(?<=\.py:)\d+": "LINE",
    r"(?<=127\.0\.0\.1:)\d+": "PORT",
    r"(?<=process )\d+": "PID",
    r"(?<=hand-made )-?\d+": "KEY",
    r"\b\d+\.\d{8,}": "NUMBER",
    r"\b((?=\d*[a-f]|0+\b)[0-9a-f]{12,64}|\d{12}|\d{16})\b": "SHA",  # seldom of digits alone
    r"(?<=Request ID: )\w+": "ID",
    r"(?<=restore -x )\d+": "ID",
    r"flray-test-[0-9a-f]{8}": "BUCKET",
    r"(?<=/\.001\.)\w{8}": "RANDOM",
    r"(/a){9,}/?\.\.\. \(cut, [\d,]+ characters\)": "/a... (cut)",
    r"\b\d+\.\d+ms": "MS",
    r"\b(torch|ray) \d[\w.+]*\w": r"\1 VERSION",
    r"\nTraceback .*|\n\x1b\[36mray::.*": "\n...",
    r"(?<=storage cannot be used )\(When resolving [^)]*\)": "(ERROR)",  # of the network
    r"(?<=: )ERROR: .*(?=; try again)": "ERROR",  # of pip
    r"(?<=not a pickle of plain arrays: )(?!it refers to).*(?=; nothing in it)": "ERROR",  # Python's
    r"\n *For further information [^\n]*": "",
    r"(?<=Invalid JSON: )[^)]*": "ERROR",  # pydantic's
    r"pathlib\._local": "pathlib",
    r"\b[a-z][\w./-]*(, [a-z][\w./-]*){3,}": "NAMES",  # components, to which others and tests add
}


def refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> Exception:
    """Call, and return the error that this raises: its type and text are the page's for this test."""
    with pytest.raises(Exception) as caught:  # its type is on the page
        call(*arguments, **named)
    _compare(f"{type(caught.value).__name__}: {caught.value}")
    return caught.value


def mistyped(*command: str) -> None:
    """Type a command that ends with exit code 2: what it says to stderr is the page's for this test."""
    _compare(told(2, *command).removesuffix("\n"))


def _compare(text: str) -> None:
    for pattern, name in _REPLACED.items():
        text = re.sub(pattern, name, text, flags=re.DOTALL)
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    seen = _SEEN.setdefault(test, [])
    seen.append(text)
    if WRITING:
        write({**read(), test: seen})
    known = read().get(test, [])[len(seen) - 1 : len(seen)]
    assert known == [text], f"{test}, error {len(seen)} is not as in {PAGE.name}:\n{text}\n{known}"


def read() -> dict[str, list[str]]:
    """Return the texts of each test: under a file's name its tests', under these the texts."""
    page: dict[str, list[str]] = {}
    for line in PAGE.read_text().rstrip("\n").split("\n"):
        depth, words = (len(line) - len(line.lstrip(" "))) // 2, line.lstrip(" ")
        if depth == 0:
            file = words
        elif depth == 1:
            texts = page[f"{file}::{words}"] = []
        elif depth == 2:
            texts.append(words)
        else:
            texts[-1] += "\n" + line[6:]
    return page


def write(page: dict[str, list[str]]) -> None:
    """Write the page, sorted by file and test."""
    lines: list[str] = []
    last = ""
    for test, texts in sorted(page.items()):
        file, _, name = test.partition("::")
        lines += [file] * (file != last)
        lines += [f"  {name}", *("    " + text.replace("\n", "\n      ") for text in texts)]
        last = file
    PAGE.write_text("\n".join(lines) + "\n")
