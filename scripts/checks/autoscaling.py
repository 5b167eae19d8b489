"""Run a sweep on a cluster that has no worker until one is asked for, with Ray's own fake autoscaler.

    python scripts/checks/autoscaling.py

The head has no CPU for work. The autoscaler starts worker nodes of one CPU, processes of this machine, while trials
wait, at most three. The sweep must wait for the first, run to its end on them, and have the digests of the same sweep
without a cluster. That idle nodes go again cannot be seen with it: Ray 2.60 takes its nodes, of one address, for
one.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
import yaml
from ray.util import get_node_ip_address

from flray.tuning.trial_store import trial_folders

CLUSTER = """
cluster_name: fake
max_workers: 3
upscaling_speed: 1.0
idle_timeout_minutes: 5
provider: {type: fake_multinode, disable_node_updaters: true}
available_node_types:
  ray.head.default: {resources: {CPU: 0}, max_workers: 0, node_config: {}}
  worker: {resources: {CPU: 1}, min_workers: 0, max_workers: 3, node_config: {}}
head_node_type: ray.head.default
file_mounts_sync_continuously: false
auth: {}
head_node: {}
worker_nodes: {}
file_mounts: {}
cluster_synced_files: []
rsync_exclude: []
rsync_filter: []
initialization_commands: []
setup_commands: []
head_setup_commands: []
worker_setup_commands: []
head_start_ray_commands: []
worker_start_ray_commands: []
"""
SWEEP = """
experiment:
  rounds: 20
  data: {name: digits-sklearn, samples: 400}
  partition: domains
  model: lenet
  algorithm: fedavg
  local: {batch_size: 16}
  tracking: {uri: null}
sweep: {seeds: [0], reuse: false}
"""
"""FedAvg on small digits, a learning rate per trial."""


@contextlib.contextmanager
def cluster(place: Path) -> Iterator[str]:
    """Start a head with the autoscaler, yield its address, and end all its processes."""
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    address = f"{get_node_ip_address()}:{port}"
    content = yaml.safe_load(CLUSTER)
    content["provider"]["gcs_address"] = address
    (place / "cluster.json").write_text(json.dumps(content))
    options = [f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
    options += [f"--autoscaling-config={place / 'cluster.json'}", f"--temp-dir={place / 'ray'}"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    with (place / "log.txt").open("wb") as log:
        fake = os.environ | {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        process = subprocess.Popen([*command, *options], env=fake, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while b"Ray runtime started" not in (place / "log.txt").read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((place / "log.txt").read_text())
            time.sleep(0.2)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        for other in psutil.process_iter(["cmdline"]):  # the nodes, whose parent is gone
            if any(str(place) in part for part in other.info["cmdline"] or ()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    other.kill()


def digests(folder: Path) -> dict[str, Any]:
    """Return the status and the digest of each trial."""
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
    # Ray's command line takes a token that lies in the home, and its drivers take none.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    rates = [round(0.01 * 1.1**i, 6) for i in range(options.trials)]
    content = {**yaml.safe_load(SWEEP), "space": {"local.lr": {"grid": rates}}}
    # Sockets' paths may have about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="fl", ignore_cleanup_errors=True) as name:
        place = Path(name)
        (place / "sweep.yaml").write_text(json.dumps(content))
        command = [sys.executable, "-m", "flray", "tune", str(place / "sweep.yaml")]
        command += [f"output={place}", f"resources.executor={options.executor}"]
        with cluster(place) as address:
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
            counts, begun = [_workers()], time.monotonic()
            with subprocess.Popen([*command, "name=cluster", "--address", address]) as process:
                while process.poll() is None:
                    time.sleep(0.5)
                    counts.append(_workers())
            seconds = time.monotonic() - begun
            ray.shutdown()
        subprocess.run([*command, "name=alone"], check=False)
        found, alone = (digests(place / kind / "001") for kind in ("cluster", "alone"))
    right = found == alone and {status for status, _ in found.values()} == {"finished"}
    print(
        f"{len(found)} trials in {seconds:.0f} s; workers {counts[0]} before, at most {max(counts)}; "
        f"the same digests as without a cluster: {right}"
    )
    return 0 if right and counts[0] == 0 and max(counts) > 1 else 1


def _workers() -> int:
    return sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in ray.nodes())


if __name__ == "__main__":
    sys.exit(main())
