"""What the papers' experiments are, written down from papers and released code: nothing here is read from a suite.

Each paper has a file ``PAPER.yaml``, which gives each run of a suite a value and a source for every field of
`facts.facts`. A component is its name or a mapping with its name and the options that matter; options that
are not named have their defaults. A row maps sources to fields with their values. It is written as such, by the
names of rows, or as a list of both, whose later facts replace the earlier ones. ``{NAME}`` in a source stands
for the text of that name.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flray.config.yaml_files import parse

Fact = tuple[object, str]
"""A value and where it is printed or released; "ours" where neither says it."""
Row = dict[str, Fact]
PAPERS = ("fcclplus", "fedco2", "fedskc", "lgmix")
TUPLES = ("augment", "normalisation", "split", "tested")
"""Fields whose lists are tuples, as in `facts.facts`."""


@dataclass(frozen=True)
class Suite:
    """What holds for all runs of a suite, and what is different by axis and arm, and for combinations of arms."""

    runs: Row
    arms: dict[str, dict[str, Row]] = field(default_factory=dict)
    where: tuple[tuple[dict[str, str], Row], ...] = ()

    def expected(self, arms: dict[str, str]) -> Row:
        """Return the facts of the run of one arm per axis."""
        row = dict(self.runs)
        for axis, name in arms.items():
            row |= self.arms.get(axis, {}).get(name, {})
        for names, more in self.where:
            if names.items() <= arms.items():
                row |= more
        return row


@dataclass(frozen=True)
class Written:
    """What is written of a paper: its suites, and what the printed numbers of each are measured with."""

    suites: dict[str, Suite]
    measures: dict[str, tuple[dict[str, str], str]]


@functools.cache
def read(paper: str) -> Written:
    """Return a paper's file."""
    content: Any = parse(Path(__file__).with_name(f"{paper}.yaml").read_text("utf-8"))
    texts: dict[str, str] = {}
    rows: dict[str, Row] = {}

    def spelled(source: str) -> str:
        return re.sub(r"\{([A-Z]{2,})\}", lambda found: texts[found[1]], source)

    def row(form: Any) -> Row:
        if isinstance(form, str):
            parts = [rows[name] for name in form.split()]
        elif isinstance(form, list):
            parts = [row(part) for part in form]
        else:
            parts = [
                {name: (_value(name, value), spelled(source)) for name, value in fields.items()}
                for source, fields in form.items()
            ]
        return {name: fact for part in parts for name, fact in part.items()}

    def arms(form: Any) -> dict[str, Row]:
        named = content["arms"][form] if isinstance(form, str) else form
        return {arm: row(part) for arm, part in named.items()}

    for name, text in content["texts"].items():
        texts[name] = spelled(text)
    for name, form in content["rows"].items():
        rows[name] = row(form)
    suites = {
        name: Suite(
            row(form["runs"]),
            {axis: arms(named) for axis, named in form["arms"].items()},
            tuple((names, row(more)) for names, more in form.get("where", ())),
        )
        for name, form in content["suites"].items()
    }
    measures = {
        f"{paper}/{name}": (measured, spelled(source))
        for names, form in content["measures"].items()
        for source, measured in form.items()
        for name in names.split()
    }
    return Written(suites, measures)


def _value(name: str, value: Any) -> Any:
    """Return a value as `facts.facts` has it."""
    if name == "images" and isinstance(value, Mapping):
        return value["from"], value["to"]
    if name == "images":
        return tuple(value) if isinstance(value[0], str) else value
    return _tuples(value) if name in TUPLES else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
