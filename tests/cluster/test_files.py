"""The files under cluster/ against Ray's schema and the published fields, offline; a typo anywhere is refused."""

from __future__ import annotations

import copy
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
import yaml

from flray import api as sweeps

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
FIELDS = yaml.safe_load((Path(__file__).parent / "fields.yaml").read_text())
RAY_UP = ("aws", "gcp", "on-premise")
KUBERAY = ("cluster", "job")
TYPES: dict[str, type] = {"str": str, "int": int, "bool": bool}


class Refused(Exception):
    """A file that would not work."""


def conform(found: Any, wanted: Any, path: str = "") -> None:
    """Refuse what does not have the fields of fields.yaml.

    There, a mapping lists fields, ``[[type]]`` is a list of a type, ``[{...}]`` a list of mappings,
    any other list the allowed words, ``{}`` anything.
    """
    if wanted == "map":
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise Refused(f"{path}: found {found!r}, expected strings by name")
    elif isinstance(wanted, str):
        if type(found) is not TYPES[wanted]:
            raise Refused(f"{path}: found {found!r}, expected {wanted}")
    elif isinstance(wanted, dict):
        if not isinstance(found, dict):
            raise Refused(f"{path}: found {found!r}, expected fields")
        known = {name.rstrip("!"): content for name, content in wanted.items()}
        if known and set(found) - set(known):
            raise Refused(
                f"{path}: unknown {sorted(set(found) - set(known))}, known {sorted(known)}"
            )
        missing = {name[:-1] for name in wanted if name.endswith("!")} - set(found)
        if missing:
            raise Refused(f"{path}: missing {sorted(missing)}")
        for name in known:
            if name in found:
                conform(found[name], known[name], f"{path}.{name}")
    elif isinstance(wanted[0], str):
        if found not in wanted:
            raise Refused(f"{path}: found {found!r}, expected one of {wanted}")
    else:
        if not isinstance(found, list):
            raise Refused(f"{path}: found {found!r}, expected a list")
        inner = wanted[0][0] if isinstance(wanted[0], list) else wanted[0]
        for position, item in enumerate(found):
            conform(item, inner, f"{path}[{position}]")


