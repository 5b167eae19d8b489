"""What makes a GPU's bits repeatable: settings, and the GPU as a part of a run's identity. No GPU is needed."""

import json
from pathlib import Path
from typing import Any

import pytest

import flray
from flray import devices as identity
from flray.records import directory
from tests.helpers import python
from tests.messages import refused

SETTINGS = """
import json, os, sys, torch
from types import SimpleNamespace
from flray.devices import make_repeatable
capped = []
torch.cuda.get_device_properties = lambda device: SimpleNamespace(total_memory=16 * 2**30)
torch.cuda.set_per_process_memory_fraction = lambda share, device: capped.append(share)
for device, tf32, share in (("cpu", False, 1.0), ("cuda", False, 1.0), ("cuda", True, 0.25)):
    make_repeatable(torch.device(device), tf32=tf32, share=share)
    print(json.dumps([
        torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32, os.environ.get("CUBLAS_WORKSPACE_CONFIG"), capped]))
"""
ONE = {"model": "One", "driver": "580.1", "cuda": "13.0", "cudnn": "92000"}
OTHER = {**ONE, "model": "Other"}


def test_a_gpu_computes_repeatably_and_in_full_precision_unless_it_is_asked_not_to() -> None:
    cpu, cuda, tf32 = map(json.loads, python(SETTINGS).stdout.splitlines())
    assert cpu[:2] == [False, False]
    assert cuda == [True, True, False, False, False, ":4096:8", []]
    assert tf32 == [True, True, False, True, True, ":4096:8", [0.25 - 0.5 / 16]]


def test_kinds_of_gpu_are_compared_by_all_that_the_bits_depend_on() -> None:
    assert not identity.difference([ONE, OTHER], [OTHER, ONE, ONE])
    assert not identity.difference([], [])
    for name in ONE:
        assert identity.difference([ONE], [{**ONE, name: "2"}])
    assert "began on no GPU, and here computes on One (driver 580.1" in identity.difference(
        [], [ONE]
    )


def interrupted(digits: dict[str, Any]) -> Path:
    """Return a run that is one round short."""
    result = flray.run({"experiment": {**digits, "resources": {"executor": "inline"}}})
    directory.update(result.folder, status="interrupted")
    for file in (result.folder / "checkpoint").glob("round-000003*"):
        file.unlink()
    return result.folder


def test_a_run_is_not_resumed_on_another_gpu_unless_it_is_asked_for(
    tmp_cwd: Path, digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flray.devices.gpu_identity", lambda device: ONE)
    folder = interrupted(digits)
    noted = directory.read(folder)
    assert noted["gpus"] == [ONE]
    monkeypatch.setattr("flray.devices.gpu_identity", lambda device: OTHER)
    refused(flray.resume, folder)
    result = flray.resume(folder, other_cpu=True)
    assert result.sha256 == noted["sha256"]
    assert directory.read(folder)["other_gpus"] == [[OTHER]]


def test_a_run_of_an_older_flray_goes_on_and_notes_its_gpus(
    tmp_cwd: Path, digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(digits)
    noted = directory.read(folder)
    assert noted.pop("gpus") == []
    directory.write(folder, "run", noted)
    monkeypatch.setattr("flray.devices.gpu_identity", lambda device: ONE)
    assert flray.resume(folder).sha256 == noted["sha256"]
    assert directory.read(folder)["gpus"] == [ONE]
