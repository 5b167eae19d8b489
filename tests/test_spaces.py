"""What comes with flray is found by name in any folder, from a checkout and from a wheel."""

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from flray.config import suites, yaml_files
from flray.config.loader import load
from tests.helpers import ended
from tests.messages import refused

ROOT = Path(__file__).parents[1]


def test_names_in_any_folder_and_a_file_of_that_name_wins(tmp_cwd: Path) -> None:
    assert load("fedskc/table5").paper is not None
    for name in ("quickstart", "quickstart.yaml", "search_spaces/quickstart.yaml"):
        assert yaml_files.locate(name) == ROOT / "search_spaces" / "quickstart.yaml"
    suite = ROOT / "search_spaces" / "papers" / "fedco2" / "table1.yaml"
    for name in ("fedco2/table1", "papers/fedco2/table1.yaml"):
        assert yaml_files.locate(name) == suite == suites.files()["fedco2/table1"]
    (tmp_cwd / "fedavg").mkdir()  # a folder is no file
    assert yaml_files.locate("fedavg") == ROOT / "search_spaces" / "fedavg.yaml"
    (tmp_cwd / "quickstart.yaml").write_text("{data: mnist, model: lenet, algorithm: local}")
    assert load("quickstart.yaml").experiment.algorithm.name == "local"


@pytest.mark.parametrize(
    "name",
    ["fedskc/tabel5", "quickstrat", "nothing.yaml", "local.lr=0.1", "/fedavg", "a\0b", "x" * 300],
)
def test_other_names_are_refused_in_one_line(tmp_cwd: Path, name: str) -> None:
    refused(load, name)


def test_a_wheel_has_them_and_runs_in_an_empty_folder(tmp_cwd: Path) -> None:
    source, folder, empty = tmp_cwd / "source", tmp_cwd / "wheel", tmp_cwd / "empty"
    for name in ("flray", "search_spaces"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    quick = ["--no-deps", "--no-build-isolation"]
    ended("-m", "pip", "wheel", *quick, "-w", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_cwd / "installed")
    kinds = (".csv", ".html", ".md", ".tex", ".toml", ".txt")
    beside = [
        path.relative_to(source) for path in source.glob("flray/**/*") if path.suffix in kinds
    ]
    lacks = [path for path in beside if not (tmp_cwd / "installed" / path).is_file()]
    assert {path.parent.name for path in lacks} == {"new"}  # a checkout's alone
    empty.mkdir()
    settings = ["data={name: digits-sklearn, samples: 96}", "algorithm=fedavg", "rounds=1"]
    settings += ["tracking.uri=null", "space={}", "arms={}", "sweep={}"]
    settings += ["resources.executor=inline"]
    env = {**os.environ, "PYTHONPATH": str(tmp_cwd / "installed")}
    done = ended("-m", "flray", "run", "quickstart", *settings, cwd=empty, env=env)
    assert "model SHA-256" in done.stdout and (empty / "runs").is_dir()