def check_ray_up(content: dict[str, Any]) -> None:
    """Take a `ray up` file through Ray's own preparation and schema, then through the fields Ray leaves open."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    try:
        validate_config(prepare_config(copy.deepcopy(content)))
    except (
        jsonschema.ValidationError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        NotImplementedError,
        SystemExit,
        AssertionError,
    ) as error:
        raise Refused(str(error)) from error
    except (
        Exception
    ) as error:  # click's abort, which Ray's launcher raises where a field is missing
        if type(error).__module__.startswith("click"):
            raise Refused(str(error)) from error
        raise
    fields = FIELDS[content["provider"]["type"]]
    conform(content["provider"], fields["provider"], "provider")
    for name, node in content.get("available_node_types", {}).items():
        conform(node, fields["node"], name)
        conform(node["node_config"], fields["node_config"], f"{name}.node_config")
    own = {
        "cluster_name",
        "provider",
        "auth",
        "file_mounts",
        "setup_commands",
        "head_start_ray_commands",
        "worker_start_ray_commands",
    }
    if missing := own - set(content):
        raise Refused(f"missing {sorted(missing)}")
    if "ssh_user" not in content["auth"]:
        raise Refused("auth: missing ssh_user")


def check_kuberay(content: dict[str, Any]) -> None:
    kinds = FIELDS["kubernetes"]["kinds"]
    if content.get("kind") not in kinds:
        raise Refused(f"kind: found {content.get('kind')!r}")
    conform(content, kinds[content["kind"]], content["kind"])


def refusal(check: Callable[[dict[str, Any]], None], content: dict[str, Any]) -> str:
    """Return why a check refuses a file's content; empty if it does not."""
    try:
        check(content)
    except Refused as error:
        return str(error) or "refused"
    return ""


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all((folder / f"{name}.yaml").read_text()) if d is not None]


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every key with a meaning of its own."""
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, value in items:
        inside = (*path, key)
        free = {
            "file_mounts",
            "available_node_types",
            "requests",
            "limits",
            "nodeSelector",
            "rayStartParams",
            "resources",
        } & set(path[-1:])
        if isinstance(content, dict) and not (free and key not in ("requests", "limits")):
            yield inside
        yield from places(value, inside)


def misspelt(content: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """Return the content with a letter too many in one key."""
    changed: Any = copy.deepcopy(content)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[f"{path[-1]}x"] = holder.pop(path[-1])
    return dict(changed)


def retyped(content: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """Return the content with a value of another type under one key."""
    changed: Any = copy.deepcopy(content)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = 1.5 if isinstance(holder[path[-1]], str) else "seven"
    return dict(changed)


UP = [(name, path) for name in RAY_UP for path in places(read(CLUSTER, name)[0])]
K8S = [
    (name, number, path)
    for name in KUBERAY
    for number, document in enumerate(read(CLUSTER / "kuberay", name))
    for path in places(document)
]


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_accepts_the_cluster_file(name: str) -> None:
    (content,) = read(CLUSTER, name)
    assert refusal(check_ray_up, content) == ""


@pytest.mark.parametrize("name", KUBERAY)
def test_the_manifests_have_published_fields_only(name: str) -> None:
    documents = read(CLUSTER / "kuberay", name)
    assert [refusal(check_kuberay, document) for document in documents] == [""] * len(documents)
    assert documents


@pytest.mark.parametrize("name", RAY_UP)
def test_every_misspelt_key_of_a_ray_up_file_is_refused(name: str) -> None:
    (content,) = read(CLUSTER, name)
    paths = [path for owner, path in UP if owner == name]
    accepted = [
        ".".join(map(str, path))
        for path in paths
        if not refusal(check_ray_up, misspelt(content, path))
    ]
    assert len(paths) > 10
    assert accepted == []


@pytest.mark.parametrize("name", KUBERAY)
def test_every_misspelt_key_of_a_manifest_is_refused(name: str) -> None:
    cases = [(number, path) for owner, number, path in K8S if owner == name]
    documents = read(CLUSTER / "kuberay", name)
    accepted = [
        f"{change.__name__} {number}:{'.'.join(map(str, path))}"
        for number, path in cases
        for change in (misspelt, retyped)
        if not refusal(check_kuberay, change(documents[number], path))
    ]
    assert len(cases) > 40
    assert accepted == []


@pytest.mark.parametrize("name", RAY_UP)
@pytest.mark.parametrize("path", [("max_workers",), ("setup_commands",), ("auth",), ("provider",)])
def test_a_value_of_the_wrong_type_is_refused(name: str, path: tuple[str, ...]) -> None:
    (content,) = read(CLUSTER, name)
    with pytest.raises(Refused):
        check_ray_up(retyped(content if path[0] in content else {**content, path[0]: 1}, path))


def scripts() -> list[Path]:
    return [
        CLUSTER / "slurm.sh",
        *(CLUSTER / "node" / n for n in ("environment", "setup", "head", "worker")),
    ]


@pytest.mark.parametrize("path", scripts(), ids=lambda p: p.name)
def test_shell_scripts_parse(path: Path, tmp_path: Path) -> None:
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    broken = tmp_path / path.name
    broken.write_text(path.read_text() + "\nif true; then\n")
    assert subprocess.run(["bash", "-n", broken], check=False, capture_output=True).returncode != 0


def slurm_options(text: str) -> set[str]:
    return {
        line.split()[1].partition("=")[0]
        for line in text.splitlines()
        if line.startswith("#SBATCH ")
    }


def test_slurm_options_are_those_sbatch_knows() -> None:
    known = {
        "--job-name",
        "--nodes",
        "--ntasks-per-node",
        "--cpus-per-task",
        "--gpus-per-node",
        "--mem",
        "--time",
        "--signal",
        "--requeue",
        "--open-mode",
        "--output",
    }
    text = (CLUSTER / "slurm.sh").read_text()
    assert slurm_options(text) == known
    assert slurm_options(text.replace("--nodes=2", "--node=2")) != known


def commands() -> list[str]:
    found = []
    for name in RAY_UP:
        (content,) = read(CLUSTER, name)
        for key in ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands"):
            found += content[key]
    return found


def test_the_commands_of_the_files_exist() -> None:
    for command in commands():
        shell, script, *_ = command.rpartition("&& ")[2].split()
        assert shell == "bash"
        assert (ROOT / script.removeprefix("~/flray/")).is_file(), command


@pytest.mark.parametrize("name", RAY_UP)
def test_the_whole_checkout_travels_to_the_nodes(name: str) -> None:
    """A pattern without a slash leaves out every file and folder of that name, at any depth."""
    (content,) = read(CLUSTER, name)
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()

    def left_out(file: str, pattern: str) -> bool:
        parts = Path(file).parts
        names = parts[:1] if pattern.startswith("/") else parts
        return any(fnmatch.fnmatchcase(part, pattern.lstrip("/")) for part in names)

    assert "flray/api.py" in tracked
    missing = [f for f in tracked for p in content["rsync_exclude"] if left_out(f, p)]
    assert missing == []


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
    everything = "".join(
        p.read_text() for p in CLUSTER.rglob("*") if p.is_file() and p.suffix != ".md"
    )
    assert "0.0.0.0" not in everything


def test_the_head_on_aws_may_look_up_the_images_of_its_workers() -> None:
    """EC2 resolves ``resolve:ssm:NAME`` with the rights of the caller: the head, which starts workers."""
    (content,) = read(CLUSTER, "aws")
    named = {node["node_config"]["ImageId"] for node in content["available_node_types"].values()}
    guide = (ROOT / "docs" / "guide" / "cluster.md").read_text()
    policies = re.findall(
        r"put-role-policy --role-name flray-head .*? --policy-document \\\n +'(.*?)'", guide, re.S
    )
    allowed = [
        statement["Resource"]
        for policy in policies
        for statement in json.loads(policy)["Statement"]
        if statement["Effect"] == "Allow" and statement["Action"] == "ssm:GetParameters"
    ]
    for image in named:
        name = image.removeprefix("resolve:ssm:")
        arn = f"arn:aws:ssm:{content['provider']['region']}::parameter{name}"
        assert name == image or any(fnmatch.fnmatchcase(arn, pattern) for pattern in allowed), image
    assert any(image.startswith("resolve:ssm:/") for image in named)


def pods(content: Any) -> Iterator[dict[str, Any]]:
    """Yield the specification of every pod below."""
    if isinstance(content, dict):
        if "containers" in content:
            yield content
        for value in content.values():
            yield from pods(value)
    elif isinstance(content, list):
        for value in content:
            yield from pods(value)


@pytest.mark.parametrize("name", KUBERAY)
def test_the_images_user_may_write_to_the_claim(name: str) -> None:
    """A new volume is root's; the image runs as user 1000 of Ray's image."""
    mounting = [
        pod
        for pod in pods(read(CLUSTER / "kuberay", name))
        if any("persistentVolumeClaim" in volume for volume in pod.get("volumes", ()))
    ]
    assert [pod.get("securityContext", {}).get("fsGroup") for pod in mounting] == [1000, 1000]


SLURM_STUBS = {
    "scontrol": "echo one; echo two",
    "hostname": "echo 192.0.2.1",
    # every step runs here, and one of two nodes once
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "ray": """if [ "$1" = status ]; then [ -e "$LOG" ]; exit; fi
echo "$(stat -c %a "$RAY_TMPDIR") $*" >> "$LOG"; exec sleep 600""",
    "flray": 'echo 1 > "$RAY_TMPDIR/socket"',
    # what waits for the nodes, as they join
    "python": """[ "$1" = -c ] && exec echo token
