"""``flray doctor``: versions, hardware, data sets, missing extras, who can read Ray's token."""

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil
import torch

from flray.config.loader import load
from flray.data.inventory import FETCHABLE
from flray.data.sources.archives import FILES
from flray.data.sources.cache import data_root
from flray.devices import gpu_identity
from flray.federation import FederationSpec
from flray.federation.building import build_spec
from flray.federation.federation import Federation
from flray.federation.messages import error_summary
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.nodes import node_resources, survey_nodes
from flray.federation.ray_backend.placement import Plan
from flray.federation.worker.client_runner import InlineExecutor
from flray.files.tracking_address import at_home
from flray.process import usable_cpus
from flray.ray_session import PREFIX, folder_of_sessions, ray_session
from flray.records import directory

OPTIONAL = {
    "moabb": "EEG data sets (pip install 'flray[eeg]')",
    "boto3": "ray up on AWS",
    "googleapiclient": "ray up on Google Cloud",
    "jsonschema": "ray up (pip install 'ray[default]')",
}


def diagnose() -> Iterator[tuple[str, str]]:
    """Yield (check, result) rows: versions, hardware, data sets, missing extras, Ray's token and sockets."""
    yield from directory.versions().items()
    yield "CPUs for this process", str(usable_cpus())
    memory = psutil.virtual_memory()
    yield "memory", f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f}"
    yield "GPUs", ", ".join(_gpus()) or "none seen by torch"
    if not torch.cuda.is_available() and Path("/dev/nvidia0").exists():
        yield (
            "GPUs",
            "there is one that torch does not see: its build lacks CUDA, or the driver is too old",
        )
    yield from _data()
    missing = [f"{name}: {what}" for name, what in OPTIONAL.items() if find_spec(name) is None]
    yield "optional, not installed", "; ".join(missing) or "nothing"
    yield from _security()


def _gpus() -> Iterator[str]:
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        yield f"{torch.cuda.get_device_name(index)} ({free / 2**30:.0f} GiB free of {total / 2**30:.0f})"


def _data() -> Iterator[tuple[str, str]]:
    root = data_root()
    there = sorted(path.name for path in root.glob("[!.]*") if path.is_dir())
    yield "data folder", f"{root} ({', '.join(there) or 'empty: try flray data get digits5-local'})"
    absent = [name for name in FETCHABLE if not FILES[name].present(root)]
    yield "data to be fetched", ", ".join(f"flray data get {name}" for name in absent) or "none"


