"""One case: a federation, killed at random moments and resumed until it ends, and compared with one nobody killed."""

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import facts
import processes
import psutil
import yaml
from catalogue import Federation
from digests import leaves
from place import BUCKET, Place
from pyarrow.fs import FileSelector, S3FileSystem, copy_files

from tests import services

TRACEBACK = "Traceback (most recent call last)"
IDLE = 150.0
"""Seconds without a new round after which a session is taken for hung."""
TITLES = {
    "client": ("ray::ClientActor",),
    "server": ("ray::ServerActor",),
    "trial": ("ray::FederationTrial", "ray::ImplicitFunc", "ray::ClientActor"),
}
SIGNALS = {
    f"{number.name}{to}": int(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for to in ("", " to all")
}
"""Victims that are asked to end: the driver alone, or its whole process group."""
FATAL = ("driver", "head", *SIGNALS)
"""Victims whose session is over."""


@dataclass
class Kill:
    """One kill: `victim` dies `seconds` after `rounds` rounds were recorded since the session began."""

    victim: str
    rounds: int
    seconds: float
    operation: int | None = None  # rather at the driver's so many-th operation on a file
    hit: str = ""  # what happened; empty if it was never reached

    def __str__(self) -> str:
        when = f"{self.rounds} rounds + {self.seconds:.3f} s"
        if self.operation:
            when = f"operation {self.operation}"
        return f"{self.victim} at {when}: {self.hit or 'not reached'}"


@dataclass
class Outcome:
    """What came of a case."""

    federation: str
    group: str
    seed: int
    index: int
    kills: list[Kill] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0
    sessions: int = 0


class Case:
    """A federation with its kills; seed and index decide all moments and victims, and how many if `kills` does not."""

    def __init__(
        self, place: Place, federation: Federation, seed: int, index: int, kills: int | None = None
    ) -> None:
        self._place, self._federation, self._seed, self._index = place, federation, seed, index
        self._random = random.Random(f"{seed}/{index}")
        self._wanted = kills or self._random.randint(2, 3 if federation.ray else 5)
        self.folder = place.folder / "cases" / f"{seed}-{index}"
        self._said = place.folder / "cases" / f"{seed}-{index}.txt"
        self._mark = f"case-{seed}-{index}-{os.getpid()}"
        self._outcome = Outcome(federation.name, federation.group, seed, index)
        self._tracking: services.Service | None = None
        self._threads: list[threading.Thread] = []
        self._rounds = int(federation.content["experiment"]["rounds"])

    def run(self) -> Outcome:
        """Run it; the folder stays where something differs."""
        began = time.monotonic()
        wanted = self._place.reference(self._federation.reference or self._federation.content)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear()
        try:
            self._prepare(wanted)
            self._sessions()
            if not self._outcome.differences or self._run() is not None:
                self._outcome.differences += self._compare(wanted)
        finally:
            self._outcome.differences += [
                f"left running: {name}" for name in processes.gone(self._mark, 30, last=True)
            ]
            if self._tracking is not None:
                self._tracking.kill()
        self._outcome.seconds = time.monotonic() - began
        if not self._outcome.differences:
            self._clear()
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            for path in self._said.parent.glob(f"{self._said.stem}.*txt"):
                path.unlink(missing_ok=True)
        return self._outcome

    def _clear(self) -> None:
        """Empty the folder."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    def _extra(self) -> dict[str, Any]:
        """Return what a warm process does beside obeying."""
        return {}

    def _meanwhile(self, driver: processes.Driver) -> None:
        """Do something beside a driver that has begun."""

    def _prepare(self, wanted: dict[str, Any]) -> None:
        content = self._federation.content
        self._all = self._rounds
        if self._federation.sweep:
            self._all = sum(len(trial["rounds"]) for trial in wanted["trials"].values())
        experiment = {**content["experiment"], "name": "case"}
        self._environment = {
            processes.MARK: self._mark,
            "RAY_AUTH_TOKEN": self._place.token,
            "RAY_TMPDIR": self._place.ray,
        }
        if self._federation.served:
            self._tracking = services.tracking_server(self.folder / "tracking").start()
            experiment["tracking"] = {"uri": self._tracking.uri}
            self._environment["MLFLOW_TRACKING_URI"] = self._tracking.uri  # of a run from a bucket
        elif self._random.random() < 0.9:
            shutil.copy(self._place.database(), self.folder / "mlflow.db")
        self._output = "runs"
        if self._federation.place == "bucket":
            self._output = experiment["output"] = f"s3://{BUCKET}/{self._mark}"
            self._environment |= {
                "AWS_ENDPOINT_URL": self._place.bucket.uri,
                "AWS_ACCESS_KEY_ID": "one",
                "AWS_SECRET_ACCESS_KEY": "two",
                "AWS_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
                "FLRAY_WORK": str(self.folder / "work"),
            }
        (self.folder / "x.yaml").write_text(yaml.safe_dump({**content, "experiment": experiment}))

    def _run(self) -> Path | None:
        """Return the newest folder that can be resumed."""
        base = "work/*/case/*" if self._federation.place == "bucket" else "runs/case/*"
        files = ("run.json", "sweep.json")
        found = [p for p in self.folder.glob(base) if any((p / file).exists() for file in files)]
        return max(found, default=None)

    def _arguments(self) -> list[str]:
        sweep, place, address = self._federation.sweep, self._federation.place, []
        if place == "nodes":
            address = ["--address", self._place.nodes.address]
        there = self._run() is not None
        if not there and place == "bucket":
            whole = FileSelector(f"{BUCKET}/{self._mark}", allow_not_found=True, recursive=True)
            stored = {info.base_name for info in self._store().get_file_info(whole)}
            there = ("sweep.json" if sweep else "run.json") in stored
        if there:
            return ["resume", "case", "--output", self._output, *address]
        return ["tune" if sweep else "run", "x.yaml", *address]

    def _store(self) -> Any:
        """Return the file system of the bucket."""
        keys = {"access_key": "one", "secret_key": "two", "region": "us-east-1"}
        return S3FileSystem(endpoint_override=self._place.bucket.uri, **keys)

    def _draw(self, number: int) -> Kill:
        """Return the so many-th kill: at the start, between rounds, at the end, or at a file operation."""
        draw = random.Random(f"{self._seed}/{self._index}/{number}")
        victims = self._federation.victims
        victim = draw.choices(list(victims), list(victims.values()))[0]
        start = 12.0 if self._federation.sweep else 8.0 if self._federation.ray else 1.5
        kind, pace = draw.random(), 0.3 if self._federation.ray else 0.15
        if kind < 0.2 and (victim in ("driver", "head", "tracking") or victim in SIGNALS):
            return Kill(victim, 0, draw.uniform(0, start))
        if kind < 0.35 and victim in ("driver", "head"):
            return Kill(victim, 0, 0.0, int(10 ** draw.uniform(0, 2.5)))
        if kind > 0.85:
            return Kill(victim, self._all - self._done(), draw.uniform(0, 1.5))
        return Kill(victim, draw.randint(0, max(1, self._all // 3)), draw.uniform(0, pace * 1.5))

    def _done(self) -> int:
        """Return how many rounds are recorded."""
        run = self._run()
        return 0 if run is None else facts.recorded(run)

    def _sessions(self) -> None:
        """Start and resume until it ends by itself."""
        failed = 0
        while failed < 4:
            before = len(self._outcome.kills)
            code, text = self._session(self._next())
            self._outcome.sessions += 1
            if TRACEBACK in text:
                self._different(f"a traceback: {last_lines(text)}", keep=True)
            if code == 0:
                return
            fatal = [k for k in self._outcome.kills[before:] if k.hit and k.victim in FATAL]
            if fatal and fatal[-1].victim in SIGNALS:
                self._asked(fatal[-1], code, text)
            elif not fatal:
                failed += 1
                latest = "; ".join(map(str, self._outcome.kills[-2:]))
                self._different(f"exit code {code} after [{latest}]: {last_lines(text)}", keep=True)
        self._different("given up after four failures")

    def _asked(self, kill: Kill, code: int | None, text: str) -> None:
        """Check what a driver said and returned that was asked to end."""
        number = SIGNALS[kill.victim]
        began = self._run() is not None
        if code != 128 + number and not (code == -number and not began):
            self._different(f"exit code {code} after {kill}: {last_lines(text)}", keep=True)
        elif began and "stopped; go on with: flray resume" not in text:
            said = last_lines(text)
            self._different(f"it does not say how to go on after {kill}: {said}", keep=True)

    def _different(self, line: str, keep: bool = False) -> None:
        self._outcome.differences.append(line)
        if keep:
            copy = self._said.with_suffix(f".{len(self._outcome.differences)}.txt")
            with contextlib.suppress(OSError):
                shutil.copy(self._said, copy)

    def _session(self, kill: Kill | None) -> tuple[int | None, str]:
        """Run one driver; kill what is to be killed meanwhile, one after another."""
        extra = {"operation": kill.operation if kill else None, **self._extra()}
        self._said.unlink(missing_ok=True)
        driver = self._start(self._arguments(), self._said, **extra)
        beside = threading.Thread(target=self._meanwhile, args=(driver,))
        beside.start()
        self._threads.append(beside)
        moved = time.monotonic()
        first = done = self._done()
        reached: float | None = None
        while (code := driver.wait(0.008)) is None:
            now = time.monotonic()
            if (count := self._done()) != done:
                done, moved = count, now
            if kill is not None and not kill.hit and kill.operation is None:
                if reached is None and done - first >= kill.rounds:
                    reached = now
                due = reached is not None and now - reached >= kill.seconds
                if due and self._strike(kill, driver):
                    moved = now
                    if kill.victim not in FATAL and (kill := self._next()) is not None:
                        first, reached, kill.operation = done, None, None
            if now - moved > IDLE:
                where = f"after {done} of {self._all}; {driver.text[-300:]!r}"
                self._different(f"hung: no round for {IDLE:g} s {where}", keep=True)
                driver.signal(signal.SIGKILL)
                moved = now
        if kill is not None:
            if kill.operation is not None and code == -signal.SIGKILL:
                kill.hit = f"{self._done()} rounds"
            if kill.victim == "head" and kill.hit:
                processes.gone(self._mark, 0)
                shutil.rmtree(self.folder / "work", ignore_errors=True)
        if code:
            left = processes.gone(self._mark, 60)
            if left:
                self._different(f"left running 60 s after the driver ended: {left}")
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        return code, driver.text

    def _start(self, arguments: list[str], said: Path, **extra: Any) -> processes.Driver:
        """Begin a command of this case."""
        begin = self._place.drivers().start
        return begin(arguments, self.folder, self._environment, said, **extra)

    def _next(self) -> Kill | None:
        """Return the next kill, noted, if more are wanted; there is an end to those that reach nothing."""
        kills = self._outcome.kills
        if sum(bool(kill.hit) for kill in kills) >= self._wanted or len(kills) >= 3 * self._wanted:
            return None
        kills.append(self._draw(len(kills)))
        return kills[-1]

    def _strike(self, kill: Kill, driver: processes.Driver) -> bool:
        """Kill the victim; False if it is not there yet."""
        draw = random.Random(f"{self._seed}/{self._index}/{len(self._outcome.kills)}/victim")
        if kill.victim in ("driver", "head"):
            driver.signal(signal.SIGKILL)
        elif kill.victim in SIGNALS:
            driver.signal(SIGNALS[kill.victim], group="all" in kill.victim)
        elif kill.victim == "tracking":
            assert self._tracking is not None
            for thread in self._threads:  # one that is only starting has nothing to lose
                thread.join()
            self._tracking.kill()
            self._threads.append(threading.Timer(draw.uniform(0, 2), self._tracking.start))
            self._threads[-1].start()
        elif kill.victim == "node":
            if not self._place.nodes.replace():
                return False
        else:
            mark = self._place.nodes.mark if self._federation.place == "nodes" else self._mark
            found = processes.titled(mark, *TITLES[kill.victim])
            if not found:
                return False
            with contextlib.suppress(psutil.Error):
                draw.choice(found).kill()
        kill.hit = f"{self._done()} rounds"
        return True

    def _compare(self, wanted: dict[str, Any]) -> list[str]:
        """Return all differences."""
        for thread in self._threads:
            thread.join()
        run = self._run()
        if run is None:
            return ["no run is there"]
        lines = self._sync()
        if self._federation.place == "bucket":
            run = self._downloaded(run)
        found = facts.facts_of(run)
        if self._federation.promise == "all":
            lines += leaves(found, wanted)
        else:
            lines += facts.promised(found, wanted, self._rounds)
        database = self.folder / ("tracking/mlflow.db" if self._federation.served else "mlflow.db")
        artifacts = self.folder / "tracking" / "artifacts" if self._federation.served else None
        return lines + facts.tracked(run, database, artifacts)

    def _downloaded(self, run: Path) -> Path:
        """Return a copy of what the bucket holds."""
        copy, root = self.folder / "downloaded", f"{BUCKET}/{self._mark}/case/{run.name}"
        copy_files(root, str(copy), source_filesystem=self._store())
        return copy

    def _sync(self) -> list[str]:
        """Send what could not be sent while the server was away, as the user is told to."""
        arguments = ["sync", "case", "--output", self._output]
        driver = self._start(arguments, self._said.with_suffix(".sync.txt"))
        code = driver.wait(120)
        return [] if code == 0 else [f"flray sync ended with {code}: {last_lines(driver.text)}"]


def last_lines(text: str) -> str:
    """Return the end of what a command said."""
    lines = [line for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-500:]
