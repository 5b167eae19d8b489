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
from typing import Any

import psutil

HERE = Path(__file__).parent
MARK = "FLRAY_CHAOS"
Variables = dict[str, str]
COLD = "import sys; from flray.cli.main import main; main()"


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes whose environment carries a mark, by their number."""
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if (process.info["environ"] or {}).get(MARK) == mark
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def titled(mark: str, *titles: str) -> list[psutil.Process]:
    """Return those whose command line begins with one of the titles."""
    return [process for process in marked(mark) if _title(process).startswith(titles)]


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


class Obeying:
    """A script of this folder that is told what to do through pipes; its first line says that it is ready."""

    def __init__(self, script: str, log: Path, **how: Any) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                bufsize=1,
                **how,
            )
        self.first = self.said(300) or ""
        assert self.first, f"{script} did not start: {log}"

    def tell(self, line: str) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def said(self, seconds: float) -> str | None:
        """Return the next line, empty if the script is gone; None if there is none within so many seconds."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline().strip() if ready else None

    def close(self) -> None:
        """End it; it may have ended."""
        self._process.kill()
        self._process.wait()


class Warm(Obeying):
    """Starts commands as forks of a process that has imported everything."""

    def __init__(self, log: Path) -> None:
        super().__init__("warm.py", log, env={**os.environ, "PYTHONHASHSEED": "random"})

    def start(
        self, arguments: list[str], folder: Path, environment: Variables, output: Path, **extra: Any
    ) -> "Driver":
        """Begin a command; what else the process does: see `warm.obey`."""
        places = {"folder": str(folder), "output": str(output)}
        order = {"arguments": arguments, "environment": environment, **places, **extra}
        self.tell(json.dumps(order))
        pid = self.said(60)
        assert pid, "the warm process does not answer"
        return Driver(int(pid), output, self._wait)

    def _wait(self, seconds: float) -> int | None:
        status = self.said(seconds)
        return None if status is None else int(status)


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


class Nodes(Obeying):
    """A Ray cluster on this machine: a head and a worker node, which may be lost and replaced."""

    def __init__(self, log: Path, mark: str) -> None:
        self.mark = mark
        super().__init__("nodes.py", log, env={**os.environ, MARK: mark}, start_new_session=True)
        self.address = self.first

    def replace(self) -> bool:
        """Lose the worker node and have another one."""
        self.tell("replace")
        return self.said(300) == "replaced"

    def close(self) -> None:
        """End all of it."""
        super().close()
        gone(self.mark, 0, last=True)
