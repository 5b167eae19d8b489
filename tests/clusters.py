"""Clusters of several nodes on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def joined_cluster(head: dict[str, Any], *workers: dict[str, Any]) -> Iterator[Any]:
    """Start a cluster and join it; a Ray that this process has already is ended first.

    Parameters
    ----------
    head : dict
        Resources of the first node, for example ``{"num_cpus": 1}``.
    *workers : dict
        Those of the other nodes, which are `workers` of the cluster.
    """
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **head})
    try:
        cluster.workers = [cluster.add_node(**resources) for resources in workers]
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
