"""Every method on the pretend accelerator: no operands on two devices, no draws there, the CPU's bits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.accelerator.cases import Case, case, covering, experiment, tasks

PARTS = 4
"""Processes over which the methods are spread."""


def played(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Play cases in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.accelerator.play"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def problems(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each case that is not what it is on the CPU."""
    lines = []
    for one in found:
        if one["error"]:
            lines.append(f"{one['name']}: {one['error']}\n{one['trace']}")
        elif one["accel"] != one["cpu"]:
            lines.append(f"{one['name']}: other bits than on the CPU")
        elif not one["measured"]:
            lines.append(f"{one['name']}: other measurements than on the CPU")
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_method_gives_the_bits_of_the_cpu(part: int) -> None:
    found = played(covering()[part::PARTS])
    assert not problems(found), "\n".join(problems(found))


@pytest.mark.slow
def test_tasks_networks_and_evaluations_give_the_bits_of_the_cpu() -> None:
    found = played(tasks())
    assert not problems(found), "\n".join(problems(found))


def test_mistakes_are_found() -> None:
    names = ("generator", "mixing", "numpy", "item", "")
    found = dict(
        zip(
            names,
            played([case(name, experiment("fedavg"), mutation=name) for name in names]),
            strict=True,
        )
    )
    assert "device type for generator" in found["generator"]["error"]
    assert "found at least two devices" in found["mixing"]["error"]
    assert "can't convert accel:0 device type tensor to numpy" in found["numpy"]["error"]
    assert any("item" in line for line in found["item"]["step_waits"])
    assert not found[""]["error"] and not found[""]["step_waits"]
