"""Imports point downwards: what must not know of Ray or MLflow does not import them, not even by detour."""

import ast
import compileall
import functools
import os
import re
import shutil
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import flray
from tests.helpers import python, small

ROOT = Path(flray.__file__).parent
RAY = ("federation/ray_backend/", "tuning/", "ray_session.py")
USERS = {"ray": RAY, "mlflow": ("tracking/", "runs/export.py")}
"""Where packages may be imported, for type checkers too."""
BYTE_CODE = """
import flray.config.loader, flray.registry
for entries in flray.registry.ALL.values():
    entries.get(entries.names()[0])
flray.config.loader.load({"experiment": {"data": "digits-sklearn", "model": "mlp", "algorithm": "fedprox"}})
print(flray.__file__)
"""
TOP = ("federation", "tracking", "cli", "reporting", "results", "runs", "tuning")
ABOVE = {
    "functional": ("algorithms", "data", "models", *TOP),
    "data": ("algorithms", "tasks", *TOP),
    "models": ("algorithms", "data", *TOP),
    "tasks": ("algorithms", *TOP),
    "metrics": ("algorithms", *TOP),
    "algorithms": TOP,
    "tracking": ("federation",),
}
"""What may not be imported, by folder."""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> set[str]:
    """Return what a module imports, in functions and for type checkers too."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_modules_stay_short() -> None:
    """As CONTRIBUTING.md has it, below 500 lines: of the package, and of tests and scripts where these are."""
    folders = [ROOT, Path(__file__).parent, Path(__file__).parents[1] / "scripts"]
    lines = {
        str(path): len(path.read_text(encoding="utf-8").splitlines())
        for folder in folders
        for path in folder.rglob("*.py")
    }
    assert len(lines) > 200 and len(list(ROOT.glob("*.py"))) <= 14
    assert not {name: count for name, count in lines.items() if count >= 500}


def test_no_import_circle() -> None:
    """Neither between modules nor between folders, not even by an import within a function or for type checkers."""
    paths = {module_name(path): path for path in ROOT.rglob("*.py")}
    graph = {
        name: {module if module in paths else module.rpartition(".")[0] for module in imports(path)}
        & paths.keys()
        for name, path in paths.items()
    }
    rooms: dict[str, set[str]] = {}
    for name, imported in graph.items():
        room = name.split(".")[1:2]
        rooms.setdefault("".join(room), set()).update(
            other for module in imported if (other := module.partition(".")[2].partition(".")[0])
        )
    for arrows in (graph, {room: others - {room} for room, others in rooms.items()}):
        try:
            TopologicalSorter(arrows).prepare()
        except CycleError as error:
            pytest.fail(f"import circle: {' <- '.join(error.args[1])}")


def test_it_is_imported_from_byte_code_alone(tmp_path: Path) -> None:
    """As from a zip file or a frozen program; a circle that reading the sources hides would show."""
    copy = tmp_path / "flray"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(copy, legacy=True, quiet=1)
    for source in copy.rglob("*.py"):
        source.unlink()
    done = python(BYTE_CODE, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert Path(done.stdout.strip()) == copy / "__init__.pyc"


@pytest.mark.parametrize(("package", "users"), USERS.items())
def test_only_users_of_ray_and_mlflow_import_them(package: str, users: tuple[str, ...]) -> None:
    for path in ROOT.rglob("*.py"):
        if not path.relative_to(ROOT).as_posix().startswith(users):
            roots = {name.split(".")[0] for name in imports(path)}
            assert package not in roots, path


def test_a_client_s_task_is_made_in_one_place() -> None:
    made = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        if ast.unparse(node.func).rpartition(".")[2] in ("ClientTask", "TaskInput")
    }
    assert made == {"federation/state.py"}


@pytest.mark.parametrize("lower", ABOVE)
def test_imports_point_downwards(lower: str) -> None:
    found = sorted((ROOT / lower).rglob("*.py"))
    assert found, f"there is no {lower}"
    for path in found:
        parts = {name.split(".")[1] for name in imports(path) if name.startswith("flray.")}
        assert not parts & {*ABOVE[lower]}, path


def test_files_are_read_at_the_border() -> None:
    """Others read the user's own code, flray's own files, the kernel's, and those of this process."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in ("read_bytes", "read_text")
    }
    own = {"config/yaml_files.py", "runs/identity.py", "tuning/callback.py", "new/__main__.py"}
    own |= {"runs/export.py", "data/sources/archives.py", "reporting/sections.py"}
    own |= {"metrics/__init__.py"}
    kernel = {"bits.py", "devices/__init__.py", "records/mirror.py"}
    assert found - own - kernel == set()


def test_an_inline_run_loads_neither_ray_nor_mlflow_and_torchvision_imports(tmp_path: Path) -> None:
    """In a fresh process, and torchvision beside this torch."""
    code = (
        f"import sys, flray; flray.run({{'experiment': {small()}}})\n"
        "print(sorted({'ray', 'mlflow'} & set(sys.modules)))\n"
        "from torchvision import models, transforms"
    )
    assert python(code, cwd=tmp_path).stdout.strip() == "[]"


def test_torchvision_is_left_alone_where_torch_has_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(flray, "_keep_alive", [])
    flray._declare_operators()
    assert flray._keep_alive == []


def test_the_page_on_the_architecture_names_modules_that_exist() -> None:
    """And no more of them than a reader can take in."""
    text = (ROOT.parent / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`(flray/[\w/]+(?:\.py)?)`", text)
    assert [path for path in paths if not (ROOT.parent / path).exists()] == []
    lists = [len(re.findall(r"(?m)^\d+\. ", part)) for part in text.split("\n## ")]
    assert [count for count in lists if count] == [9, 11, 7]
