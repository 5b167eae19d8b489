"""Run a sweep of many small trials over several nodes while nodes are killed and added; compare it with a quiet one.

    python scripts/checks/many_nodes.py --trials 200 --nodes 4 --seconds 4

The nodes are processes of this machine, started by Ray's own cluster tool. Every few seconds one of them, never the
head, is killed with SIGKILL, and another is added a moment later. The same sweep then runs undisturbed: every trial
must have ended once, with every round once, the same values and the same digest.

With --away the disturbed sweep is tracked by an MLflow server that is killed and started again, so that it is away
about half of the time: it must end up with every round of every trial once, as the journals have them.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROUNDS = 6
MEASURED = ("score", "train/loss", "bytes/up")


def sweep_of(
    trials: int,
    output: Path,
    name: str,
    seeds: int = 4,
    growth: float = 1.02,
    changes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the sweep: FedAvg on small digits, a learning rate and a seed per trial."""
    rates = [round(0.01 * growth**i, 6) for i in range(-(-trials // seeds))]
    experiment = {
        "name": name,
        "rounds": ROUNDS,
        "data": {"name": "digits-sklearn", "samples": 120},
        "partition": "domains",
        "model": "lenet",
        "algorithm": "fedavg",
        "local": {"batch_size": 16},
        "resources": {"executor": "inline"},
        "checkpoint": {"min_seconds": 0},
        "tracking": {"uri": None},
        "output": str(output),
        **(changes or {}),
    }
    sweep = {"seeds": [*range(seeds)], "reuse": False}
    return {"experiment": experiment, "space": {"local.lr": {"grid": rates}}, "sweep": sweep}


def facts(folder: Path) -> dict[str, Any]:
    """Return what each trial ended with: status, digest, and its rounds with what they measured."""
    from flray.records.events import read_events
    from flray.tuning.trial_store import trial_folders

    found = {}
    for trial in trial_folders(folder):
        events = read_events(trial.path)
        rounds = [event for event in events if event["type"] == "round"]
        identity = trial.identity
        ends = sum(event["type"] == "end" for event in events)
        course = [(one["round"], *(one["metrics"][name] for name in MEASURED)) for one in rounds]
        found[trial.number] = identity["status"], identity.get("sha256"), ends, course
    return found


def kill_while(thread: threading.Thread, cluster: Any, seconds: float, seed: int) -> int:
    """Kill a worker node every few seconds and add another, as long as the thread lives; return how many."""
    draw, killed = random.Random(seed), 0
    while True:
        thread.join(seconds * draw.uniform(0.5, 1.5))
        if not thread.is_alive():
            return killed
        workers = sorted(cluster.worker_nodes, key=lambda node: str(node.node_id))
        cluster.remove_node(draw.choice(workers), allow_graceful=False)
        killed += 1
        time.sleep(draw.uniform(0.0, 2.0))
        cluster.add_node(num_cpus=1)


def come_and_go(server: Any, seconds: float, seed: int, done: threading.Event) -> float:
    """Kill an MLflow server and start it again until `done` is set; return the share of time that it was away."""
    draw, begun, away = random.Random(seed), time.monotonic(), 0.0
    while not done.wait(seconds * draw.uniform(0.5, 1.5)):
        left = time.monotonic()
        server.kill()
        done.wait(seconds * draw.uniform(0.5, 1.5))
        server.start()
        away += time.monotonic() - left
    return away / (time.monotonic() - begun)


def untracked(uri: str, found: dict[str, Any]) -> list[str]:
    """Return the trials whose rounds MLflow lacks, has twice, or has with other values than the journal."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    runs = client.search_runs(experiments, max_results=10_000)
    wrong = []
    for number, (_, digest, _, rounds) in found.items():
        mine = [run for run in runs if run.data.tags.get("trial") == number]
        histories = (client.get_metric_history(run.info.run_id, "train/loss") for run in mine)
        course = [(metric.step, metric.value) for history in histories for metric in history]
        kept = [(one[0], one[1 + MEASURED.index("train/loss")]) for one in rounds]
        same = len(course) == len(kept) and all(
            a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=1e-12)
            for a, b in zip(sorted(course), kept, strict=True)
        )
        ended = [(run.info.status, run.data.tags.get("model.sha256")) for run in mine]
        if not same or ended != [("FINISHED", digest)]:
            wrong.append(f"trial {number}: MLflow has {ended} {sorted(course)}")
    return wrong


def main() -> int:
    """Run both sweeps and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=4, help="with the head")
    parser.add_argument("--seconds", type=float, default=4.0, help="between two kills, about")
    about = "seconds, about, of a server's time"
    parser.add_argument("--away", type=float, default=0.0, help=about)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # A node is known to be gone after a second or two.
    os.environ |= {
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "2",
    }
    import ray
    from ray.cluster_utils import Cluster

    from flray import api

    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.tracking.helpers import Server

    with tempfile.TemporaryDirectory() as place:
        head = {"num_cpus": 1, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(options.nodes - 1):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        found, seconds, killed, lacking, share = {}, {}, 0, [], [0.0]
        server, done = Server(Path(place) / "server"), threading.Event()
        going = threading.Thread(
            target=lambda: share.append(come_and_go(server, options.away, options.seed, done))
        )
        for name in ("disturbed", "quiet"):
            content = sweep_of(options.trials, Path(place), name)
            if name == "disturbed" and options.away:
                server.start()
                going.start()
                content["experiment"]["tracking"]["uri"] = server.uri
            thread = threading.Thread(target=lambda: api.tune(content), daemon=True)  # noqa: B023
            begun = time.monotonic()
            thread.start()
            if name == "disturbed":
                # In this thread, for Ray starts a node's processes from the main one only.
                killed = kill_while(thread, cluster, options.seconds, options.seed)
            thread.join()
            seconds[name] = time.monotonic() - begun
            found[name] = facts(Path(place) / name / "001")
            if name == "disturbed" and options.away:
                done.set()
                going.join()
                # What a server that was away at the end lacks, as the sweep's last line says.
                command = [sys.executable, "-m", "flray", "sync", f"{place}/disturbed/001"]
                subprocess.run(command, check=True)
                lacking = untracked(server.uri, found[name])
                server.kill()
        ray.shutdown()
        cluster.shutdown()
    disturbed, quiet = found["disturbed"], found["quiet"]
    wrong = [number for number in quiet if disturbed.get(number) != quiet[number]]
    rounds = [*range(1, ROUNDS + 1)]
    whole = all(
        (status, ends, [one[0] for one in course]) == ("finished", 1, rounds)
        for status, _, ends, course in disturbed.values()
    )
    for number in wrong[:5]:
        print(f"trial {number}: found {disturbed.get(number)}, and quiet {quiet[number]}")
    print(
        f"{len(disturbed)} trials on {options.nodes} nodes, {killed} nodes killed: "
        f"{len(wrong)} differ from the quiet sweep, every trial whole: {whole}; "
        f"{seconds['disturbed']:.0f} s, quiet {seconds['quiet']:.0f} s"
    )
    if options.away:
        print(
            f"MLflow's server was away {100 * share[-1]:.0f} % of the time: {len(lacking)} trials "
            "are not there as in the journals"
        )
        print(*lacking[:5], sep="\n")
    right = not wrong and not lacking and whole
    return 0 if right and len(disturbed) == len(quiet) >= options.trials else 1


if __name__ == "__main__":
    sys.exit(main())