def _security() -> Iterator[tuple[str, str]]:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    token = Path(at_home(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"))
    held = str(token) if token.is_file() else "none"
    held = "in the environment" if os.environ.get("RAY_AUTH_TOKEN") else held
    yield "Ray's token", held + (f" (RAY_AUTH_MODE={mode})" if mode else "")
    if token.is_file() and token.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield "WARNING", f"others can read {token}: chmod 600 {token}"
    base = folder_of_sessions()
    yield "Ray's sessions", f"{base / PREFIX}*: each in a folder of this user alone"
    rights = base.stat().st_mode if base.is_dir() else 0
    if rights & stat.S_IWOTH and not rights & stat.S_ISVTX:
        yield (
            "WARNING",
            f"others can replace what is in {base}, Ray's sockets too: chmod o-w {base}, or set "
            "RAY_TMPDIR to a folder of yours",
        )


CLIENTS, ROUNDS = 4, 2
ON_GPU, ON_CPU = ("resnet8", 2048, (1, 2, 4)), ("lenet", 128, (1, 2))
"""The network, on images of 3x32x32, each client's training samples, and the numbers of client actors."""
Verdict = tuple[bool, str]


def check_gpu() -> Iterator[tuple[str, bool, str]]:
    """Check the first GPU, or the CPU if there is none; yield each check's name, whether it passed, and its values."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda:0" if on_gpu else "cpu")
    model, samples, numbers = ON_GPU if on_gpu else ON_CPU
    yield _result("device", lambda: (True, _name(device)))
    spec = _spec(model, samples, on_gpu)
    digests: dict[str, str] = {}
    peaks = [0.0]

    def run(name: str, begin: Callable[[], Federation | RayFederation]) -> Verdict:
        federation = begin()
        try:
            last = [federation.step() for _ in range(ROUNDS)][-1].metrics
            digests[name] = federation.sha256()
        finally:
            federation.close()
        peaks.append(last.get("memory/peak/gpu", 0.0))
        speed = last["time/samples_per_second"]
        return speed > 0, f"{speed:,.0f} images/s"

    def here() -> Federation:
        return Federation(spec, InlineExecutor(spec, device), lambda line: None, device)

    def actors(count: int) -> RayFederation:
        plan = Plan(count, 1.0, 1.0 / count if on_gpu else 0.0, CLIENTS, CLIENTS)
        return RayFederation(spec, plan, lambda line: None)

    for name in ("no actor", "no actor, again"):
        yield _result(f"flray with {name}", partial(run, name, here))
    if on_gpu:
        yield _result("settings for repeatable bits", _settings)
    with ray_session(None) as found:
        yield "Ray starts", True, f"{found['CPU']:g} CPUs, {found.get('GPU', 0):g} GPUs"
        for count in (count for count in numbers if count <= max(1.0, found["CPU"])):
            name = f"{count} actor{'s' if count > 1 else ''}"
            yield _result(f"flray with {name}", partial(run, name, partial(actors, count)))
        yield _result("any number of actors learns the same", lambda: alike(digests))
        yield _result("memory that a task takes", lambda: _memory(spec, on_gpu, peaks))


def alike(digests: Mapping[str, str]) -> Verdict:
    """Return whether several digests are the same, with their beginning, or all of them."""
    if len(digests) > 1 and len(set(digests.values())) == 1:
        return True, f"{next(iter(digests.values()))[:12]} ({', '.join(digests)})"
    return False, json.dumps({name: digest[:12] for name, digest in digests.items()})


def _result(check: str, call: Callable[[], Verdict]) -> tuple[str, bool, str]:
    """Run a check and return its result; a check that raises has failed."""
    try:
        return check, *call()
    except Exception as error:
        return check, False, error_summary(error)


def _name(device: torch.device) -> str:
    identity = gpu_identity(device)
    if identity is None:
        return (
            f"torch {torch.__version__} sees no GPU here; the same is checked on the CPU, with less"
        )
    count = torch.cuda.device_count()
    return f"the first of {count}: " + ", ".join(f"{k} {v}" for k, v in identity.items())


def _settings() -> Verdict:
    wanted = {
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic cuDNN": torch.backends.cudnn.deterministic,
        "no trial of algorithms": not torch.backends.cudnn.benchmark,
        "no TF32": not (torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32),
    }
    lacking = [name for name, held in wanted.items() if not held]
    return not lacking, f"missing: {', '.join(lacking)}" if lacking else ", ".join(wanted)


def _memory(spec: FederationSpec, on_gpu: bool, peaks: Sequence[float]) -> Verdict:
    survey = survey_nodes(spec, node_resources())
    if survey.problem:
        return False, f"memory could not be measured: {survey.problem}"
    if not on_gpu:
        return True, f"{survey.memory / 2**20:.0f} MiB of main memory"
    need, peak = survey.gpu, max(peaks)
    return peak <= need, f"{need / 2**20:.0f} MiB, and an actor held {peak / 2**20:.0f}"


def _spec(model: str, samples: int, on_gpu: bool) -> FederationSpec:
    content = {
        "name": "doctor",
        "rounds": ROUNDS,
        "data": {"name": "random", "samples": CLIENTS * samples},
        "partition": {"name": "iid", "clients": CLIENTS},
        "model": model,
        "algorithm": "fedavg",
        "local": {"batch_size": 64, "lr": 0.01},
        "evaluation": {"every": ROUNDS},
        "tracking": {"uri": None},
        "resources": {"gpus_per_actor": int(on_gpu)},
    }
    return build_spec(load({"experiment": content}).experiment)
