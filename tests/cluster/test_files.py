"""The files under cluster/: Ray takes them, their names resolve, and nodes are shut, small and cheap."""

import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import cli

from flray import api as sweeps

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
RAY_UP = ("aws", "gcp", "on-premise")
KUBERAY = ("cluster", "job")


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all((folder / f"{name}.yaml").read_text()) if d is not None]


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_accepts_the_cluster_file_and_the_choice_in_its_comment(name: str) -> None:
    text = (CLUSTER / f"{name}.yaml").read_text()
    for content in (yaml.safe_load(text), yaml.safe_load(text.replace("\n# docker:", "\ndocker:"))):
        validate_config(prepare_config(content))
    assert ("docker" in content) == (name != "on-premise")


@pytest.mark.parametrize("name", KUBERAY)
def test_the_choices_in_the_comments_of_a_manifest_fit_its_indentation(name: str) -> None:
    text = (CLUSTER / "kuberay" / f"{name}.yaml").read_text()
    chosen = re.sub(r"# (labels|gcsFaultToleranceOptions): ", r"\1: ", text)
    *_, content = yaml.safe_load_all(chosen)
    assert content["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "QUEUE"}
    assert ("gcsFaultToleranceOptions" in content["spec"]) == (name == "cluster")
    if name == "job":  # what Kueue asks for
        assert content["spec"]["shutdownAfterJobFinishes"]
        assert "enableInTreeAutoscaling" not in content["spec"]["rayClusterSpec"]


def checkout(folder: Path, *names: str, **programs: str) -> Path:
    """Copy files of the checkout into a folder, with programs of its environment; return the log that these write."""
    files = {name: (ROOT / name).read_text() for name in names}
    for name, text in programs.items():
        files[f".venv/bin/{name}"] = f"#!/usr/bin/env bash\n{text}\n"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return folder / "log"


def test_mlflow_on_the_head_has_its_store_from_a_file_and_shows_no_password(tmp_path: Path) -> None:
    names = [f"cluster/node/{name}" for name in ("head", "environment", "stop")]
    shown = f'{{ echo "$@"; env; }} > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/log'
    log = checkout(tmp_path, *names, ray="", mlflow=shown)

    def started(**given: str) -> tuple[str, dict[str, str]]:
        log.unlink(missing_ok=True)
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "RAY_AUTH_TOKEN": "x"}
        head = ["bash", tmp_path / names[0]]
        subprocess.run(head, env=environment | given, check=True, timeout=60)
        end = time.monotonic() + 120
        while not log.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        command, *lines = log.read_text().splitlines()
        return command, dict(line.split("=", 1) for line in lines if "=" in line)

    command, seen = started()
    assert seen["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    assert seen["MLFLOW_ARTIFACTS_DESTINATION"] == f"{tmp_path}/mlflow/artifacts"
    assert seen["MLFLOW_WORKERS"] == "1" and seen["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    guide = (ROOT / "docs" / "guide" / "cluster.md").read_text()
    (named,) = re.findall(r"```text\n(MLFLOW_.*?)```", guide, re.S)
    (tmp_path / "mlflow.env").write_text(named)
    command, seen = started()
    keys = re.findall(r"^\w+", named, re.M)
    assert named.splitlines() == [f"{key}={seen[key]}" for key in keys]
    assert "PASSWORD" not in command and "--host 127.0.0.1" in command


def test_shell_scripts_parse() -> None:
    for name in ("slurm.sh", "node/environment", "node/setup", "node/head", "node/worker"):
        assert subprocess.run(["bash", "-n", CLUSTER / name], check=False).returncode == 0, name


def test_the_commands_of_the_skypilot_task_parse_and_exist() -> None:
    (content,) = read(CLUSTER, "skypilot")
    commands = "\n".join([content["setup"], content["run"]])
    assert subprocess.run(["bash", "-n", "-c", commands], check=False).returncode == 0
    named = set(re.findall(r"cluster/node/(\w+)", commands))
    assert named == {"setup", "environment", "worker", "head", "stop"}
    assert all((CLUSTER / "node" / name).is_file() for name in named)
    assert (ROOT / content["envs"]["SWEEP"]).is_file()


@pytest.mark.parametrize("name", RAY_UP)
def test_the_commands_of_the_files_exist(name: str) -> None:
    (content,) = read(CLUSTER, name)
    for key in ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands"):
        for command in content[key]:
            shell, script, *_ = command.rpartition("&& ")[2].split()
            assert shell == "bash"
            assert (ROOT / script.removeprefix("~/flray/")).is_file(), command


def test_a_head_on_premise_starts_all_workers() -> None:
    """Ray's newer autoscaler takes the head for one of them, and leaves a worker out."""
    (content,) = read(CLUSTER, "on-premise")
    (command,) = content["head_start_ray_commands"]
    before, head = command.split("bash ~/flray/cluster/node/head ")
    assert before.split() == ["export", "RAY_enable_autoscaler_v2=0", "&&"]
    assert "--node-ip-address=" in head  # a host's own name may be that of its loopback


def test_the_commands_of_ray_that_files_and_pages_give_are_its_own() -> None:
    """Ray 2.60 has no ``ray rsync_down`` any more, only ``ray rsync-down``."""
    pages = [*ROOT.glob("docs/guide/*.md"), *ROOT.glob("scripts/checks/*")]
    for path in (*CLUSTER.rglob("*"), *pages):
        if path.is_file() and path.suffix != ".pyc":
            given = set(re.findall(r"(?<![\w./-])ray ([a-z][a-z_-]+)", path.read_text()))
            assert given <= set(cli.commands), path


@pytest.mark.parametrize("name", RAY_UP)
def test_the_whole_checkout_travels_to_the_nodes(name: str) -> None:
    """A pattern without a slash leaves out every file and folder of that name, at any depth."""
    (content,) = read(CLUSTER, name)
    how: dict[str, Any] = {"capture_output": True, "text": True, "check": True}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, **how).stdout.splitlines()

    def left_out(file: str, pattern: str) -> bool:
        parts = Path(file).parts
        names = parts[:1] if pattern.startswith("/") else parts
        return any(fnmatch.fnmatchcase(part, pattern.lstrip("/")) for part in names)

    assert "flray/api.py" in tracked
    assert [f for f in tracked for p in content["rsync_exclude"] if left_out(f, p)] == []


def test_nothing_listens_to_strangers() -> None:
    """Dashboard and MLflow answer on 127.0.0.1; what must cross machines asks for a token."""
    head = (CLUSTER / "node" / "head").read_text()
    assert "--dashboard-host=127.0.0.1" in head and "--host 127.0.0.1" in head
    assert "RAY_AUTH_MODE=token" in (CLUSTER / "node" / "environment").read_text()
    assert "--include-dashboard=false" in (CLUSTER / "slurm.sh").read_text()
    for name in KUBERAY:
        for document in read(CLUSTER / "kuberay", name):
            spec = document["spec"].get("rayClusterSpec", document["spec"])
            if "headGroupSpec" in spec:
                assert spec["authOptions"] == {"mode": "token"}
                assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    files = [path for path in CLUSTER.rglob("*") if path.is_file() and path.suffix != ".md"]
    assert not [path for path in files if "0.0.0.0" in path.read_text()]


def test_the_head_on_aws_may_look_up_the_images_of_its_workers() -> None:
    """EC2 resolves ``resolve:ssm:NAME`` with the rights of the caller: the head, which starts workers."""
    (content,) = read(CLUSTER, "aws")
    named = {node["node_config"]["ImageId"] for node in content["available_node_types"].values()}
    guide = (ROOT / "docs" / "guide" / "cluster.md").read_text()
    put = r"put-role-policy --role-name flray-head .*? --policy-document \\\n +'(.*?)'"
    policies = [json.loads(policy)["Statement"] for policy in re.findall(put, guide, re.S)]
    wanted = ("Allow", "ssm:GetParameters")
    statements = [one for policy in policies for one in policy]
    allowed = [s["Resource"] for s in statements if (s["Effect"], s["Action"]) == wanted]
    for image in named:
        name = image.removeprefix("resolve:ssm:")
        arn = f"arn:aws:ssm:{content['provider']['region']}::parameter{name}"
        assert name == image or any(fnmatch.fnmatchcase(arn, pattern) for pattern in allowed), image
    assert any(image.startswith("resolve:ssm:/") for image in named)


def pods(content: Any) -> Iterator[dict[str, Any]]:
    """Yield the specification of every pod below."""
    if isinstance(content, dict) and "containers" in content:
        yield content
    if isinstance(content, dict | list):
        for value in content.values() if isinstance(content, dict) else content:
            yield from pods(value)


@pytest.mark.parametrize("name", KUBERAY)
def test_the_images_user_may_write_to_the_claim(name: str) -> None:
    """A new volume is root's; the image runs as user 1000 of Ray's image."""
    every = pods(read(CLUSTER / "kuberay", name))
    mounting = [pod for pod in every if "persistentVolumeClaim" in str(pod.get("volumes"))]
    assert [pod.get("securityContext", {}).get("fsGroup") for pod in mounting] == [1000, 1000]


SLURM_STUBS = {
    "scontrol": "echo one; echo two",
    "hostname": "echo 192.0.2.1",
    # every step runs here, and one of two nodes once
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "ray": """if [ "$1" = status ]; then [ -e "$LOG" ]; exit; fi
echo "$(stat -c %a "$RAY_TMPDIR") $*" >> "$LOG"; exec sleep 600""",
    "flray": 'echo 1 > "$RAY_TMPDIR/socket"; echo "$@" >> "$LOG.flray"',
    # what waits for the nodes, as they join
    "python": """[ "$1" = -c ] && exec echo token
[[ "$2" == *.yaml ]] && exec echo demo runs
until [ "$(grep -c . "$LOG")" = 2 ]; do sleep 0.1; done""",
}


@pytest.mark.slow
def test_a_slurm_job_has_a_folder_and_memory_and_sweep_of_its_own(tmp_path: Path) -> None:
    """Ray's /tmp/ray is its first user's; Ray would count on all memory of the node; a name has older sweeps."""
    log = checkout(tmp_path, "cluster/slurm.sh", "cluster/node/environment", **SLURM_STUBS)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "setup.sh").write_text("")
    job = f"{os.getpid()}0001"
    slurm = {"SUBMIT_DIR": str(tmp_path), "JOB_ID": job, "JOB_NODELIST": "two"}
    slurm |= {"CPUS_PER_TASK": "8", "MEM_PER_NODE": "10240", "GPUS_ON_NODE": "2"}
    given = {"LOG": str(log), **{f"SLURM_{name}": value for name, value in slurm.items()}}
    folder = Path(f"/tmp/flray-{job}")
    how: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": 120}
    script = tmp_path / "cluster" / "slurm.sh"

    def run(**more: str) -> str:
        """Return the command that it gives to flray."""
        log.unlink(missing_ok=True)
        environment = {**os.environ, **given, **more}
        done = subprocess.run(["bash", script, "sweep.yaml"], env=environment, **how)
        assert done.returncode == 0, done.stderr
        return Path(f"{log}.flray").read_text().splitlines()[-1].partition(" --address")[0]

    (tmp_path / "runs" / "demo" / "001").mkdir(parents=True)  # of an earlier job
    assert run() == "tune sweep.yaml" and not list(tmp_path.glob("flray-*"))
    for number, wanted in (("001", "tune sweep.yaml"), ("002", "resume demo --output runs")):
        (tmp_path / "runs" / "demo" / number).mkdir(exist_ok=True)
        before = tmp_path / f"flray-{job}.before"
        before.write_text("runs/demo/001\n")  # as its first start left it
        assert run(SLURM_RESTART_COUNT="1") == wanted
    head, worker = log.read_text().splitlines()
    assert f"--ray-client-server-port={25000 + int(job) % 5000}" in head
    assert "--head" in head and f"--address=192.0.2.1:{20000 + int(job) % 5000}" in worker
    for line in (head, worker):
        mode, command, *options = line.split()
        assert (mode, command) == ("700", "start")
        wanted = {"--num-cpus=8", "--num-gpus=2", "--min-worker-port=0", f"--memory={7 << 30}"}
        wanted |= {"--dashboard-agent-listen-port=0", f"--object-store-memory={3 << 30}"}
        assert wanted <= set(options)
    assert not folder.exists()


