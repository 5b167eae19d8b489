"""A node killed in the middle of a round, and replaced: run and sweep go on to the bits of an undisturbed run."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flray import api
from flray.records.events import read_events
from flray.runs import runner
from flray.runs.progress import NullProgress

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


QUICK = {"period_ms": "500", "timeout_ms": "2000", "failure_threshold": "2"}
"""Health checks by which a node is known to be gone after a second or two."""


@pytest.fixture(scope="module", params=[QUICK], ids=["quick"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A head with one CPU and a worker node with one; client states (250 kB) stay on the node that made them."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_max_direct_call_object_size", "100000")
        for name, value in request.param.items():
            patch.setenv(f"RAY_health_check_{name}", value)
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        cluster.worker = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def work(digits: dict[str, Any]) -> dict[str, Any]:
    """Rounds of a second or two, in which every client keeps a state."""
    return {
        **digits,
        "algorithm": "local",
        "rounds": 4,
        "data": {"name": "digits-sklearn", "samples": 200},
        "partition": {"name": "iid", "clients": 6},
        "local": {"epochs": 4, "batch_size": 8, "lr": 0.02},
    }


def rounds(pattern: str) -> int:
    return max(
        (sum(e["type"] == "round" for e in read_events(p)) for p in Path().glob(pattern)), default=0
    )


class Lines(NullProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


class Seen(Lines):
    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[tuple[str, int]] = []

    def round(self, number: str, label: str, done: int, *more: Any) -> None:
        self.rounds.append((number, done))


def disturbed(nodes: Any, call: Any, pattern: str, notice: bool = False, last: int = 4) -> Any:
    """Run in a thread, and replace the worker node a moment after the second round was recorded.

    With notice, Ray is told some seconds before, as an autoscaler does for a spot instance.
    """
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    end = time.monotonic() + 120
    while rounds(pattern) < 2 and thread.is_alive() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    if notice:
        drain(nodes)
        time.sleep(4)
    assert 2 <= rounds(pattern) < last
    nodes.remove_node(nodes.worker, allow_graceful=False)
    nodes.worker = nodes.add_node(num_cpus=1)
    thread.join(120)
    assert found, "the run did not end"
    return found[0]


def drain(nodes: Any) -> None:
    """Give the notice by Ray's own command."""
    command = f"ray drain-node --address {nodes.address} --node-id {nodes.worker.node_id} "
    command += "--reason DRAIN_NODE_REASON_PREEMPTION --reason-message spot "
    subprocess.run(
        [*command.split(), "--deadline-remaining-seconds", "60"],
        check=True,
        capture_output=True,
        timeout=60,
    )


def test_a_run_survives_the_loss_of_a_node(
    tmp_cwd: Path, digits: dict[str, Any], nodes: Any
) -> None:
    # No checkpoint has states before the end, so those on the node are gone: the run goes back to
    # the beginning.
    settings = {**work(digits), "rounds": 8, "checkpoint": {"every": 8, "min_seconds": 0}}
    whole = runner.run({"experiment": {**settings, "resources": {"executor": "inline"}}})
    progress = Lines()
    result = disturbed(
        nodes,
        lambda: runner.run({"experiment": {**settings, "name": "lost"}}, progress=progress),
        "runs/lost/001/journal.jsonl",
        last=8,
    )
    assert result.sha256 == whole.sha256
    assert list(result.history["round"]) == [*range(1, 9)]
    assert any("lost with the node" in line for line in progress.lines)


def test_a_sweep_survives_the_loss_of_a_node(
    tmp_cwd: Path, digits: dict[str, Any], nodes: Any
) -> None:
    content = {
        "experiment": {**work(digits), "name": "sweep", "output": str(tmp_cwd / "runs")},
        "space": {"local.lr": {"grid": [0.02, 0.05]}},
        "sweep": {"metric": "auto"},  # else it would keep validation samples
    }
    whole = {
        lr: runner.run(
            {"experiment": {**work(digits), "resources": {"executor": "inline"}}},
            [f"local.lr={lr}"],
        )
        for lr in (0.02, 0.05)
    }
    result = disturbed(nodes, lambda: api.tune(content), "runs/sweep/001/trials/*/journal.jsonl")
    table = result.results.set_index("local.lr")
    assert {lr: table.loc[lr, "sha256"] for lr in whole} == {
        lr: run.sha256 for lr, run in whole.items()
    }


