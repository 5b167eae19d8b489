"""What comes with flray is found by name in any folder; values by paper; and a method that flray.new writes runs."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flray import registry
from flray.config import suites, yaml_files
from flray.config.loader import experiment_at, load
from flray.federation.building import build_spec
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


PRESETS = [
    (name, preset)
    for name in registry.algorithms.names()
    for preset in getattr(registry.algorithms.params(name), "presets", ())
]


MU = "algorithm.mu"


def content(algorithm: Any = "fedavg", **more: Any) -> dict[str, Any]:
    settings = {"data": "digits-sklearn", "partition": {"name": "iid", "clients": 7}}
    return {"experiment": {**settings, "model": "lenet", "algorithm": algorithm, **more}}


@pytest.mark.parametrize(
    ("name", "preset"), PRESETS, ids=[f"{name}-{preset.name}" for name, preset in PRESETS]
)
def test_every_preset_fits_its_method_and_has_a_source(name: str, preset: registry.Preset) -> None:
    options = load(content({"name": name, "preset": preset.name})).experiment.algorithm.options
    assert preset.source
    assert preset.values.items() <= options.items()
    assert options == registry.algorithms.params(name)(**preset.values).model_dump()


def test_a_given_value_beats_the_presets() -> None:
    config = load(content({"name": "fedrs", "preset": "fcclplus", "alpha": 0.25}))
    assert config.experiment.algorithm.options == {"alpha": 0.25, "graded": True}


def test_a_preset_named_later_replaces_the_values_before_it() -> None:
    first, preset = content({"name": "fedprox", "mu": 3.0}), {"algorithm.preset": "fedco2"}
    later = load(first, ["algorithm.preset=fedco2"]).experiment
    found = [later, *(experiment_at(load(first), preset | more) for more in ({}, {MU: 0.5}))]
    assert [one.algorithm.options["mu"] for one in found] == [0.001, 0.001, 0.5]


@pytest.mark.parametrize("method", ["fedprox", "fedavg"])
def test_an_unknown_preset_is_refused_in_one_line(method: str) -> None:
    refused(load, content({"name": method, "preset": "fccl"}))


def test_a_list_of_networks_is_dealt_by_seed_each_as_often_as_the_others() -> None:
    def dealt(seed: int) -> tuple[str, ...]:
        return build_spec(
            load(content("local", models=["lenet", "mlp", "simple-cnn"], seed=seed)).experiment
        ).architecture_of

    assert sorted(Counter(dealt(0)).values()) == [2, 2, 3]
    assert dealt(0) == dealt(0)
    assert len({dealt(seed) for seed in range(4)}) > 1


def test_a_wrong_network_in_a_list_is_named_with_its_place() -> None:
    refused(load, content("local", models=["mlp", "lent"]))


TESTS = ("test_demo", "test_every_algorithm", "test_identities", "test_tasks")


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
