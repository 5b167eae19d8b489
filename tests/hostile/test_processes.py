"""Some of the bad inputs in processes of their own, as a person meets them; all of them: scripts/hostile."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile import inputs
from tests.hostile.asking import started

ALL = {
    f"{kind}: {name}": one
    for kind, some in inputs.ALL.items()
    for name, one in some.items()
    if not any("\0" in word for word in one[1])
}
CHOSEN = (
    sorted(ALL) if os.environ.get("FLRAY_HOSTILE_ALL") else random.Random(0).sample(sorted(ALL), 3)
)


@pytest.mark.parametrize("name", CHOSEN)
def test_one_line_exit_code_two_and_nothing_left(name: str, tmp_cwd: Path) -> None:
    write, typed = ALL[name]
    write()
    assert started(typed, PYTHONDONTWRITEBYTECODE="1") == ""


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        (["-m", "flray", "run"], "python -m flray run --help"),
        (["-m", "flray.tune"], "python -m flray.tune --help"),
    ],
)
def test_the_usage_names_the_command_as_it_was_typed(command: list[str], usage: str) -> None:
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr == f"flray: Missing argument 'FILE.yaml'. (usage: {usage})\n"
