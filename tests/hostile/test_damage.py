"""A run folder whose files are whole but of another form: each command goes on, or says which file in one line."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray.cli.main import invoke
from tests.hostile.asking import asked
from tests.hostile.values import GOOD

WRONG: tuple[Any, ...] = (None, [], {}, 5, "x", True, [[1]], {"a": 1})
TORN = ("", "{", "[" * 100_000, "\0", "9" * 5000)
FILES = (
    "run.json",
    "partition.json",
    "tracking.json",
    "config.yaml",
    "journal.jsonl",
    "checkpoint/round-000002.json",
)
ASKED = 4
"""Forms of each file, drawn from some hundred."""


def forms(content: Any) -> Iterator[Any]:
    """Yield a content with every part, at any depth, left out or replaced."""
    yield from WRONG
    for key in content if isinstance(content, dict) else ():
        yield {name: part for name, part in content.items() if name != key}
        yield from ({**content, key: part} for part in forms(content[key]))


def texts(path: Path) -> list[str]:
    """Return other contents of a file of the run."""
    text = path.read_text()
    if path.suffix == ".yaml":
        return [yaml.safe_dump(form) for form in forms(yaml.safe_load(text))]
    if path.suffix == ".json":
        return [json.dumps(form) for form in forms(json.loads(text))]
    lines = text.splitlines()
    return [
        "\n".join([*lines[:place], json.dumps(form), *lines[place + 1 :], ""])
        for place, line in enumerate(lines)
        for form in forms(json.loads(line))
    ]


@pytest.fixture
def run(tmp_cwd: Path) -> Path:
    """The folder of a run of two rounds, tracked in a database."""
    content = GOOD["experiment"] | {
        "name": "r",
        "rounds": 2,
        "data": {"name": "digits-sklearn", "samples": 96},
        "checkpoint": {"min_seconds": 0},
        "tracking": {"uri": "sqlite:///m.db"},
    }
    Path("x.yaml").write_text(yaml.safe_dump({"experiment": content}))
    assert invoke(["run", "x.yaml"]) == 0
    return Path("runs/r/001")


@pytest.mark.slow
def test_files_of_another_form_are_named_in_one_line(run: Path) -> None:
    answers, chosen = {}, random.Random(0)
    for file in FILES:
        made = texts(run / file)
        for text in (*chosen.sample(made, ASKED), chosen.choice(TORN)):
            shutil.rmtree("runs/r/002", ignore_errors=True)
            shutil.copytree(run, "runs/r/002")
            identity = json.loads(Path("runs/r/002/run.json").read_text())
            Path("runs/r/002/run.json").write_text(json.dumps(identity | {"status": "failed"}))
            Path("runs/r/002", file).write_text(text)
            command = chosen.choice(
                (
                    ["report", "r/002"],
                    ["sync", "r/002", "--uri", "sqlite:///m.db"],
                    ["resume", "r/002"],
                )
            )
            said = asked(command, (0, 2))
            if said and not said.startswith("left behind"):  # a report that was begun
                answers[f"{command[0]} {file} {text[:60]!r}"] = said
    assert not answers, "\n".join(f"{name}: {said}" for name, said in answers.items())
