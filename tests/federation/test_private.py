"""Ray's private members: every one is here, a missing one is refused in a line, and one module reaches for them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import flray
from flray.federation.ray_backend import private
from tests.messages import refused

ROOT = Path(flray.__file__).parent


@pytest.mark.parametrize("name", [*private.SESSION, *private.SWEEP])
def test_the_installed_ray_has(name: str) -> None:
    private.check(name)
    missing = f"{name}_before"
    refused(private.check, missing)


@pytest.mark.parametrize(
    "name", [private.CLUSTER, private.NODE, private.TRIAL_STARTS, private.TRIAL_STEPS]
)
def test_what_is_replaced_comes_back(name: str) -> None:
    before = private.member(name)
    with private.replaced(name, lambda found: [found]):
        assert private.member(name) == [before]
    assert private.member(name) is before


def test_a_ray_without_a_member_is_refused_before_it_is_started() -> None:
    code = (
        "from ray._private import state; del state.GlobalState.get_draining_nodes\n"
        "from flray.federation.ray_backend.session import ray_session\n"
        "with ray_session(None): print('started')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == ""
    assert "has no ray._private.state.state.get_draining_nodes" in done.stderr.splitlines()[-1]


def test_versions_of_ray_are_bounded_by_those_that_were_tested() -> None:
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    assert f"ray[tune,default]{private.TESTED}" in project["dependencies"]


def test_one_short_module_reaches_for_them() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if re.search(r"ray\._|_raylet|tune_controller|_node_ip_address|_temp_dir", path.read_text())
    }
    assert found == {"federation/ray_backend/private.py"}
    assert len((ROOT / found.pop()).read_text().splitlines()) <= 100
