"""Bad files, plug-ins, addresses and command lines: one line, exit code 2, nothing left behind.

One of them in a process of its own, as a person meets it; all of them with FLRAY_HOSTILE_ALL (scripts/hostile).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile import inputs
from tests.hostile.asking import asked, started

ALONE = [
    (kind, name)
    for kind, some in inputs.ALL.items()
    for name, (_, typed) in some.items()
    if "\0" not in "".join(typed) and (name == "lines" or os.environ.get("FLRAY_HOSTILE_ALL"))
]


@pytest.mark.parametrize("kind", inputs.ALL)
def test_one_line_exit_code_two_and_nothing_left(kind: str, tmp_cwd: Path) -> None:
    answers = {}
    for name, (write, typed) in inputs.ALL[kind].items():
        write()
        if said := asked(typed):
            answers[name] = said
    assert not answers, "\n".join(f"{name}: {said}" for name, said in answers.items())


@pytest.mark.parametrize(("kind", "name"), ALONE)
def test_in_a_process_of_its_own(kind: str, name: str, tmp_cwd: Path) -> None:
    write, typed = inputs.ALL[kind][name]
    write()
    assert started(typed) == ""


@pytest.mark.parametrize("command", ["flray run", "flray.tune"])
def test_the_usage_names_the_command_as_it_was_typed(command: str) -> None:
    words = [sys.executable, "-m", *command.split()]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    usage = f"usage: python -m {command} --help"
    assert ended.returncode == 2
    assert ended.stderr == f"flray: Missing argument 'FILE.yaml'. ({usage})\n"
