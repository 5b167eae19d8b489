"""Trials whose processes end: at each start, or by Ray's own memory monitor on a node that is nearly full."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flray import api
from tests.tuning.helpers import Seen

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_pictures")]

FREE, TAKEN = 5 * 2**30, 8 * 2**30  # other tests run beside this one

GREEDY = """
import time
from pathlib import Path

import torch

from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm


@register_algorithm("own-greedy")
class Greedy(Algorithm):
    def aggregate(self, server, stage, replies):
        if server.round == 1 and not Path(MARK).exists():
            Path(MARK).touch()
            taken = torch.ones(TAKEN, dtype=torch.uint8)
            time.sleep(3600)  # its process is ended before it is over
            del taken
        super().aggregate(server, stage, replies)
"""

UNABLE = """
import os
import signal

from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm


@register_algorithm("own-unable")
class Unable(Algorithm):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        if os.getpid() != DRIVER:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def nearly_full_node() -> Iterator[None]:
    """A Ray whose node counts as full when a little more than now is in use."""
    import ray

    memory = psutil.virtual_memory()
    if memory.available < FREE + TAKEN + 2 * 2**30:
        pytest.skip("the machine has too little memory left")
    ray.shutdown()
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        logging_level="ERROR",
        _system_config={
            "memory_usage_threshold": (memory.total - memory.available + FREE) / memory.total,
            "memory_monitor_refresh_ms": 100,
        },
    )
    yield
    ray.shutdown()


@pytest.fixture
def own(content: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A sweep whose methods are in ``own.py``."""
    content["experiment"] |= {
        "plugins": [str(tmp_path / "own.py")],
        "checkpoint": {"min_seconds": 0.0},
    }
    content["sweep"] = {"seeds": [0], "max_failures": 1}
    return content


@pytest.mark.usefixtures("ray_here")
def test_a_trial_that_never_begins_fails_alone(own: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"DRIVER = {os.getpid()}\n{UNABLE}")
    own["space"] = {"algorithm": {"grid": ["own-unable", "fedavg"]}}
    seen = Seen()
    unable, fedavg = api.tune(own, progress=seen).results.to_dict("records")
    assert (unable["status"], fedavg["status"]) == ("failed", "finished")
    assert unable["failure"].startswith("its process has died: out of memory")
    assert [line[:18] for line in seen.find("tried again")] == ["trial 0001 crashed"]


@pytest.mark.usefixtures("nearly_full_node")
def test_a_trial_without_memory_is_tried_again_and_the_others_go_on(
    own: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(f"MARK, TAKEN = {str(tmp_path / 'mark')!r}, {TAKEN}\n{GREEDY}")
    own["space"] = {"algorithm": {"grid": ["own-greedy", "fedavg"]}}
    own["sweep"]["concurrency"] = 1
    seen = Seen()
    greedy, fedavg = api.tune(own, progress=seen).results.to_dict("records")
    assert (greedy["status"], fedavg["status"]) == ("finished", "finished")
    assert greedy["sha256"] == fedavg["sha256"]
    (line,) = seen.find("tried again")
    assert line.startswith("trial 0001 crashed")
    assert "memory monitor" in line and "sweep.concurrency" in line
