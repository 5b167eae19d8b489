"""What else may happen to a run: a full disk, a clock that is set, another command on the same run."""

import random
import shutil
import subprocess
import time
from typing import Any

import processes
from killing import TRACEBACK, Case, Kill, Outcome, last_lines

ROOM = 64 * 2**20
"""Bytes of a disk with room for everything."""


class Disk(Case):
    """Everything lies on a small file system of its own, which is made larger after each failure."""

    def run(self) -> Outcome:
        """Mount, run, unmount."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "flray-chaos", str(self.folder)]
        subprocess.run(command, check=True)
        try:
            outcome = super().run()
            if outcome.differences:
                kept = self.folder.with_name(f"{self.folder.name}-kept")
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(self.folder, kept)
            return outcome
        finally:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def _sessions(self) -> None:
        draw = random.Random(f"{self._seed}/{self._index}/disk")
        for _ in range(self._wanted):
            size = self._used() + int(10 ** draw.uniform(3.6, 6.2))
            self._resize(size)
            code, text = self._session(None)
            self._outcome.sessions += 1
            hit = f"{self._done()} rounds, exit code {code}"
            self._outcome.kills.append(Kill("disk", 0, 0.0, size, hit))
            said = code == 0 or (code == 1 and "no space left on the disk" in text)
            if not said or TRACEBACK in text:
                where = f"exit code {code} on a disk of {size}"
                self._different(f"{where}: {last_lines(text)}", keep=True)
            if code == 0:
                break
        self._resize(ROOM)
        code, text = self._session(None)
        self._outcome.sessions += 1
        if code != 0:
            self._different(f"exit code {code} with room again: {last_lines(text)}", keep=True)

    def _used(self) -> int:
        return shutil.disk_usage(self.folder).used

    def _resize(self, size: int) -> None:
        pages = -(-size // 4096)
        command = ["mount", "-o", f"remount,size={pages * 4096}", str(self.folder)]
        subprocess.run(command, check=True)


class Clock(Case):
    """The driver's clock is set before each session, and once more in the middle of it."""

    def _extra(self) -> dict[str, Any]:
        draw = random.Random(f"{self._seed}/{self._index}/{self._outcome.sessions}/clock")
        first = draw.choice([-1, 1]) * 10 ** draw.uniform(0, 6)
        seconds = draw.uniform(0.2, 4)
        return {"clock": [first, seconds, draw.choice([-1, 1]) * 10 ** draw.uniform(0, 6)]}


class Two(Case):
    """While the run goes on other commands are given on it; after each kill two want to resume it at once."""

    def _meanwhile(self, driver: processes.Driver) -> None:
        draw = random.Random(f"{self._seed}/{self._index}/{self._outcome.sessions}/two")
        if self._run() is None or self._outcome.sessions >= 4:
            return
        time.sleep(draw.uniform(0, 1))
        command = draw.choice(["resume", "resume", "sync", "report"])
        arguments = [command, "case", "--output", self._output]
        said = self._said.with_suffix(f".{self._outcome.sessions}.{command}.txt")
        said.unlink(missing_ok=True)
        other = self._place.second.start(arguments, self.folder, self._environment, said)
        code = other.wait(200)
        text = other.text
        lines = [line for line in text.splitlines() if line.strip()]
        going = "is being written by a process that still runs" in text
        if TRACEBACK in text or code not in (0, 2):
            self._different(f"{command} meanwhile: exit code {code}: {last_lines(text)}")
        elif code == 2 and len(lines) != 1:
            self._different(f"{command} meanwhile: {len(lines)} lines: {last_lines(text)}")
        elif command == "resume" and code == 2 and not going:
            self._different(f"{command} meanwhile: {last_lines(text)}")
        else:
            said.unlink(missing_ok=True)
        self._outcome.kills.append(Kill(command, 0, 0.0, None, f"exit code {code}"))


MODES: dict[str, type[Case]] = {"disk": Disk, "clock": Clock, "two": Two}
