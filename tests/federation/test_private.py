"""Ray's private members: every one is here, a missing one is refused in a line, and one module reaches for them."""

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import ray
from ray import tune

import flray
from flray.federation.ray_backend import losses, private, session
from flray.tuning import tuner
from tests.helpers import python
from tests.messages import refused

ROOT = Path(flray.__file__).parent


@pytest.mark.parametrize("name", [*private.SESSION, *private.SWEEP])
def test_the_installed_ray_has(name: str) -> None:
    private.check(name)
    missing = f"{name}_before"
    refused(private.check, missing)


@pytest.mark.parametrize("name", [*private.ON_ONE_MACHINE, private.NODE, *private.SWEEP])
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


def test_a_sweep_imports_no_tracker_that_it_does_not_use() -> None:
    assert "air_usage.tag_callbacks(callbacks)" in inspect.getsource(tune.run)
    code = (
        "import sys\nfrom ray import tune\nfrom ray.air._internal import usage as air_usage\n"
        "from flray.tuning.tuner import quiet_ray\n"
        "with quiet_ray():\n    air_usage.tag_callbacks([tune.Callback()])\n"
        "print('wandb' in sys.modules)"
    )
    assert python(code).stdout == "False\n"


@pytest.mark.parametrize("name", [private.ADDRESS, private.FOLDER])
def test_the_installed_ray_takes_the_option(name: str) -> None:
    assert f'kwargs.pop("{name}"' in inspect.getsource(ray.init)
    with pytest.raises(RuntimeError, match="Unknown keyword"):
        ray.init(address="local", **{f"{name}_before": "x"})
    assert not ray.is_initialized()


def test_the_installed_ray_reads_every_variable_that_is_set_for_it() -> None:
    """One that it does not know it ignores."""
    package = Path(ray.__file__).parent
    settings = (package / "_raylet.so").read_bytes()
    assert [name for name in session._HERE if name[4:].encode() not in settings] == []
    tune = "".join(path.read_text() for path in (package / "tune").rglob("*.py"))
    tune += "".join(path.read_text() for path in (package / "air").rglob("*.py"))
    tune += "".join(path.read_text() for path in (package / "train").rglob("*.py"))
    assert [name for name in tuner.ENVIRONMENT if f'"{name}"' not in tune] == []


def test_a_look_for_drained_nodes_hides_no_renamed_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "DRAINING", f"{private.DRAINING}_before")
    refused(losses.NodeWatch().look)


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
