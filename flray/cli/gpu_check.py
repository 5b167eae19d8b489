"""``flray doctor --gpu``: whether this machine's GPUs compute repeatably, and how fast; on a CPU in a small form."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from flray.config.experiment import Experiment
from flray.config.loader import load
from flray.devices.identity import gpu_identity
from flray.devices.transfers import from_numpy
from flray.federation.building import build_spec
from flray.federation.executor import InlineExecutor
from flray.federation.failures import error_summary
from flray.federation.federation import Federation, RoundResult
from flray.federation.ray_backend.memory_probe import survey_nodes
from flray.federation.ray_backend.nodes import node_resources
from flray.federation.ray_backend.placement import Plan
from flray.federation.ray_backend.session import ray_session
from flray.federation.spec import FederationSpec

CLIENTS, BATCH, ROUNDS = 4, 64, 2
Verdict = tuple[bool, str]


@dataclass(frozen=True)
class Size:
    """How much is computed.

    Attributes
    ----------
    model : str
        The network, on images of 3x32x32.
    samples : int
        Training samples of each client.
    actors : tuple of int
        Numbers of client actors.
    faster : dict of str to dict
        Settings whose speed is measured, by name.
    """

    model: str
    samples: int
    actors: tuple[int, ...]
    faster: Mapping[str, Mapping[str, Any]]


BFLOAT16 = {"local": {"precision": "bfloat16"}}
TOGETHER = {"local": {"clients_per_step": CLIENTS}, "aggregation": {"block": CLIENTS}}
COMPILED = {"local": {"compile": True}}
ON_GPU = Size(
    "resnet8",
    2048,
    (1, 2, 4),
    {"bfloat16": BFLOAT16, "compile": COMPILED, "clients_per_step": TOGETHER},
)
ON_CPU = Size("lenet", 128, (1, 2), {"bfloat16": BFLOAT16, "clients_per_step": TOGETHER})


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, whether it passed, and a line with the values found."""

    check: str
    passed: bool
    text: str

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'}  {self.check}: {self.text}"


@dataclass(frozen=True)
class Measured:
    """A federation's digest, its speed, and the most GPU memory that one of its processes used."""

    sha256: str
    speed: float
    peak: float


def check_gpu(device: torch.device | None = None, size: Size | None = None) -> Iterator[Finding]:
    """Check the first GPU, or the CPU if there is none, and yield each result as soon as it is known.

    Parameters
    ----------
    device : torch.device, optional
        Where to compute; default: the first GPU, if torch sees one.
    size : Size, optional
        Default: a minute's worth on a GPU, and less on a CPU.
    """
    device = device or torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    size = size or (ON_GPU if device.type == "cuda" else ON_CPU)
    yield _found("device", lambda: (True, _name(device)))
    spec = build_spec(_experiment(size, device))
    alone: list[Measured] = []

    def twice() -> Verdict:
        alone.extend(_run_here(spec, device) for _ in range(2))
        return _alike({"first": alone[0].sha256, "second": alone[1].sha256})

    yield _found("two runs learn the same", twice)
    if device.type == "cuda":
        yield _found("settings for repeatable bits", _settings)
    with contextlib.ExitStack() as stack:
        cpus: list[float] = []
        started = _found("Ray starts", lambda: _start_ray(stack, cpus))
        yield started
        if started.passed:
            carried = [actors for actors in size.actors if actors <= max(1.0, *cpus)]
            yield from _on_ray(spec, carried, device, alone)
    yield _found("plain loop", lambda: _speed(_plain(spec, device)))
    if alone:
        yield _found("flray in one process", lambda: _speed(alone[-1].speed))
    for name, settings in size.faster.items():
        call = partial(_faster, size, device, settings)
        yield _found(f"flray with {name}", call)


def _on_ray(
    spec: FederationSpec, numbers: Sequence[int], device: torch.device, alone: Sequence[Measured]
) -> Iterator[Finding]:
    """Yield the results of the checks with client actors, which need a Ray session."""
    digests = {"no actor": alone[-1].sha256} if alone else {}
    peak = 0.0
    for actors in numbers:

        def with_actors(actors: int = actors) -> Verdict:
            nonlocal peak
            found = _run_on_ray(spec, actors, device)
            digests[_actors(actors)], peak = found.sha256, max(peak, found.peak)
            return _speed(found.speed)

        yield _found(f"flray with {_actors(actors)}", with_actors)
    yield _found("any number of actors learns the same", lambda: _alike(digests))

    def measured() -> Verdict:
        survey = survey_nodes(spec, node_resources())
        if survey.need is None:
            return False, f"memory could not be measured: {survey.problem}"
        if device.type != "cuda":
            return True, f"{survey.need.memory / 2**20:.0f} MiB of main memory"
        need = survey.need.gpu
        return peak <= need, f"{need / 2**20:.0f} MiB, and an actor held {peak / 2**20:.0f}"

    yield _found("memory that a task takes", measured)


