"""Which instructions compute: portable bits under any environment, and a run that knows the CPU it began on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

import flray
from flray import bits
from flray.federation.federation import Federation
from flray.federation.ray_backend.pool import ClientActor
from flray.records import directory
from flray.runs import runner
from tests.end_to_end.pool import Pools
from tests.helpers import Settings, built, printed, python, small, told, written
from tests.messages import refused

LOWEST = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
LOWEST |= {"MKL_CBWR": "COMPATIBLE", "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4"}
LOWEST["OPENBLAS_CORETYPE"] = "Nehalem"
OTHERS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
OTHERS |= {"DNNL_MAX_CPU_ISA": "AVX512_CORE", "MKL_CBWR": "AVX2", "OPENBLAS_CORETYPE": "Zen"}
OTHERS |= {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "NPY_ENABLE_CPU_FEATURES": "X86_V3"}
OTHERS["OMP_NUM_THREADS"] = "3"
wide = pytest.mark.skipif(not {"avx2", "fma"} <= bits._flags(), reason="no x86-64 CPU with AVX2")


def started(folder: Path, environment: dict[str, str], **resources: Any) -> subprocess.Popen[str]:
    folder.mkdir()
    data, used = {"name": "digits-sklearn", "samples": 40}, {"executor": "inline", **resources}
    experiment = small(data=data, model="lenet", resources=used)
    (folder / "x.yaml").write_text(yaml.safe_dump({"experiment": experiment}))
    kept = {name: value for name, value in os.environ.items() if name not in bits.VARIABLES}
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-X", "importtime", "-m", "flray", "run", "x.yaml"]
    return subprocess.Popen(command, cwd=folder, env={**kept, **environment}, **how)


UNKNOWN_HERE = "in this process .* compute other bits than portable ones"


def noted(process: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """Return what a run noted; where this CPU is not one that the recorded bits hold on, what it was refused with."""
    _, errors = process.communicate(timeout=500)
    assert len(re.findall(r"\| +torch\n", errors)) == 1  # the command need not start again
    if process.returncode == 2 and re.search(UNKNOWN_HERE, errors):
        return {"refused": errors}
    assert process.returncode == 0, errors
    return directory.read(folder / "runs/experiment/001")


@pytest.mark.slow
@wide
def test_portable_bits_are_the_same_whatever_the_environment_says(tmp_path: Path) -> None:
    """Also in the processes of a Ray on this machine."""
    on_ray = {"executor": "ray", "actors": 1}
    runs = {
        "lowest": started(tmp_path / "lowest", LOWEST, bits="portable"),
        "others": started(tmp_path / "others", OTHERS, bits="portable", **on_ray),
        "native": started(tmp_path / "native", LOWEST, bits="native"),
    }
    found = {name: noted(process, tmp_path / name) for name, process in runs.items()}
    native = found.pop("native")
    refused = {run.get("refused") for run in found.values()}
    assert len(refused) == 1
    # That it is refused, everywhere alike, is all that can be asked of a CPU without portable bits.
    if refused == {None}:
        assert len({run["sha256"] for run in found.values()}) == 1
        assert native["sha256"] != found["lowest"]["sha256"]
        expected = bits.RECORDED[bits.versions()]
        assert all(run["cpu"]["kinds"] == expected for run in found.values())
        assert native["cpu"]["kinds"]["torch"] != expected["torch"]
        assert [run["cpu"]["bits"] for run in (native, found["lowest"])] == ["native", "portable"]


def test_this_process_is_refused_in_one_line(tmp_cwd: Path, digits: Settings) -> None:
    digits["resources"] = {"bits": "portable", "executor": "inline"}
    (line,) = told(2, "run", written(digits)).splitlines()
    assert "flray.portable()" in line
    (line,) = told(2, "run", "x.yaml", "local.compile=true").splitlines()
    assert "experiment.local.compile" in line
    refused(flray.portable)
    assert sorted(p.name for p in tmp_cwd.iterdir()) == ["x.yaml"]


def test_another_cpu_resumes_a_run_only_if_asked_for(tmp_cwd: Path, digits: Settings) -> None:
    digits["resources"] = {"executor": "inline"}
    folder = runner.run({"experiment": {**digits, "rounds": 1}}).folder
    noted = directory.read(folder)
    cpu, digest = noted["cpu"], noted["sha256"]
    assert cpu["kinds"] == bits.kinds() and cpu["bits"] == "native"
    other = {**cpu, "model": "Another", "kinds": {**cpu["kinds"], "mkl": "0"}}
    directory.update(folder, status="interrupted", cpu=other)
    (line,) = told(2, "resume", str(folder)).splitlines()
    for words in ("began on Another", " mkl compute other last bits", "--other-hardware"):
        assert words in line
    assert directory.read(folder)["status"] == "interrupted"
    printed("resume", str(folder), "--other-cpu")
    after = directory.read(folder)
    assert after["sha256"] == digest and [c["kinds"] for c in after["other_cpus"]] == [bits.kinds()]
    events = map(json.loads, (folder / directory.JOURNAL).read_text().splitlines())
    assert any("cpu.other" in event["tags"] for event in events if event["type"] == "tags")
    # What decides the bits is a setting like all others.
    directory.update(folder, status="interrupted")
    config = folder / directory.CONFIG
    config.write_text(config.read_text().replace("bits: native", "bits: portable"))
    refused(runner.resume, folder)


@pytest.mark.parametrize(
    "change", [{"cpu": None}, {"versions": {"torch": "2.6.0", "numpy": "2.0.0"}}], ids=str
)
def test_runs_of_before_and_of_other_versions_are_resumed_as_ever(change: dict[str, Any]) -> None:
    run = {"versions": directory.versions(), "cpu": {"kinds": dict.fromkeys(bits.kinds(), "0")}}
    assert bits.check_same("run", run) and not bits.check_same("run", {**run, **change})


def test_the_installed_versions_have_recorded_bits() -> None:
    todo = "record bits.kinds() of a process with bits.VARIABLES for these versions"
    assert bits.versions() in bits.RECORDED, todo


@pytest.mark.slow
@wide
def test_a_pool_over_several_kinds_of_cpu_is_told(digits: Settings, pools: Pools) -> None:
    spec = built(digits)
    executor = pools[1].executor_for(spec)
    (worker,) = executor.workers
    ray.kill(worker.actor)
    instructions = "avx2" if os.environ.get("ATEN_CPU_CAPABILITY") == "default" else "default"
    environment = {"env_vars": {"ATEN_CPU_CAPABILITY": instructions}}
    other = ray.remote(ClientActor).options(runtime_env=environment)
    worker.actor = other.remote(executor._spec)
    worker.starting = worker.actor.describe.remote()
    lines: list[str] = []
    federation = Federation(spec, executor, lines.append)
    federation.step()
    federation.step()
    pools.pop(1).close()  # no other test may compute with this actor
    assert lines.count(bits.MIXED) == 1


EXACT = """
import flray
flray.portable()
import numpy as np, torch
from flray import bits
from flray.config.loader import load
x = np.geomspace(1e-12, 1, 100_000).reshape(100, 1000)
logs = torch.from_numpy(x.astype(np.float32)).log()
given = {"data": "digits-sklearn", "model": "lenet", "algorithm": "fedavg", "resources": {"bits": "portable"}}
bits.require(load({"experiment": given}).experiment)
for name, numpys in bits._NUMPYS.items():
    for kind in (np.float32, np.float64):
        values = x.astype(kind)
        given, wanted = torch.from_numpy(values.T), torch.from_numpy(getattr(np, numpys)(values).T)
        if (name, kind) == ("log", np.float32):
            wanted = logs.T
        found = getattr(torch, name)(given)
        assert torch.equal(found, wanted) and found.stride() == given.stride(), name
        changed = given.clone()
        assert getattr(changed, name + "_")() is changed and torch.equal(changed, wanted), name
    numbers = [torch.tensor([1, 0]), torch.tensor(True), torch.tensor([0.25, 1.0]).bfloat16(), torch.tensor(0.5 + 1j)]
    found = [getattr(torch, name)(one) for one in numbers]
    assert [one.dtype for one in found] == [torch.float32, torch.float32, torch.bfloat16, torch.complex64]
    assert float(found[0][0]) == getattr(np, numpys)(1.0) or name in ("tan", "atan", "acos", "asin")
moved = torch.tensor(4.0, requires_grad=True)
moved.sqrt().backward()
assert moved.grad == 0.25
assert torch.equal(torch._foreach_sqrt([given])[0], given.sqrt())
step = torch.optim.RMSprop([moved], 1.0, alpha=0.5)
moved.grad = torch.tensor(3.0)
step.step()
assert moved.item() == 4.0 - np.float32(3.0) / np.sqrt(np.float32(4.5))
"""


@pytest.mark.slow
@wide
def test_a_function_that_the_maker_of_a_cpu_approximates_is_numpys_with_portable_bits() -> None:
    """MKL's branch for every CPU has ``rcpps`` and ``rsqrtps`` in it, whose results each maker chooses."""
    python(EXACT)