def test_a_node_that_is_drained_takes_no_client_state_with_it(
    tmp_cwd: Path, digits: dict[str, Any], nodes: Any
) -> None:
    settings = {
        **work(digits),
        "rounds": 12,
        "checkpoint": {"every": 12, "min_seconds": 0},
        "faults": {"attempts": 1},  # which the loss of a node must not use up
    }
    whole = runner.run({"experiment": {**settings, "resources": {"executor": "inline"}}})
    progress = Lines()
    result = disturbed(
        nodes,
        lambda: runner.run({"experiment": {**settings, "name": "drained"}}, progress=progress),
        "runs/drained/001/journal.jsonl",
        notice=True,
        last=12,
    )
    assert result.sha256 == whole.sha256 and list(result.history["round"]) == [*range(1, 13)]
    assert any("a node will soon be gone" in line for line in progress.lines)
    assert not any("lost with the node" in line for line in progress.lines)


def test_a_trial_on_a_node_that_is_drained_loses_a_round_at_most(
    tmp_cwd: Path, digits: dict[str, Any], nodes: Any
) -> None:
    content = {
        "experiment": {
            **work(digits),
            "rounds": 20,
            "name": "spot",
            "output": str(tmp_cwd / "runs"),
            "resources": {"executor": "inline"},
            "checkpoint": {"every": 20, "min_seconds": 0},
        },
        "space": {"local.lr": {"grid": [0.02, 0.05]}},
        "sweep": {"metric": "auto", "max_failures": 1},
    }
    progress = Seen()
    result = disturbed(
        nodes,
        lambda: api.tune(content, progress=progress),
        "runs/spot/001/trials/*/journal.jsonl",
        notice=True,
        last=20,
    )
    assert list(result.results["status"]) == ["finished", "finished"]
    assert any("lost its node" in line for line in progress.lines), progress.lines
    for number in ("0001", "0002"):
        seen = [round_ for trial, round_ in progress.rounds if trial == number]
        assert seen[-1] == 20
        assert all(after >= before for before, after in itertools.pairwise(seen)), seen


@pytest.mark.parametrize("nodes", [{}], indirect=True, ids=["ray's own health checks"])
def test_a_node_that_is_lost_uses_up_no_attempt_under_ray_s_own_health_checks(
    tmp_cwd: Path, digits: dict[str, Any], nodes: Any
) -> None:
    """For fifteen seconds, until those have failed, Ray says only that an actor is unavailable."""
    alone = {"resources": {"executor": "inline"}, "checkpoint": {"every": 20, "min_seconds": 0}}
    content = {
        "experiment": {
            **work(digits),
            **alone,
            "rounds": 8,
            "name": "trials",
            "output": str(tmp_cwd / "runs"),
        },
        "space": {"local.lr": {"grid": [0.02, 0.05]}},
        "sweep": {"metric": "auto", "max_failures": 0},
    }
    progress = Seen()
    swept = disturbed(
        nodes,
        lambda: api.tune(content, progress=progress),
        "runs/trials/001/trials/*/journal.jsonl",
        last=8,
    )
    assert list(swept.results["status"]) == ["finished", "finished"], progress.lines
    assert any("lost its node" in line for line in progress.lines), progress.lines
    assert not any("crashed" in line for line in progress.lines), progress.lines

    settings = {**work(digits), "algorithm": "fedavg", "rounds": 12, "faults": {"attempts": 1}}
    whole = runner.run({"experiment": {**settings, **alone}})
    kept = disturbed(
        nodes,
        lambda: runner.run({"experiment": {**settings, "name": "tasks"}}),
        "runs/tasks/001/journal.jsonl",
        last=12,
    )
    assert kept.sha256 == whole.sha256
