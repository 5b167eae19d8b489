"""Plain English: phrases that CONTRIBUTING.md replaces may only become rarer in docstrings and pages."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.pages import PAGES, ROOT

LIMITS = {"docstrings": 0.0, "pages": 0.87}
"""Most phrases per thousand words: lower a number when the texts allow it, never raise it."""

AMONG = "than|and|from|of|with|by|to|for|that|returns?|yields?|reads?|writes?|shows?|keeps?|says?"
RULES = {
    "name the thing": rf"(?-i:(^|[.:;] )What\b)|\b({AMONG}) what\b",
    "if": r"\bwhere (there (is|are)|it|they|that|this|an?|one|no|none|nothing)\b",
    "because": r", for (an?|the|its?|they|there|this|that|only|each|what|one|nothing|no)\b",
    "continue": r"\b(go|goes|going|gone|went) on\b",
    "is not a": r"\b(is|are|was|were) no\b(?! (longer|more)\b)",
    "custom": r"\b(one's|a user's|its|their|your|of) own\b",
    "active verb": r"\b(is|are|was|were|be|been) (said|told|asked|kept|held|dealt|meant|left)\b",
    "new sentence": r"\b(in|of|by|at|over|to|from|with) which\b",
}
"""A pattern of the phrase that each rule replaces."""


def docstrings() -> Iterator[str]:
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for path in (ROOT / "flray").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, documented):
                yield ast.get_docstring(node) or ""


def pages() -> Iterator[str]:
    for path in (*PAGES, ROOT / "CONTRIBUTING.md"):
        yield re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "code", text)


def phrases(text: str) -> Iterator[str]:
    """Yield the rule of each phrase outside code, and the phrase."""
    for rule, pattern in RULES.items():
        for found in re.finditer(pattern, without_code(text), re.M | re.I):
            yield f"{rule}: {found.group()}"


@pytest.mark.parametrize("kind", LIMITS)
def test_phrases_become_rarer(kind: str) -> None:
    texts = [*(docstrings() if kind == "docstrings" else pages())]
    found = [phrase for text in texts for phrase in phrases(text)]
    words = sum(len(without_code(text).split()) for text in texts)
    assert words > 10_000
    rate = 1000 * len(found) / words
    assert rate <= LIMITS[kind], f"{rate:.2f} phrases per thousand words: see CONTRIBUTING.md"


@pytest.mark.parametrize(
    ("rule", "crooked", "plain"),
    [
        ("name the thing", "Return what was measured.", "Return the measured values."),
        ("if", "Empty where there is none.", "Empty if there is none."),
        ("because", "Only once, for it takes seconds.", "Only once, because it takes seconds."),
        ("continue", "How to go on.", "How to continue."),
        ("is not a", "A missing file is no error.", "A missing file is not an error."),
        ("custom", "Data of one's own.", "Custom data."),
        ("active verb", "Nothing is left.", "Nothing remains."),
        ("new sentence", "A module of which a part is read.", "A module; a part of it is read."),
    ],
)
def test_each_rule_finds_its_phrase(rule: str, crooked: str, plain: str) -> None:
    assert [phrase.partition(":")[0] for phrase in phrases(crooked)] == [rule]
    assert [*phrases(plain)] == [*phrases(crooked.join("``"))] == []


def test_every_rule_stands_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rules = text.partition("## Plain English")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\d\. ", rules, re.M)) == len(RULES)
