"""The Ray that flray starts on this machine: nobody else's, waited for, watched, and nothing of it left."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from flray.federation.ray_backend import session
from flray.federation.ray_backend.session import ray_session
from flray.files.atomic import hold_lock
from tests.helpers import python

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a name short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def started(tmp_cwd: Path, digits: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a long sweep of a trial with an actor in a process of its own, as a user does."""
    experiment = {**digits, "name": "long", "rounds": 500, "resources": {"actors": 1}}
    content = {"experiment": experiment, "space": {"local.lr": {"grid": [0.01]}}}
    (tmp_cwd / "x.yaml").write_text(yaml.safe_dump(content))
    driver = subprocess.Popen(
        [sys.executable, "-m", "flray", "tune", "x.yaml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    _drivers.append(driver)
    return driver


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
        try:
            if process.name().startswith(name):
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found


def of_folder(folder: Path) -> list[psutil.Process]:
    """Return the processes whose command line names `folder`, whoever their parent is."""
    found = psutil.process_iter(["cmdline"])
    return [
        each for each in found if any(str(folder) in word for word in each.info["cmdline"] or ())
    ]


def waits(name: str, command: list[str]) -> bool:
    """Return whether a process is one of Ray's for a task or an actor, which has none yet."""
    return name == "ray::IDLE" or any(Path(word).name == "default_worker.py" for word in command)


def all_ended(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=120)[1]


@pytest.mark.slow
def test_a_sweep_whose_ray_is_killed_says_how_to_go_on_and_leaves_nothing(
    tmp_cwd: Path, digits: dict[str, Any], short: Path
) -> None:
    driver = started(tmp_cwd, digits)
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
    tmp_cwd: Path, digits: dict[str, Any], short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang_agents(tmp_cwd, monkeypatch)
    driver = started(tmp_cwd, digits)
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
def test_a_ray_that_does_not_start_in_time_is_started_a_second_time(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time its agents do nothing, as on a machine without a moment for them."""
    hang_agents(tmp_path, monkeypatch)
    program = (
        "from flray.federation.ray_backend.session import ray_session\n"
        "with ray_session(None) as resources: print(resources['CPU'])"
    )
    assert float(python(program).stdout) > 0
    assert len(list(tmp_path.glob("*agent*"))) == 2
    assert not of_folder(short)  # the first agents, whose node process ended itself, included


@pytest.mark.slow
def test_who_asks_again_before_ray_is_ended_leaves_no_process_of_it(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked_again(processes: session._Processes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session._Processes, "end", asked_again)
    try:
        with pytest.raises(KeyboardInterrupt), ray_session(None):
            assert of_folder(short)
        assert not of_folder(short) and not list(short.iterdir())
    finally:
        import ray

        ray.shutdown()


@pytest.mark.slow
def test_ray_starts_no_more_than_it_needs_and_keeps_no_record_of_tasks(short: Path) -> None:
    """Its control process (gcs_server) would grow by about 9 MiB here."""
    with ray_session(None):
        import ray

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
