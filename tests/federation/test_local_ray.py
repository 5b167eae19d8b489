"""The Ray that flray joins or starts on this machine, and Ray's private members that it reaches for."""

import contextlib
import inspect
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import tune

import flray
from flray import ray_private as private
from flray import ray_session as session
from flray.errors import FlrayError
from flray.federation.ray_backend import losses
from flray.files import hold_lock
from flray.ray_session import chosen_address, ray_session
from flray.records import directory
from flray.runs import runner
from flray.tuning import tuner
from tests.helpers import Settings, cases, python, written
from tests.messages import refused

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a name short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def started(digits: Settings) -> subprocess.Popen[str]:
    """Start a long sweep of a trial with an actor in a process of its own, as a user does."""
    experiment = {**digits, "name": "long", "rounds": 500, "resources": {"actors": 1}}
    written(experiment, space={"local.lr": {"grid": [0.01]}})
    said: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    _drivers.append(subprocess.Popen([sys.executable, "-m", "flray", "tune", "x.yaml"], **said))
    return _drivers[-1]


SLOW = """
import sys, time
from pathlib import Path

for agent in ("dashboard/agent.py", "runtime_env/agent/main.py"):
    begun = Path({folder!r}) / agent.replace("/", ".")
    if any(agent in word for word in sys.orig_argv) and not begun.exists():
        begun.touch()
        time.sleep(3600)
"""


def hang_agents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first agents of the Rays that other processes start do nothing, so that the start does not end."""
    (folder / "sitecustomize.py").write_text(SLOW.format(folder=str(folder)))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")


_drivers: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _no_driver_is_left() -> Iterator[None]:
    yield
    while _drivers:
        driver = _drivers.pop()
        if driver.poll() is None:
            for process in [*descendants(driver), psutil.Process(driver.pid)]:
                process.kill()


def wait_for(condition: Callable[[], Any], driver: subprocess.Popen[str]) -> Any:
    while not (found := condition()):
        assert driver.poll() is None, driver.communicate()[0]
        time.sleep(0.05)
    return found


def descendants(driver: subprocess.Popen[str]) -> list[psutil.Process]:
    return list(psutil.Process(driver.pid).children(recursive=True))


def called(driver: subprocess.Popen[str], name: str) -> list[psutil.Process]:
    found = []
    for process in descendants(driver):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if process.name().startswith(name) else []
    return found


def of_folder(folder: Path) -> list[psutil.Process]:
    """Return the processes whose command line names `folder`, whoever their parent is."""
    found = psutil.process_iter(["cmdline"])
    return [one for one in found if str(folder) in "\0".join(one.info["cmdline"] or ())]


def waits(name: str, command: list[str]) -> bool:
    """Return whether a process is one of Ray's for a task or an actor, which has none yet."""
    return name == "ray::IDLE" or any(Path(word).name == "default_worker.py" for word in command)


def all_ended(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=120)[1]


@pytest.mark.slow
def test_a_sweep_whose_ray_is_killed(tmp_cwd: Path, digits: Settings, short: Path) -> None:
    driver = started(digits)
    journals = "runs/long/001/trials/*/journal.jsonl"
    wait_for(lambda: any('"round"' in path.read_text() for path in Path().glob(journals)), driver)
    (private,) = short.iterdir()
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert list(private.glob("*/session_*/sockets/raylet"))
    processes = descendants(driver)
    (raylet,) = called(driver, "raylet")
    raylet.kill()
    said = driver.communicate(timeout=240)[0]
    assert driver.returncode == 1, said
    assert said.splitlines()[-1] == (
        "stopped: Ray's node process (raylet) on this machine was killed, as happens when memory runs "
        "out; go on with: flray resume runs/long/001"
    )
    assert "state-dump" not in said and "Traceback" not in said, said
    assert json.loads(Path("runs/long/001/sweep.json").read_text())["status"] == "interrupted"
    assert all_ended(processes) and not list(short.iterdir())