def test_a_node_installs_nothing_for_development(tmp_path: Path) -> None:
    """A GPU node is paid for while it installs; an environment for development is enough for it."""
    names = ("cluster/node/setup", "scripts/setup.sh", "pyproject.toml", "constraints.txt")
    log = checkout(tmp_path, *names, python=f'echo "$@" >> {tmp_path}/log')

    def installed(script: str) -> list[str]:
        log.write_text("")
        environment = {**os.environ, "HOME": str(tmp_path)}
        subprocess.run(["bash", tmp_path / script], env=environment, check=True, timeout=60)
        return re.findall(r"-e \.\[(.*)\]", log.read_text())

    (extras,) = installed("cluster/node/setup")
    assert extras and "dev" not in extras
    assert installed("cluster/node/setup") == [] and installed("scripts/setup.sh") == ["dev"]
    assert installed("cluster/node/setup") == installed("scripts/setup.sh") == []


@pytest.mark.parametrize(("script", "trials"), [("ray-up", 6), ("slurm", 2)])
def test_the_sweeps_that_the_launch_checks_start_are_taken(script: str, trials: int) -> None:
    text = (ROOT / "scripts" / "checks" / script).read_text().replace("\\\n", " ")
    found = re.findall(r"(?:flray\.tune|slurm\.sh) +\"?(?:\$root/)?([\w/.-]+\.yaml)\"?(.*)", text)
    assert found
    for file, rest in found:
        words = [word.strip("\"'") for word in rest.split()]
        given = [word for word in words if re.fullmatch(r"[a-z_.]+=[^$]+", word)]
        assert len(sweeps.plan(ROOT / file, given)) == trials


