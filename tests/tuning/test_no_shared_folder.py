"""A sweep on nodes that share no folder with the driver: checkpoints reach it over Ray, also those of lost nodes."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flray import api
from flray.records import read_events
from flray.runs import runner
from tests.clusters import Gates
from tests.forked import light_nodes
from tests.helpers import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("no_pictures")]

HIDDEN = """
mount -t tmpfs none "$1"
exec "$2" start --address "$3" --num-cpus 1 --block --disable-usage-stats
"""
RATES = [0.02, 0.03, 0.04]  # one for each of the nodes


class Nodes:
    """A head with a CPU, and workers with one each that see an empty folder where the output is."""

    def __init__(self, hidden: Path) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self._hidden, self._started = hidden, list[subprocess.Popen[bytes]]()
        head = {"num_cpus": 1, "include_dashboard": False}
        with light_nodes():
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=self._cluster.address, logging_level="ERROR", log_to_driver=False)

    def add(self) -> None:
        import ray

        before = {node["NodeID"] for node in ray.nodes()}
        command = ["unshare", "--mount", "sh", "-ec", HIDDEN, "sh", str(self._hidden)]
        command += [str(Path(sys.executable).with_name("ray")), self._cluster.address]
        self._started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        while before.issuperset(node["NodeID"] for node in ray.nodes()):
            assert self._started[-1].poll() is None
            time.sleep(0.2)

    def kill(self) -> None:
        started = self._started.pop(0)
        for process in [*psutil.Process(started.pid).children(recursive=True), started]:
            process.kill()
        started.wait(30)

    def end(self) -> None:
        import ray

        ray.shutdown()
        while self._started:
            self.kill()
        self._cluster.shutdown()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    asked = ["unshare", "--mount", "true"]
    if not shutil.which("unshare") or subprocess.run(asked).returncode:
        pytest.skip("mounting needs rights that this user lacks")
    # A killed node refuses at once, and a slow one has time to answer.
    for name, value in (("period_ms", "200"), ("timeout_ms", "10000"), ("failure_threshold", "5")):
        monkeypatch.setenv(f"RAY_health_check_{name}", value)
    (tmp_path / "runs").mkdir()
    found = Nodes(tmp_path / "runs")
    try:
        found.add()
        found.add()
        yield found
    finally:
        found.end()


def test_the_digests_are_one_machine_s(tmp_cwd: Path, digits: Settings, nodes: Nodes) -> None:
    """A node is lost in the middle of a round of all trials; its trial goes on on the one that comes."""
    (tmp_cwd / "marks").mkdir()
    gates = Gates(tmp_cwd / "marks", [2])
    settings = {**digits, "algorithm": "local", "resources": {"executor": "inline"}}
    one = {"experiment": {**settings, "output": "alone"}}
    alone = {rate: runner.run(one, [f"local.lr={rate}"]).sha256 for rate in RATES}
    held = {"algorithm": "held", "plugins": [str(tmp_cwd / "marks" / "held.py")]}
    experiment = {**settings, **held, "name": "sweep", "output": str(tmp_cwd / "runs")}
    content = {"experiment": experiment, "space": {"local.lr": {"grid": RATES}}}
    content["sweep"] = {"metric": "auto", "max_failures": 0}
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(api.tune(content)), daemon=True)
    thread.start()

    def wait_for(processes: int) -> None:
        while gates.reached(2) < processes:
            assert thread.is_alive(), "the sweep ended before a node was killed"
            time.sleep(0.1)

    wait_for(3)
    journals = list(Path().glob("runs/sweep/001/trials/*/journal.jsonl"))
    assert len(journals) == 3
    for journal in journals:
        assert [one["round"] for one in read_events(journal) if one["type"] == "round"] == [1]
    nodes.kill()
    nodes.add()
    wait_for(4)
    gates.open(2)
    thread.join()
    assert found, "the sweep did not end"
    table = found[0].results.set_index("local.lr")
    assert {rate: table.loc[rate, "sha256"] for rate in RATES} == alone