@pytest.mark.slow
def test_a_sweep_that_is_stopped_while_ray_starts_leaves_no_process_of_it(
    tmp_cwd: Path, digits: Settings, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang_agents(tmp_cwd, monkeypatch)
    driver = started(digits)
    wait_for(lambda: list(tmp_cwd.glob("*agent*")), driver)
    processes = descendants(driver)
    driver.send_signal(signal.SIGHUP)
    driver.send_signal(signal.SIGHUP)
    said = driver.communicate(timeout=240)[0]
    assert driver.returncode == 129, said
    assert all_ended(processes) and not list(short.iterdir()) and not Path("runs").exists()


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_stays(short: Path) -> None:
    for name in ("flray-left", "flray-used", "flray-other"):
        (short / name).mkdir()
    (short / "flray-left" / session.LOCK).touch()
    with hold_lock(short / "flray-used" / session.LOCK), session._private_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {path.name for path in short.iterdir()} == {"flray-used", "flray-other", folder.name}
    assert not folder.exists()


@pytest.mark.slow
def test_ray_has_a_second_try(tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time its agents do nothing, as on a machine without a moment for them."""
    hang_agents(tmp_path, monkeypatch)
    program = (
        "from flray.ray_session import ray_session\n"
        "with ray_session(None) as resources: print(resources['CPU'])"
    )
    assert float(python(program).stdout) > 0
    assert len(list(tmp_path.glob("*agent*"))) == 2
    assert not of_folder(short)  # the first agents, whose node process ended itself, included


@pytest.mark.slow
def test_asking_again_leaves_no_process(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked_again(processes: session._Processes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session._Processes, "end", asked_again)
    try:
        with pytest.raises(KeyboardInterrupt), ray_session(None):
            assert of_folder(short)
        assert not of_folder(short) and not list(short.iterdir())
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_ray_starts_no_more_than_it_needs_and_keeps_no_record_of_tasks(short: Path) -> None:
    """Its control process (gcs_server) would grow by about 9 MiB here."""
    with ray_session(None):
        found = psutil.Process().children(recursive=True)
        started = " ".join(part for process in of_folder(short) for part in process.cmdline())
        assert "log_monitor.py" in started and "--minimal" in started
        assert "dashboard.py" not in started and "/monitor.py" not in started
        (control,) = [process for process in found if process.name() == "gcs_server"]
        actor = ray.remote(type("Actor", (), {"answer": lambda self: 1})).remote()

        def call(times: int) -> int:
            for _ in range(times):
                ray.get([actor.answer.remote() for _ in range(200)])
            return int(control.memory_info().rss)

        before = call(5)
        now = psutil.Process().children(recursive=True)
        assert not [process for process in now if waits(process.name(), process.cmdline())]
        assert call(25) - before < 4 * 2**20


@cases(
    "given, environment, expected, said",
    """[null, null, null, 0], [null, '10.0.0.1:6379', '10.0.0.1:6379', 1], [null, local, null, 0],
    [auto, '10.0.0.1:6379', auto, 0], [local, '10.0.0.1:6379', null, 0], [null, '', null, 0]""",
)
def test_the_environment_s_ray_is_joined_and_said(
    given: str | None, environment: str | None, expected: str | None, said: int
) -> None:
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        if environment is not None:
            patch.setenv("RAY_ADDRESS", environment)
        assert chosen_address(given, lines.append) == expected
    assert len(lines) == said and all("10.0.0.1:6379" in line for line in lines)


@pytest.mark.parametrize(
    ("folder", "said", "short"),
    [("a" * 100, "path length", True), ("file/f", "NotADirectoryError", False)],
)
def test_a_ray_that_cannot_start_is_one_line(
    folder: str, said: str, short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / folder))
    with pytest.raises(FlrayError, match=said) as refused, ray_session(None):
        pass
    text = str(refused.value)
    assert text.startswith("no Ray on this machine: ") and "RAY_TMPDIR" in text
    assert ("shorter" in text) == short and "\n" not in text


def test_an_address_of_ipv6_is_looked_at() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        session._check_answers(f"[::1]:{server.getsockname()[1]}")


def test_a_ray_too_slow(tmp_cwd: Path, digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    inline = {**digits, "rounds": 1, "resources": {"executor": "inline"}}
    folder = runner.run({"experiment": inline}).folder
    settings = (folder / directory.CONFIG).read_text()
    (folder / directory.CONFIG).write_text(settings.replace("executor: inline", "executor: ray"))
    tried = []

    def slow(*arguments: Any) -> None:
        tried.append(arguments)
        raise ConnectionError("The current node timed out during startup")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(session, "_start", slow)
    refused(runner.resume, folder, rounds=2)
    assert len(tried) == 2 and directory.read(folder)["status"] == "interrupted"


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
        "from flray.ray_session import ray_session\n"
        "with ray_session(None): print('started')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == ""
    assert "has no ray._private.state.state.get_draining_nodes" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_torch_is_imported_while_ray_starts_and_its_workers_seldom_look_for_garbage() -> None:
    code = (
        "import importlib, sys\n"
        "from flray.ray_session import connected, joined, ray_ahead\n"
        "for wanted, address in ((False, 'local'), (True, '127.0.0.1:1')):\n"
        "    with ray_ahead(wanted, address, 'flray.api'): assert not connected()\n"
        "assert not {'torch', 'ray'} & set(sys.modules)\n"
        "with ray_ahead(True, 'local', 'flray.runs.runner'):\n"
        "    assert 'torch' in sys.modules and connected() and not joined()\n"
        "    import ray\n"
        "    look = lambda: (importlib.import_module('flray'), importlib.import_module('gc').get_threshold())[1]\n"
        "    print(ray.get(ray.remote(look).remote(), timeout=120)[0])\n"
        "print(connected())"
    )
    assert python(code).stdout == "50000\nFalse\n"


@pytest.mark.slow
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
    folders = [package / name for name in ("tune", "air", "train")]
    tune = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    assert [name for name in tuner.ENVIRONMENT if f'"{name}"' not in tune] == []


def test_a_look_for_drained_nodes_hides_no_renamed_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "DRAINING", f"{private.DRAINING}_before")
    refused(losses.NodeWatch().look)


def test_one_short_module_reaches_for_them_in_versions_that_were_tested() -> None:
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    assert f"ray[tune,default]{private.TESTED}" in project["dependencies"]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if re.search(r"ray\._|_raylet|tune_controller|_node_ip_address|_temp_dir", path.read_text())
    }
    assert found == {"ray_private.py"}
    assert len((ROOT / found.pop()).read_text().splitlines()) <= 100
