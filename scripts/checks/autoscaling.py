"""Run a sweep on a cluster that has no worker until one is asked for, with Ray's own fake autoscaler.

    python scripts/checks/autoscaling.py

The head has no CPU for work. The autoscaler starts worker nodes of one CPU, processes of this machine, while trials
wait, at most three, and removes them once they have been idle for a while. The sweep must run to its end on
them, its digests must be those of the same sweep without a cluster, and in the end no worker may be left.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

WORKERS, IDLE_MINUTES, PATIENCE = 3, 0.1, 180.0


def sweep_of(trials: int, output: Path, name: str, executor: str) -> dict[str, Any]:
    """Return the sweep: FedAvg on small digits, a learning rate per trial."""
    return {
        "experiment": {
            "name": name,
            "rounds": 20,
            "data": {"name": "digits-sklearn", "samples": 400},
            "partition": "domains",
            "model": "lenet",
            "algorithm": "fedavg",
            "local": {"batch_size": 16},
            "resources": {"executor": executor},
            "tracking": {"uri": None},
            "output": str(output),
        },
        "space": {"local.lr": {"grid": [round(0.01 * 1.1**i, 6) for i in range(trials)]}},
        "sweep": {"seeds": [0], "reuse": False},
    }


def digests(folder: Path) -> dict[str, Any]:
    """Return the status and the digest of each trial."""
    from flray.tuning.trial_store import trial_folders

    return {
        trial.number: (trial.identity["status"], trial.identity.get("sha256"))
        for trial in trial_folders(folder)
    }


def main() -> int:
    """Run the sweep on the cluster and without one, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--executor", choices=["inline", "ray"], default="inline")
    options = parser.parse_args()
    import ray
    from ray.cluster_utils import AutoscalingCluster

    from flray import tuning

    os.environ["AUTOSCALER_UPDATE_INTERVAL_S"] = "1"
    cluster = AutoscalingCluster(
        head_resources={"CPU": 0},
        worker_node_types={
            "worker": {
                "resources": {"CPU": 1},
                "node_config": {},
                "min_workers": 0,
                "max_workers": WORKERS,
            }
        },
        idle_timeout_minutes=IDLE_MINUTES,
    )
    cluster.start()
    with tempfile.TemporaryDirectory() as place:
        try:
            ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
            counts = [_workers(ray)]
            content = sweep_of(options.trials, Path(place), "cluster", options.executor)
            thread = threading.Thread(target=lambda: tuning.tune(content), daemon=True)
            begun = time.monotonic()
            thread.start()
            while thread.is_alive():
                thread.join(0.5)
                counts.append(_workers(ray))
            seconds = time.monotonic() - begun
            deadline = time.monotonic() + PATIENCE
            while _workers(ray) and time.monotonic() < deadline:
                time.sleep(1.0)
            counts.append(_workers(ray))
        finally:
            ray.shutdown()
            cluster.shutdown()
        tuning.tune(sweep_of(options.trials, Path(place), "alone", options.executor))
        found, alone = (digests(Path(place) / name / "001") for name in ("cluster", "alone"))
    right = found == alone and {status for status, _ in found.values()} == {"finished"}
    print(
        f"{len(found)} trials in {seconds:.0f} s; workers {counts[0]} before, at most {max(counts)}, "
        f"{counts[-1]} in the end; the same digests as without a cluster: {right}"
    )
    return 0 if right and counts[0] == counts[-1] == 0 and max(counts) > 1 else 1


def _workers(ray: Any) -> int:
    return sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in ray.nodes())


if __name__ == "__main__":
    sys.exit(main())
