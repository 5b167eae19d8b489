"""Clusters of several nodes on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def joined_cluster(head: dict[str, Any], *workers: dict[str, Any]) -> Iterator[Any]:
    """Start and join a cluster of nodes by resources; a Ray that this process has already is ended first."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **head})
    try:
        # Before there are others of the same address: an older Ray may join this process to any.
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        cluster.workers = [cluster.add_node(**resources) for resources in workers]
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