def test_stop_ends_its_own_processes_only(tmp_path: Path) -> None:
    """`ray stop` would end every Ray of the user; ours ends what carries this checkout's mark."""
    checkout(tmp_path, "cluster/node/stop")
    stop = tmp_path / "cluster" / "node" / "stop"
    lasting = "import signal, time; {}; print('up', flush=True); time.sleep(3600)"
    sleep = [sys.executable, "-c", lasting.format("pass")]
    deaf = [sys.executable, "-c", lasting.format("signal.signal(signal.SIGTERM, signal.SIG_IGN)")]
    marks = {"FLRAY_NODE": str(tmp_path)}, {"FLRAY_NODE": "/elsewhere"}
    cases = ((sleep, marks[0]), (deaf, marks[0]), (sleep, marks[1]), (sleep, {}))
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE}
    started = [subprocess.Popen(one, env={**os.environ, **mark}, **pipe) for one, mark in cases]
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
        how = {"capture_output": True, "text": True, "check": False, "timeout": 300}
        done = subprocess.run([sys.executable, stop, "1"], **how)
        assert (done.returncode, done.stdout) == (0, "flray: 2 of 2 processes stopped\n")
        assert [p.poll() for p in started] == [-signal.SIGTERM, -signal.SIGKILL, None, None]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert not [p for p in psutil.Process().children() if p.pid in {s.pid for s in started}]
