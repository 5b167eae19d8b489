"""A node killed in the middle of a round, and replaced: run and sweep continue to the bits of an undisturbed run."""

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from flray import api
from flray.runs import runner
from tests.clusters import Gates, joined_cluster
from tests.helpers import Said, Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HEALTH_CHECKS = {"period_ms": "400", "timeout_ms": "10000", "failure_threshold": "10"}
"""A lost node refuses at once, and a slow one has ten times ten seconds to answer.

For four seconds Ray says only that an actor of a lost node is unavailable (by its defaults: fifteen)."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A head with one CPU and a worker node with one; client states (250 kB) stay on the node that made them."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_max_direct_call_object_size", "100000")
        for name, value in HEALTH_CHECKS.items():
            environment.setenv(f"RAY_health_check_{name}", value)
        # One thread for all tests: Ray's processes end with the thread that started them.
        with (
            ThreadPoolExecutor(1) as thread,
            joined_cluster({"num_cpus": 1}, {"num_cpus": 1}, forks=False) as cluster,
        ):
            cluster.thread = thread
            yield cluster


class Seen(Said):
    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[tuple[str, int]] = []

    def round(self, number: Any, label: str, done: int = 0, *more: Any) -> None:
        self.rounds.append((number, done))


class Disturbance:
    """Replaces the worker node in the middle of a round, in which two processes wait.

    With `notice`, Ray is told in an earlier round, as an autoscaler does for a spot instance. With
    `both`, both processes have trained in that round: one alone may be faster than the other starts.
    """

    def __init__(
        self, nodes: Any, progress: Seen, lost: int, notice: int = 0, both: int = 0
    ) -> None:
        self.nodes, self.progress, self.lost, self.notice = nodes, progress, lost, notice
        self.both, self.ended = both, threading.Event()
        self.gates = Gates(Path.cwd(), (both, notice, lost))

    def __enter__(self) -> None:
        self.running = self.nodes.thread.submit(self.run)

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        if error[0] is None:
            self.running.result()

    def run(self) -> None:
        try:
            self.disturb()
        finally:
            for number in (self.both, self.notice, self.lost):
                self.gates.open(number)

    def disturb(self) -> None:
        if self.both:
            self.wait_for(lambda: self.gates.reached(self.both) == 2)
            self.gates.open(self.both)
        self.wait_for(lambda: self.gates.reached(self.notice or self.lost) == 2)
        if self.notice:
            drain(self.nodes)
            time.sleep(1.5)  # those who look once in a second look again after this round
            self.gates.open(self.notice)
            # A trial stays on a drained node; a run gives no work to its actor there.
            told = "a node will soon be gone"
            self.wait_for(
                lambda: self.gates.reached(self.lost) >= 2 - (told in str(self.progress.lines))
            )
        self.lose(self.nodes.workers.pop())
        self.gates.open(self.lost)
        # Python allows handlers of signals in the main thread only.
        with patch("ray._private.utils.set_sigterm_handler"):
            self.nodes.workers.append(self.nodes.add_node(num_cpus=1))

    def lose(self, node: Any) -> None:
        """End a node's processes with it: those that a raylet leaves could finish their rounds."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        held = raylet.children(recursive=True)
        self.nodes.remove_node(node, allow_graceful=False)
        for process in held:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(held)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert not self.ended.wait(0.05), "the call ended before the node was lost"


def drain(nodes: Any) -> None:
    """Give the notice by Ray's own command."""
    command = f"ray drain-node --address {nodes.address} --node-id {nodes.workers[0].node_id} "
    command += "--reason DRAIN_NODE_REASON_PREEMPTION --reason-message spot "
    command += "--deadline-remaining-seconds 300"
    subprocess.run(command.split(), check=True, capture_output=True)


def work(digits: Settings, rounds: int, **changes: Any) -> dict[str, Any]:
    """Rounds in which every client keeps a state; no checkpoint has them before the end."""
    own: dict[str, Any] = {"plugins": ["held.py"], "algorithm": "held", "rounds": rounds}
    own["checkpoint"] = {"every": rounds, "min_seconds": 0}
    return {**digits, **own, "partition": {"name": "iid", "clients": 6}, **changes}


def undisturbed(settings: Settings, **changes: Any) -> str:
    alone = {"name": "whole", "algorithm": "local", "plugins": []}
    content = {**settings, **alone, "resources": {"executor": "inline"}, **changes}
    return runner.run({"experiment": content}).sha256


@pytest.mark.parametrize("notice", [0, 2], ids=["lost", "drained"])
def test_a_run_survives(tmp_cwd: Path, digits: Settings, nodes: Any, notice: int) -> None:
    """The states on the node are gone, so the run goes back to the beginning; a drained one has none. Nobody is blamed.

    Two calls at most wait at an actor, so each has trained two clients of neighbouring numbers in
    round 2, and the other takes over only one of them. An evaluation could copy the second one.
    """
    rounds, progress = 6 if notice else 4, Seen()
    settings = work(digits, rounds, faults={"attempts": 1})
    settings["evaluation"] = {"every": 1 if notice else rounds}
    when = {"notice": notice, "lost": 5} if notice else {"both": 2, "lost": 3}
    with Disturbance(nodes, progress, **when):
        result = runner.run({"experiment": settings}, progress=progress)
    assert result.sha256 == undisturbed(settings)
    assert list(result.history["round"]) == [*range(1, rounds + 1)]
    assert bool(progress.find("a node will soon be gone")) == bool(notice), progress.lines
    assert bool(progress.find("lost with the node")) != bool(notice), progress.lines


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("notice", [0, 2], ids=["lost", "drained"])
def test_a_sweep_survives(tmp_cwd: Path, digits: Settings, nodes: Any, notice: int) -> None:
    """The trial on it uses up no attempt; if the node was drained, it loses a round at most."""
    settings = work(digits, 5, resources={"executor": "inline"}, output=str(tmp_cwd / "runs"))
    content = {"experiment": settings, "space": {"local.lr": {"grid": [0.02, 0.05]}}}
    content["sweep"] = {"metric": "auto", "max_failures": 0}
    progress = Seen()
    with Disturbance(nodes, progress, notice=notice, lost=3):
        result = api.tune(content, progress=progress)
    assert list(result.results["status"]) == ["finished", "finished"], progress.lines
    assert progress.find("lost its node"), progress.lines
    assert not progress.find("crashed"), progress.lines
    found = result.results.set_index("local.lr")["sha256"]
    for lr in (0.02, 0.05):
        local = {**settings["local"], "lr": lr}
        assert found[lr] == undisturbed(settings, local=local)
    for number in ("0001", "0002"):
        seen = [done for trial, done in progress.rounds if trial == number]
        assert seen[-1] == 5
        steps = [after - before for before, after in itertools.pairwise(seen)]
        assert not notice or min(steps) >= 0, seen
