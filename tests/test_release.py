"""A release: links, one version, workflows; what comes with it is found by name in any folder; a made method runs."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray import registry
from flray.config import suites, yaml_files
from flray.config.loader import experiment_at, load
from flray.federation.building import build_spec
from tests.helpers import Settings, ended, python
from tests.messages import refused

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
REPOSITORY = "https://forge.example/someone/flray"


def links_of(page: str) -> list[str]:
    return re.findall(r"\]\(([^)]*)\)", page) + re.findall(r'<img src="([^"]*)"', page)


@pytest.mark.parametrize("repository", [None, REPOSITORY])
def test_metadata_have_a_page_whose_links_work(tmp_path: Path, repository: str | None) -> None:
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "flray").mkdir()
    (tmp_path / "made").mkdir()
    code = "import sys, setuptools.build_meta as b; b.prepare_metadata_for_build_wheel('made')"
    given = {"FLRAY_REPOSITORY": f"{repository}/", "FLRAY_REF": "v9"} if repository else {}
    python(code, cwd=tmp_path, env={**os.environ, **given, "PYTHONPATH": ""})
    (file,) = (tmp_path / "made").glob("*.dist-info/METADATA")
    found = message_from_string(file.read_text(encoding="utf-8"))
    page = str(found.get_payload())
    assert found["Description-Content-Type"] == "text/markdown"
    assert found["Author"] and found["Keywords"] and found.get_all("Classifier")
    assert len(found.get_all("Project-URL") or []) == (3 if repository else 0)
    own = links_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links_of(page)) == len(own) > 30
    for before, after in zip(own, links_of(page), strict=True):
        if before.startswith(("http", "#")) or repository is None:
            assert after == before
            continue
        kind = "raw" if before.endswith(".png") else "blob"
        assert after == f"{repository}/{kind}/v9/{before}"
        assert (ROOT / before.partition("#")[0]).exists()


def test_one_version_stands_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## \[([^]]+)\]", changes, re.MULTILINE)[0]
    assert project["version"] == citation["version"] == newest


def steps_of(file: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_run_pinned_actions_and_scripts_that_exist(file: Path) -> None:
    for step in steps_of(file):
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])
        for script in re.findall(r"\bscripts/[\w-]+", step.get("run", "")):
            assert os.access(ROOT / script, os.X_OK)
        # A name that others choose never stands within a command.
        assert "${{ github." not in step.get("run", "")


@pytest.mark.slow
def test_the_programs_that_workflows_run_start() -> None:
    """They get no path but what their command gives them."""
    runs = [step.get("run", "") for file in WORKFLOWS for step in steps_of(file)]
    commands = [run for run in runs if "python scripts/" in run]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    how: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, "PATH": path, "PYTHONPATH": ""}}
    how |= {"stdout": subprocess.DEVNULL, "check": True, "timeout": 120}
    for command in commands:
        subprocess.run(["bash", "-c", f"{command} --help"], **how)
    assert commands


def test_a_page_without_links_stays_as_it_is() -> None:
    absolute = runpy.run_path(str(ROOT / "setup.py"), run_name="setup_of_flray")["absolute"]
    text = '[a](https://x) [b](#c) [d](mailto:e@f) <img src="https://x/y.png"> [g]: (h)'
    assert absolute(text, REPOSITORY, "main") == text


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


def test_other_names_are_refused_in_one_line(tmp_cwd: Path) -> None:
    wrong = ("fedskc/tabel5", "quickstrat", "nothing.yaml", "local.lr=0.1", "/fedavg")
    for name in (*wrong, "a\0b", "x" * 300):
        refused(load, name)


@pytest.mark.slow
def test_a_wheel_has_them_and_runs_in_an_empty_folder(tmp_cwd: Path) -> None:
    source, folder, empty = tmp_cwd / "source", tmp_cwd / "wheel", tmp_cwd / "empty"
    for name in ("flray", "search_spaces"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    quick = ["--no-deps", "--no-build-isolation"]
    ended("-m", "pip", "wheel", *quick, "-w", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    installed = tmp_cwd / "installed"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(installed)
    kinds = (".csv", ".html", ".md", ".tex", ".toml", ".txt")
    beside = [path for path in source.glob("flray/**/*") if path.suffix in kinds]
    lacks = [path for path in beside if not (installed / path.relative_to(source)).is_file()]
    assert {path.parent.name for path in lacks} == {"new"}  # a checkout's alone
    empty.mkdir()
    settings = ["data={name: digits-sklearn, samples: 96}", "algorithm=fedavg", "rounds=1"]
    settings += ["tracking.uri=null", "resources.executor=inline"]
    settings += ["space={}", "arms={}", "sweep={}"]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = ended("-m", "flray", "run", "quickstart", *settings, cwd=empty, env=env)
    assert "model SHA-256" in done.stdout and (empty / "runs").is_dir()


PRESETS = [
    (name, preset)
    for name in registry.algorithms.names()
    for preset in getattr(registry.algorithms.params(name), "presets", ())
]


def content(algorithm: Any = "fedavg", **more: Any) -> Settings:
    settings = {"data": "digits-sklearn", "partition": {"name": "iid", "clients": 7}}
    return {"experiment": {**settings, "model": "lenet", "algorithm": algorithm, **more}}


@pytest.mark.parametrize(
    ("name", "preset"), PRESETS, ids=[f"{name}-{preset.name}" for name, preset in PRESETS]
)
def test_every_preset_fits_its_method_and_has_a_source(name: str, preset: registry.Preset) -> None:
    options = load(content({"name": name, "preset": preset.name})).experiment.algorithm.options
    assert preset.source and preset.values.items() <= options.items()
    assert options == registry.algorithms.params(name)(**preset.values).model_dump()


def test_a_given_value_beats_the_preset_s_and_a_preset_named_later_those_before() -> None:
    config = load(content({"name": "fedrs", "preset": "fcclplus", "alpha": 0.25}))
    assert config.experiment.algorithm.options == {"alpha": 0.25, "graded": True}
    first, preset = content({"name": "fedprox", "mu": 3.0}), {"algorithm.preset": "fedco2"}
    later = load(first, ["algorithm.preset=fedco2"]).experiment
    mu = {"algorithm.mu": 0.5}
    found = [later, *(experiment_at(load(first), preset | more) for more in ({}, mu))]
    assert [one.algorithm.options["mu"] for one in found] == [0.001, 0.001, 0.5]


def test_an_unknown_preset_is_refused_in_one_line() -> None:
    for method in ("fedprox", "fedavg"):
        refused(load, content({"name": method, "preset": "fccl"}))


def test_a_list_of_networks_is_dealt_by_seed_each_as_often_as_the_others() -> None:
    def dealt(seed: int) -> tuple[str, ...]:
        several = content("local", models=["lenet", "mlp", "simple-cnn"], seed=seed)
        return build_spec(load(several).experiment).architecture_of

    assert sorted(Counter(dealt(0)).values()) == [2, 2, 3]
    assert dealt(0) == dealt(0) and len({dealt(seed) for seed in range(4)}) > 1
    refused(load, content("local", models=["mlp", "lent"]))  # it is named with its place


TESTS = ("test_demo", "test_every_algorithm", "test_identities", "test_tasks")


def program(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    how: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "cwd": copy}
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    return subprocess.run([sys.executable, "-m", *arguments], env=environment, **how)


@pytest.mark.slow
def test_the_generated_method_passes_its_own_test_and_those_of_all_methods(tmp_path: Path) -> None:
    for part in ("flray", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    made = program(tmp_path, "flray.new", "method", "demo")
    assert made.returncode == 0, made.stderr
    log = (tmp_path / "CHANGELOG.md").read_text()
    assert log.count("- The method `demo`") == 1
    files = [f"tests/algorithms/{name}.py" for name in TESTS]
    tested = program(tmp_path, "pytest", "-p", "no:cacheprovider", "-k", "demo", *files)
    assert tested.returncode == 0, tested.stdout
    assert int(tested.stdout.rpartition(" passed")[0].split()[-1]) >= 10, tested.stdout
    for check in (("check",), ("format", "--check")):
        ruff = program(tmp_path, "ruff", *check, "flray/algorithms/demo.py", files[0])
        assert ruff.returncode == 0, ruff.stdout
    method = (tmp_path / "flray/algorithms/demo.py").read_bytes()
    wrong = {"demo": "exists already", "base": "exists already", "fedadam": "there is a method"}
    wrong |= {"../x": "small letter", "class": "no word of Python", "Demo": "small letter"}
    for name, said in wrong.items():
        refused = program(tmp_path, "flray.new", "method", name)
        assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
        assert said in refused.stderr
    assert (tmp_path / "flray/algorithms/demo.py").read_bytes() == method
    assert (tmp_path / "CHANGELOG.md").read_text() == log