def _found(check: str, call: Callable[[], Verdict]) -> Finding:
    """Run a check and return its result; a check that raises has failed."""
    try:
        passed, text = call()
    except Exception as error:
        passed, text = False, error_summary(error)
    return Finding(check, passed, text)


def _name(device: torch.device) -> str:
    identity = gpu_identity(device)
    if identity is None:
        return (
            f"torch {torch.__version__} sees no GPU here; the same is checked on the CPU, with less"
        )
    count = torch.cuda.device_count()
    return f"the first of {count}: " + ", ".join(f"{k} {v}" for k, v in identity.items())


def _actors(number: int) -> str:
    return f"{number} actor{'s' if number > 1 else ''}"


def _start_ray(stack: contextlib.ExitStack, cpus: list[float]) -> Verdict:
    found = stack.enter_context(ray_session(None))
    cpus.append(found.get("CPU", 0.0))
    return True, f"{cpus[0]:g} CPUs, {found.get('GPU', 0):g} GPUs"


def _settings() -> Verdict:
    wanted = {
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic cuDNN": torch.backends.cudnn.deterministic,
        "no trial of algorithms": not torch.backends.cudnn.benchmark,
        "no TF32": not (torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32),
    }
    lacking = [name for name, held in wanted.items() if not held]
    return not lacking, f"missing: {', '.join(lacking)}" if lacking else ", ".join(wanted)


def _alike(digests: Mapping[str, str]) -> Verdict:
    if len(digests) > 1 and len(set(digests.values())) == 1:
        return True, f"{next(iter(digests.values()))[:12]} ({', '.join(digests)})"
    return False, json.dumps({name: digest[:12] for name, digest in digests.items()})


def _speed(images: float) -> Verdict:
    return images > 0, f"{images:,.0f} images/s"


def _experiment(size: Size, device: torch.device, **changes: Any) -> Experiment:
    content: dict[str, Any] = {
        "name": "doctor",
        "rounds": ROUNDS,
        "data": {"name": "random", "samples": CLIENTS * size.samples},
        "partition": {"name": "iid", "clients": CLIENTS},
        "model": size.model,
        "algorithm": "fedavg",
        "evaluation": {"every": ROUNDS},
        "tracking": {"uri": None},
        "resources": {"gpus_per_actor": 1 if device.type == "cuda" else 0},
        **changes,
    }
    content["local"] = {"batch_size": BATCH, "lr": 0.01, **changes.get("local", {})}
    return load({"experiment": content}).experiment


def _run_here(spec: FederationSpec, device: torch.device) -> Measured:
    federation = Federation(spec, InlineExecutor(spec, device), lambda line: None, device)
    try:
        return _measured([federation.step() for _ in range(ROUNDS)][-1], federation.sha256())
    finally:
        federation.close()


def _run_on_ray(spec: FederationSpec, actors: int, device: torch.device) -> Measured:
    # Imported here: Ray takes two seconds.
    from flray.federation.ray_backend.handle import RayFederation

    share = 1.0 / max(1, actors) if device.type == "cuda" else 0.0
    plan = Plan(actors, 1.0, share, CLIENTS, CLIENTS)
    federation = RayFederation(spec, plan, lambda line: None)
    try:
        return _measured([federation.step() for _ in range(ROUNDS)][-1], federation.sha256())
    finally:
        federation.close()


def _measured(last: RoundResult, sha256: str) -> Measured:
    return Measured(
        sha256, last.metrics["time/samples_per_second"], last.metrics.get("memory/peak/gpu", 0.0)
    )


def _faster(size: Size, device: torch.device, settings: Mapping[str, Any]) -> Verdict:
    return _speed(_run_here(build_spec(_experiment(size, device, **settings)), device).speed)


def _plain(spec: FederationSpec, device: torch.device) -> float:
    """Return the images per second of a loop without flray: everything resident, float32, the second pass."""
    (key,) = spec.architectures
    model = spec.build(key).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = [from_numpy(client.train) for client in spec.data.clients]
    x, y = (
        torch.cat([from_numpy(part)[one] for one in rows]).to(device)
        for part in (spec.data.x, spec.data.y)
    )
    x = (x.float() / 255.0).contiguous(memory_format=torch.channels_last)
    seconds, threads = 0.0, torch.get_num_threads()
    torch.set_num_threads(1)  # as an actor has
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for chosen in torch.randperm(len(y)).to(device).split(BATCH):
            loss = F.cross_entropy(model(x[chosen]), y[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        loss.item()  # waits for the device
        seconds = time.perf_counter() - began
    torch.set_num_threads(threads)
    return len(y) / seconds
