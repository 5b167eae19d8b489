"""A release: a page whose links lead somewhere, one version, workflows of pinned actions and scripts that exist."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import python

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
    code = "import sys, setuptools.build_meta as b; b.prepare_metadata_for_build_wheel('made')"
    given = {"FLRAY_REPOSITORY": f"{repository}/", "FLRAY_REF": "v9"} if repository else {}
    environment = {**os.environ, **given, "PYTHONPATH": ""}
    (tmp_path / "made").mkdir()
    python(code, cwd=tmp_path, env=environment)
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
    newest = re.search(r"^## \[([^]]+)\]", changes, re.MULTILINE)
    assert newest is not None
    assert project["version"] == citation["version"] == newest[1]


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


def test_the_programs_that_workflows_run_start() -> None:
    """They get no path but what their command gives them."""
    runs = [step.get("run", "") for file in WORKFLOWS for step in steps_of(file)]
    commands = [run for run in runs if "python scripts/" in run]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in commands:
        subprocess.run(
            ["bash", "-c", f"{command} --help"],
            cwd=ROOT,
            env={**os.environ, "PATH": path, "PYTHONPATH": ""},
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=120,
        )
    assert commands


def test_a_page_without_links_stays_as_it_is() -> None:
    spec = importlib.util.spec_from_file_location("setup_of_flray", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = '[a](https://x) [b](#c) [d](mailto:e@f) <img src="https://x/y.png"> [g]: (h)'
    assert module.absolute(text, REPOSITORY, "main") == text
