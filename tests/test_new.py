"""``python -m flray.new method NAME``: a method that runs, with a test that passes; nothing is overwritten."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ("test_demo", "test_every_algorithm", "test_identities", "test_blocks")


def python(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_generated_method_passes_its_own_test_and_those_of_all_methods(tmp_path: Path) -> None:
    for part in ("flray", "tests"):
        left_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=left_out)
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    made = python(tmp_path, "flray.new", "method", "demo")
    assert made.returncode == 0, made.stderr
    log = (tmp_path / "CHANGELOG.md").read_text()
    assert log.count("- The method `demo`") == 1

    files = [f"tests/algorithms/{name}.py" for name in TESTS]
    tested = python(tmp_path, "pytest", "-p", "no:cacheprovider", "-k", "demo", *files)
    assert tested.returncode == 0, tested.stdout
    assert int(tested.stdout.rpartition(" passed")[0].split()[-1]) >= 10, tested.stdout
    for check in (("check",), ("format", "--check")):
        ruff = python(tmp_path, "ruff", *check, "flray/algorithms/demo.py", files[0])
        assert ruff.returncode == 0, ruff.stdout

    method = (tmp_path / "flray/algorithms/demo.py").read_bytes()
    for name, said in {
        "demo": "exists already",
        "base": "exists already",
        "fedadam": "there is a method",
        "../x": "small letter",
        "class": "no word of Python",
        "Demo": "small letter",
    }.items():
        refused = python(tmp_path, "flray.new", "method", name)
        assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
        assert said in refused.stderr
    assert (tmp_path / "flray/algorithms/demo.py").read_bytes() == method
    assert (tmp_path / "CHANGELOG.md").read_text() == log
