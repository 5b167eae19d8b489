"""Clusters of several nodes on this machine, and a method that waits in the middle of a round."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.forked import light_nodes

HELD = """
import os
import time
from pathlib import Path

from flray import register_algorithm, registry

@register_algorithm("held")
class Held(registry.algorithms.get({method!r})):
    def train(self, client):
        round_, here = client.round + 1, Path({folder!r})
        if round_ in {rounds}:
            (here / f"reached-{{round_}}-{{os.getpid()}}").touch()
            while not (here / f"open-{{round_}}").exists():
                time.sleep(0.05)
        return super().train(client)
"""


class Gates:
    """Rounds in which the processes that train with the method ``held`` wait; otherwise it is `method`.

    Its file ``held.py`` and the marks are in a folder.
    """

    def __init__(self, folder: Path, rounds: Sequence[int], method: str = "local") -> None:
        self.folder = folder
        text = HELD.format(folder=str(folder), rounds=[*rounds], method=method)
        (folder / "held.py").write_text(text)

    def reached(self, number: int) -> int:
        return len(list(self.folder.glob(f"reached-{number}-*")))

    def wait_until_gone(self, number: int) -> None:
        for path in self.folder.glob(f"reached-{number}-*"):
            with suppress(psutil.NoSuchProcess):
                psutil.Process(int(path.name.rpartition("-")[2])).wait(timeout=120)

    def open(self, number: int) -> None:
        (self.folder / f"open-{number}").touch()


@contextmanager
def joined_cluster(
    head: dict[str, Any], *workers: dict[str, Any], forks: bool = True
) -> Iterator[Any]:
    """Start and join a cluster of nodes by resources; a Ray that this process has already is ended first."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    with light_nodes(forks):
        cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **head})
        try:
            # Before there are others of the same address: an older Ray may join this process to any.
            ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
            cluster.workers = [cluster.add_node(**resources) for resources in workers]
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
