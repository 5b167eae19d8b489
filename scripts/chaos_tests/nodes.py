"""A Ray cluster of two nodes on this machine; each line on stdin replaces the worker node by another one."""

import os
import sys


def main() -> None:
    """Start the cluster, print its address, and obey."""
    for name, value in (("period_ms", "500"), ("timeout_ms", "2000"), ("failure_threshold", "2")):
        os.environ[f"RAY_health_check_{name}"] = value  # a lost node is known after a second or two
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    worker = cluster.add_node(num_cpus=1)
    print(cluster.address, flush=True)
    for _ in sys.stdin:
        cluster.remove_node(worker, allow_graceful=False)
        worker = cluster.add_node(num_cpus=1)
        print("replaced", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
