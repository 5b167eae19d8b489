"""Bad files, plug-ins, addresses and command lines: one line, exit code 2, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import inputs
from tests.hostile.asking import asked


@pytest.mark.parametrize("kind", inputs.ALL)
def test_one_line_exit_code_two_and_nothing_left(kind: str, tmp_cwd: Path) -> None:
    answers = {}
    for name, (write, typed) in inputs.ALL[kind].items():
        write()
        if said := asked(typed):
            answers[name] = said
    assert not answers, "\n".join(f"{name}: {said}" for name, said in answers.items())
