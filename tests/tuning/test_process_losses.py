"""Trials whose processes end: at each start, or by Ray's own memory monitor on a node that is nearly full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from flray import api
from flray.runs.progress import NullProgress

FREE, TAKEN = 5 * 2**30, 8 * 2**30  # other tests run beside this one

OWN_METHODS = """
import time
from pathlib import Path

import torch

from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm


def take():
    taken = torch.ones(TAKEN, dtype=torch.uint8)
    time.sleep(60)
    return taken


@register_algorithm("own-greedy")
class Greedy(Algorithm):
    def aggregate(self, server, stage, replies):
        if server.round == 1 and not Path(MARK).exists():
            Path(MARK).touch()
            take()
        super().aggregate(server, stage, replies)


@register_algorithm("own-insatiable")
class Insatiable(Algorithm):
    def aggregate(self, server, stage, replies):
        if server.round == 1:
            take()
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


class Lines(NullProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


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


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_a_trial_whose_processes_never_begin_fails_and_the_others_go_on(
    content: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(f"DRIVER = {os.getpid()}\n{UNABLE}")
    content["experiment"]["plugins"] = ["own.py"]
    content["space"] = {"algorithm": {"grid": ["own-unable", "fedavg"]}}
    content["sweep"] = {"seeds": [0], "max_failures": 1}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    progress = Lines()
    rows = api.tune(file, progress=progress).results.set_index("algorithm")
    assert dict(rows["status"]) == {"own-unable": "failed", "fedavg": "finished"}
    assert rows.loc["own-unable", "failure"].startswith("its process has died: out of memory")
    assert [line[:18] for line in progress.lines if "tried again" in line] == ["trial 0001 crashed"]


@pytest.mark.slow
@pytest.mark.usefixtures("nearly_full_node")
def test_a_trial_without_memory_is_tried_again_and_the_others_go_on(
    content: dict[str, Any], tmp_path: Path
) -> None:
    values = {"MARK": str(tmp_path / "mark"), "TAKEN": TAKEN}
    given = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    (tmp_path / "own.py").write_text(f"{given}\n{OWN_METHODS}")
    content["experiment"] |= {"plugins": ["own.py"], "checkpoint": {"min_seconds": 0.0}}
    content["space"] = {"algorithm": {"grid": ["own-greedy", "own-insatiable", "fedavg"]}}
    content["sweep"] = {"seeds": [0], "concurrency": 1, "max_failures": 1}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    progress = Lines()
    rows = {
        row["algorithm"]: row
        for row in api.tune(file, progress=progress).results.to_dict("records")
    }
    assert {name: row["status"] for name, row in rows.items()} == {
        "own-greedy": "finished",
        "own-insatiable": "failed",
        "fedavg": "finished",
    }
    assert rows["own-greedy"]["sha256"] == rows["fedavg"]["sha256"]
    assert "memory monitor" in rows["own-insatiable"]["failure"]
    assert "sweep.concurrency" in rows["own-insatiable"]["failure"]
    again = [line[:18] for line in progress.lines if "tried again" in line]
    assert again == ["trial 0001 crashed", "trial 0002 crashed"]
