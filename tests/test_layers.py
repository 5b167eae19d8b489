"""Imports point downwards: what must not know of Ray or MLflow does not import them, not even by detour."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import flray

PACKAGE = Path(flray.__file__).parent
FREE = (
    "functional",
    "algorithms",
    "data",
    "models",
    "metrics",
    "config.py",
    "loading.py",
    "registry.py",
    "keys.py",
    "trees.py",
    "errors.py",
    "federation/inline.py",
    "federation/player.py",
    "federation/federation.py",
    "federation/executor.py",
    "federation/world.py",
    "federation/evaluation.py",
    "federation/checkpoint.py",
    "federation/placement.py",
)
ORDER = ("functional", "data", "models", "metrics", "algorithms", "federation", "tracking")


def modules(part: str) -> list[Path]:
    path = PACKAGE / part
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("part", FREE)
def test_no_import_of_ray_or_mlflow(part: str) -> None:
    for path in modules(part):
        roots = {name.split(".")[0] for name in imported(path)}
        assert not roots & {"ray", "mlflow"}, path


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        (lower, higher)
        for i, lower in enumerate(ORDER[:5])
        for higher in (*ORDER[5:], "cli", "running", "tuning")
    ]
    + [
        ("functional", "algorithms"),
        ("functional", "data"),
        ("functional", "models"),
        ("data", "algorithms"),
        ("models", "algorithms"),
        ("models", "data"),
        ("tracking", "federation"),
    ],
)
def test_imports_point_downwards(lower: str, higher: str) -> None:
    for path in modules(lower):
        names = imported(path)
        assert not any(
            name == f"flray.{higher}" or name.startswith(f"flray.{higher}.") for name in names
        ), path


def test_an_inline_run_loads_neither_ray_nor_mlflow(tmp_path: Path) -> None:
    code = (
        "import sys, flray; flray.run({'experiment': {'data': 'digits-sklearn', 'model': 'linear', "
        "'rounds': 1, "
        "'algorithm': 'fedavg', 'resources': {'executor': 'inline'}, 'tracking': {'uri': None}}}); "
        "print(sorted({'ray', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_torchvision_imports_beside_this_torch_in_a_fresh_process() -> None:
    code = "import flray, torchvision; from torchvision import models, transforms; print(torchvision.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_torchvision_is_left_alone_where_torch_has_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from flray import _torchvision_cpu_shim

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(_torchvision_cpu_shim, "_keep_alive", [])
    _torchvision_cpu_shim.declare_operators()
    assert _torchvision_cpu_shim._keep_alive == []