until [ "$(grep -c . "$LOG")" = 2 ]; do sleep 0.1; done""",
}


def test_a_slurm_job_has_a_folder_and_memory_of_its_own(tmp_path: Path) -> None:
    """Ray's /tmp/ray is its first user's, and Ray would count on all memory of the node."""
    for name in ("cluster/slurm.sh", "cluster/node/environment"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "setup.sh").write_text("")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, script in SLURM_STUBS.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (programs / name).chmod(0o755)
    job, log = f"{os.getpid()}0001", tmp_path / "log"
    given = {
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": "two",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_MEM_PER_NODE": "10240",
        "SLURM_GPUS_ON_NODE": "2",
        "LOG": str(log),
    }
    folder = Path(f"/tmp/flray-{job}")
    done = subprocess.run(
        ["bash", tmp_path / "cluster" / "slurm.sh", "sweep.yaml"],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    head, worker = log.read_text().splitlines()
    assert f"--ray-client-server-port={25000 + int(job) % 5000}" in head
    assert "--head" in head and f"--address=192.0.2.1:{20000 + int(job) % 5000}" in worker
    for line in (head, worker):
        mode, command, *options = line.split()
        assert (mode, command) == ("700", "start")
        assert {
            "--num-cpus=8",
            "--num-gpus=2",
            f"--memory={7 << 30}",
            f"--object-store-memory={3 << 30}",
            "--min-worker-port=0",
            "--dashboard-agent-listen-port=0",
        } <= set(options)
    assert not folder.exists()


def test_a_node_installs_nothing_for_development(tmp_path: Path) -> None:
    """A GPU node is paid for while it installs; an environment for development is enough for it."""
    for name in ("cluster/node/setup", "scripts/setup.sh", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    python, log = tmp_path / ".venv" / "bin" / "python", tmp_path / "log"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    python.chmod(0o755)

    def installed(script: str) -> list[str]:
        log.write_text("")
        environment = {**os.environ, "HOME": str(tmp_path)}
        subprocess.run(["bash", tmp_path / script], env=environment, check=True, timeout=60)
        return re.findall(r"-e \.\[(.*)\]", log.read_text())

    (extras,) = installed("cluster/node/setup")
    assert extras and "dev" not in extras
    assert installed("cluster/node/setup") == []
    assert installed("scripts/setup.sh") == ["dev"]
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
    checkout = tmp_path / "flray"
    (checkout / "cluster" / "node").mkdir(parents=True)
    stop = checkout / "cluster" / "node" / "stop"
    stop.write_text((CLUSTER / "node" / "stop").read_text())
    sleep = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    deaf = [
        sys.executable,
        "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('up', flush=True); time.sleep(60)",
    ]
    mark = {**os.environ, "FLRAY_NODE": str(checkout)}
    started = [
        subprocess.Popen(sleep, env=mark, stdout=subprocess.PIPE),
        subprocess.Popen(deaf, env=mark, stdout=subprocess.PIPE),
        subprocess.Popen(
            sleep, env={**os.environ, "FLRAY_NODE": "/elsewhere"}, stdout=subprocess.PIPE
        ),
        subprocess.Popen(sleep, stdout=subprocess.PIPE),
    ]
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, stop, "1"], capture_output=True, text=True, check=False, timeout=60
        )
        assert time.monotonic() - begun < 20
        assert (done.returncode, done.stdout) == (0, "flray: 2 of 2 processes stopped\n")
        assert [p.poll() for p in started] == [-signal.SIGTERM, -signal.SIGKILL, None, None]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert not [p for p in psutil.Process().children() if p.pid in {s.pid for s in started}]
