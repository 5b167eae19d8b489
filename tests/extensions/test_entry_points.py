"""Plug-ins of installed packages: found by their entry point, run as the user's files are, refused in one line."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from flray.config.loader import load
from flray.runs import runner
from flray.runs.identity import code_of
from tests.messages import refused

METRIC = """
from flray.registry import register_metric
from tests_pack import FACTOR

@register_metric("scaled")
def scaled(targets, outputs):
    return FACTOR * float((outputs.argmax(1) == targets).mean())
"""
POINTS = """[flray.plugins]
scaling = tests_pack.scaled
gone = tests_pack.gone
broken = tests_broken.scaled
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    for name, content in (
        ("tests_pack/__init__.py", "FACTOR = 0.5"),
        ("tests_pack/scaled.py", METRIC),
        ("tests_broken/__init__.py", "raise RuntimeError('no licence')"),
        ("tests_pack-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tests_pack\nVersion: 1"),
        ("tests_pack-1.dist-info/entry_points.txt", POINTS),
    ):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    return site


def named(digits: dict[str, Any], *plugins: str) -> dict[str, Any]:
    measured = {"evaluation": {"metrics": ["scaled"]}}
    return {"experiment": {**digits, **measured, "plugins": list(plugins), "rounds": 1}}


def test_a_package_is_named_by_its_entry_point(digits: dict[str, Any], installed: Path) -> None:
    experiment = load(named(digits, "scaling")).experiment
    module = installed / "tests_pack" / "scaled.py"
    assert experiment.plugins == (str(module.resolve()),)
    assert {str(module.resolve()), str((installed / "tests_pack/__init__.py").resolve())} <= {
        *code_of(experiment)["files"]
    }
    resources = {"resources": {"executor": "inline"}}
    found = runner.run({"experiment": {**named(digits, "scaling")["experiment"], **resources}})
    last = found.history.iloc[-1]
    assert last["global/common/scaled"] == pytest.approx(last["global/common/accuracy"] / 2)


@pytest.mark.parametrize("name", ["scalling", "gone", "broken", "../scaling", ""])
def test_other_names_are_refused(digits: dict[str, Any], name: str) -> None:
    assert "\n" not in str(refused(load, {"experiment": {**digits, "plugins": [name]}}))


def test_a_file_is_run_as_it_reads_now(
    digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by byte code of a file of the same second and size, and none is left beside it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    ran: list[int] = []
    monkeypatch.setattr(sys, "ran", ran, raising=False)
    for number in (1, 2):
        Path("mine.py").write_text(f"import sys; sys.ran.append({number})")
        os.utime("mine.py", (1e9, 1e9))
        load({"experiment": {**digits, "plugins": ["mine.py"]}})
    assert ran[0] == 1 and ran[-1] == 2 and not Path("__pycache__").exists()


def test_a_file_of_that_name_comes_first(digits: dict[str, Any]) -> None:
    Path("scaling").write_text("raise RuntimeError('this one')")
    refused(load, named(digits, "scaling"))
