"""What a process says of its own memory, and what a round leaves there."""

import gc
import json
from typing import Any

import pytest
from torch import Tensor

from flray.devices import resident_bytes
from flray.federation.federation import inline_federation
from flray.trees import Packed
from tests.helpers import built, python

SIZE = 200 * 2**20


def in_a_process(program: str, content: object = None) -> list[float]:
    """Return the numbers that a program prints last."""
    done = python(program, input=json.dumps(content))
    return [float(word) for word in done.stdout.split()[-2:]]


def test_the_peak_is_the_process_s_own_and_kept_after_memory_is_given_back() -> None:
    held = bytearray(b"1") * (3 * SIZE)  # of the parent
    peak, resident = in_a_process(
        "from flray.devices import peak_bytes, resident_bytes\n"
        f"held = bytearray(b'1') * {SIZE}\n"
        "del held\n"
        "print(peak_bytes(), resident_bytes())"
    )
    assert resident + SIZE // 2 < peak < resident_bytes() - SIZE
    assert len(held) == 3 * SIZE


@pytest.mark.parametrize("algorithm", ["fedskc", "lgmix", "scaffold"])
@pytest.mark.parametrize("block", [None, 2])
def test_a_round_leaves_nothing_to_the_search_for_cycles(
    digits: dict[str, Any], algorithm: str, block: int | None
) -> None:
    """Replies and states of large networks would fill the memory before Python looks for them."""
    content = {**digits, "algorithm": algorithm, "aggregation": {"block": block}}
    federation = inline_federation(built(content))
    federation.step()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        federation.step()
        gc.collect()
        assert not [one for one in gc.garbage if isinstance(one, Packed | Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.slow
def test_the_peak_of_a_round_includes_its_evaluation(digits: dict[str, Any]) -> None:
    """A round trains on a batch of 16 and is tested on 400 samples at once, which takes far more memory."""
    content = {
        **digits,
        "rounds": 1,
        "data": {"name": "digits-sklearn", "samples": 400},
        "model": {"name": "resnet8"},
        "evaluation": {"batch_size": 2048},
        "local": {"lr": 0.05, "batch_size": 16, "steps": 2},
    }
    told, peak = in_a_process(
        "import json, sys\n"
        "from flray.config.loader import load\n"
        "from flray.federation.building import build_spec\n"
        "from flray.federation.federation import inline_federation\n"
        "from flray.devices import peak_bytes\n"
        "spec = build_spec(load({'experiment': json.load(sys.stdin)}).experiment)\n"
        "metrics = inline_federation(spec).step().metrics\n"
        "print(metrics['memory/peak/actor'], peak_bytes())",
        content,
    )
    assert told > 0.97 * peak
