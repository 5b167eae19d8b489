"""A training step recorded once and repeated for all clients of a stage has the bits of the step as it is written."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.accelerator.cases import NAMES
from tests.helpers import ended

NOT_RECORDED = {"fedmatch": "its strong augmentation sends each step's draws to the device"}
"""By method: why none of its training steps can be recorded."""

ALSO_WRITTEN = {
    "apfl": ["client/state/alpha"],  # a client's first step computes it on the host
    "lgmix": ["client/scratch/epoch"],  # an epoch's first step begins new sums
}
"""By method: which number of a client changes in some of its steps, which are therefore not recorded."""

FEW = ("fedavg", "scaffold", "apfl", "copa")


def recorded(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what became of methods, run in a process of their own."""
    done = ended("-m", "tests.accelerator.recorded", input=json.dumps(names), timeout=900)
    return {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_method_has_its_bits_by_recorded_steps(others: bool) -> None:
    """Quick are a few of them."""
    found = recorded([name for name in NAMES if (name not in FEW) == others])
    assert [name for name, one in found.items() if not one["same"]] == []
    left = {name for name, one in found.items() if not one.get("repeated")}
    assert left == {name for name in NOT_RECORDED if (name not in FEW) == others}
    numbers = {n: [x for x in one["unlike"] if x.startswith("client/")] for n, one in found.items()}
    assert {n: x for n, x in numbers.items() if x} == {
        n: ALSO_WRITTEN[n] for n in found if n in ALSO_WRITTEN
    }
    # What of a client Python decides by is needed: without it the bits are others.
    assert [name for name, one in found.items() if one["if alike"]] == []
