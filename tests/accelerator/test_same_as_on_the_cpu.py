"""Every method on the pretend accelerator: no operands on two devices, no draws there, the CPU's bits.

And what it costs: a training step never has the host wait, a turn at most three times, and a step starts no more
kernels than `RECORDED` says, plus 5 %. After a change that needs more of them: ``python -m tests.accelerator.run_cases
record``.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.accelerator.cases import SIZES, Case, case, covering, experiment, tasks
from tests.helpers import ended

RECORDED = json.loads(Path(__file__).with_name("kernels.json").read_text())
"""The most kernels of a training step, by case and phase."""

WAITS_IN_A_STEP = {"few shots": 1}
"""Which samples of an episode are its support is found on the host."""

WAITS_IN_A_TURN = 3


def run_cases(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Run cases in a process of their own."""
    done = ended("-m", "tests.accelerator.run_cases", input=json.dumps(cases))
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


def overspent(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each budget that is exceeded."""
    lines = []
    for one in found:
        name, allowed = one["name"], RECORDED.get(one["name"], {})
        few = next((n for start, n in WAITS_IN_A_STEP.items() if name.startswith(start)), 0)
        if sum(one["step_waits"].values()) > few:
            lines.append(f"{name}: a step waits for {one['step_waits']}")
        if sum(one["turn_waits"].values()) > WAITS_IN_A_TURN and not few:
            lines.append(f"{name}: a turn waits for {one['turn_waits']}")
        lines += [
            f"{name}, {phase}: {count} kernels in a step, and {allowed.get(phase)} are recorded"
            for phase, count in one["kernels"].items()
            if count > 1.05 * allowed.get(phase, 0)
        ]
    return lines


@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_method_and_task_has_the_bits_of_the_cpu_and_waits_for_nothing(others: bool) -> None:
    """Quick are a few of them."""
    cases = list(enumerate([*covering(), *tasks()]))
    found = run_cases([case for number, case in cases if bool(number % 8) == others])
    assert not problems(found), "\n".join(problems(found))
    assert not overspent(found), "\n".join(overspent(found))


LYING = {"whole": sum(SIZES) + 18, "own": max(SIZES), "batch": 8}
"""The most images that come to the device at once, by where the samples are."""


@pytest.mark.slow
def test_mistakes_are_found_and_samples_come_as_the_memory_allows() -> None:
    names = ("generator", "mixing", "numpy", "item", "to the host")
    wrong = [case(name, experiment("fedavg"), mutation=name) for name in names]
    content = experiment("fedavg", evaluation={"batch_size": 8})
    right = [case(name, content, samples=name) for name in LYING]
    other = experiment("fedmd")
    public = [case(f"public {name}", other, samples=name) for name in ("own", "batch")]
    found = {one["name"]: one for one in run_cases([*wrong, *right, *public])}
    assert "device type for generator" in found["generator"]["error"]
    assert "found at least two devices" in found["mixing"]["error"]
    assert "can't convert accel:0 device type tensor to numpy" in found["numpy"]["error"]
    for name, asked in {"item": "item", "to the host": ".to"}.items():
        told = overspent([found[name]])
        assert any(f"a step waits for {{'{asked}" in line for line in told), found[name]
    for name, images in LYING.items():
        assert not problems([found[name]]) and not found[name]["step_waits"]
        assert found[name]["images"] == images
    # A stage on public samples sends no private ones. (Three times a last batch of one is left out.)
    assert 0 < found["public own"]["sent"] <= found["public batch"]["sent"] + 3
