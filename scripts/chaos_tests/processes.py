"""Drivers, and the other processes a case has: all of them carry its mark in their environment."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import psutil

HERE = Path(__file__).parent
MARK = "FLRAY_CHAOS"
Variables = dict[str, str]
COLD = "import sys; from flray.cli.main import main; main()"


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes whose environment carries a mark."""
    found = []
    needle = f"{MARK}={mark}\0".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError, psutil.Error):
                if needle in (entry / "environ").read_bytes():
                    process = psutil.Process(int(entry.name))
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
    return found


def titled(mark: str, *titles: str) -> list[psutil.Process]:
    """Return those whose command line begins with one of the titles, or is a program of that name."""
    found = []
    for process in marked(mark):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if line and (line[0].startswith(titles) or Path(line[0]).name in titles):
                found.append(process)
    return sorted(found, key=lambda p: p.pid)


SLOW = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "dashboard/agent.py", "agent/main.py")
"""Ray's agents, which notice that their node is gone after 60 seconds only; up to 2.59 they have no title."""


def gone(mark: str, seconds: float, last: bool = False) -> list[str]:
    """Wait until no process carries the mark; end and name those that are left, save for Ray's agents.

    The agents end by themselves; the `last` time they are ended.
    """
    end = time.monotonic() + seconds
    while (
        left := [p for p in marked(mark) if not any(name in _title(p) for name in SLOW)]
    ) and time.monotonic() < end:
        time.sleep(0.1)
    names = [_title(process)[:80] for process in left]
    for process in marked(mark) if last else left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return names


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).strip()
    return "a process that ended"


def _obeying(
    script: str, log: BinaryIO, environment: dict[str, str], **how: Any
) -> subprocess.Popen[str]:
    """Start a script of this folder that is told what to do through pipes."""
    return subprocess.Popen(
        [sys.executable, str(HERE / script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        text=True,
        bufsize=1,
        **how,
    )


class Warm:
    """Starts commands as forks of a process that has imported everything."""

    def __init__(self, log: Path) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": "random"}
        environment.pop(MARK, None)
        self._log = log.open("ab")
        self._process = _obeying("warm.py", self._log, environment)
        assert self._say(300) == ["ready"], f"no warm process: {log}"

    def _say(self, seconds: float) -> list[Any] | None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return json.loads(self._process.stdout.readline() or "null") if ready else None

    def start(
        self, arguments: list[str], folder: Path, environment: Variables, output: Path, **extra: Any
    ) -> "Driver":
        """Begin a command; what else the process does: see `warm.obey`."""
        assert self._process.stdin is not None
        places = {"folder": str(folder), "output": str(output)}
        order = {"arguments": arguments, "environment": environment, **places, **extra}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._say(60)
        assert answer and len(answer) == 1, answer
        return Driver(int(answer[0]), output, self._wait)

    def _wait(self, seconds: float) -> int | None:
        answer = self._say(seconds)
        return None if answer is None else int(answer[1])

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._log.close()


class Cold:
    """Starts commands as a person does: a new interpreter each."""

    def start(
        self, arguments: list[str], folder: Path, environment: Variables, output: Path, **extra: Any
    ) -> "Driver":
        """Begin a command; nothing else can be done in it."""
        with output.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", COLD, *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **environment},
                start_new_session=True,
                # what is started in the background ignores Ctrl-C, and so would its children
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

        def wait(seconds: float) -> int | None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(seconds)
            return None

        return Driver(process.pid, output, wait)

    def close(self) -> None:
        """Do nothing."""


class Driver:
    """A command under way: its process, which leads a process group, and the file that gets what it prints.

    `wait` waits so many seconds for its end and returns the exit code, negative for a signal; None if it goes on.
    """

    def __init__(self, pid: int, output: Path, wait: Callable[[float], int | None]) -> None:
        self.pid, self.output, self._wait = pid, output, wait
        self.code: int | None = None

    def wait(self, seconds: float) -> int | None:
        """Wait for the end and return the exit code; None if it is not over."""
        if self.code is None:
            self.code = self._wait(seconds)
        return self.code

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal, to the whole process group if asked."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    @property
    def text(self) -> str:
        """What it has printed so far (and what those before it printed into the same file)."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""


class Nodes:
    """A Ray cluster on this machine: a head and a worker node, which may be lost and replaced."""

    def __init__(self, folder: Path, mark: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.mark = mark
        environment = {**os.environ, MARK: mark}
        self._log = (folder / "log.txt").open("ab")
        self._process = _obeying("nodes.py", self._log, environment, start_new_session=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, folder / "log.txt"

    def replace(self) -> bool:
        """Lose the worker node and have another one."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("replace\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip() == "replaced"

    def close(self) -> None:
        """End all of it."""
        self._process.kill()
        self._process.wait()
        gone(self.mark, 0, last=True)
        self._log.close()
