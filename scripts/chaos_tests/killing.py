"""One case: a federation, killed at random moments and resumed until it ends, and compared with one nobody killed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
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

BUCKET = "flray-chaos"
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


@dataclass
class Kill:
    """One kill: `victim` dies `seconds` after `rounds` rounds were recorded since the session began.

    Attributes
    ----------
    operation : int or None
        Rather at the driver's so many-th operation on a file.
    hit : str
        What happened: empty if it was never reached.
    """

    victim: str
    rounds: int
    seconds: float
    operation: int | None = None
    hit: str = ""

    def __str__(self) -> str:
        when = (
            f"operation {self.operation}"
            if self.operation
            else f"{self.rounds} rounds + {self.seconds:.3f} s"
        )
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


class Place:
    """Where cases are run: warm processes, references, servers that several cases share."""

    def __init__(self, folder: Path, cold: bool) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.token = hashlib.sha256(os.urandom(16)).hexdigest()
        os.environ["RAY_AUTH_TOKEN"] = self.token
        self._warm: processes.Warm | None = None
        self._cold, self._used = cold, 0
        self._second: Any = None
        self._bucket: processes.Service | None = None
        self._nodes: processes.Nodes | None = None
        self._version = _version()

    def drivers(self) -> Any:
        """Return what starts commands; another interpreter, so another order of sets, now and then."""
        if self._cold:
            return processes.Cold()
        if self._warm is not None and self._used >= 40:
            self._warm.close()
            self._warm = None
        if self._warm is None:
            self._warm, self._used = processes.Warm(self.folder / "warm.log"), 0
        self._used += 1
        return self._warm

    def second(self) -> Any:
        """Return what starts commands beside those of `drivers`."""
        if self._second is None:
            self._second = processes.Warm(self.folder / "second.log")
        return self._second

    def bucket(self) -> processes.Service:
        """Return the S3-compatible server."""
        if self._bucket is None:
            self._bucket = processes.bucket_server(self.folder / "bucket", BUCKET)
        return self._bucket

    def nodes(self) -> processes.Nodes:
        """Return the cluster of two nodes."""
        if self._nodes is None:
            self._nodes = processes.Nodes(self.folder / "nodes", f"nodes-{os.getpid()}")
        return self._nodes

    def leave_nodes(self) -> None:
        """End the cluster; the next case that needs one gets a new one."""
        if self._nodes is not None:
            self._nodes.close()
            self._nodes = None

    def reference(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of the undisturbed run or sweep, which a new interpreter runs once."""
        key = hashlib.sha256(
            json.dumps([content, self._version], sort_keys=True).encode()
        ).hexdigest()[:20]
        path = self.folder / "references" / f"{key}.json"
        if not path.exists():
            work = self.folder / "references" / key
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            file = {
                **content,
                "experiment": {**content["experiment"], "name": "case", "tracking": {"uri": None}},
            }
            (work / "x.yaml").write_text(yaml.safe_dump(file))
            sweep = "sweep" in content
            driver = processes.Cold().start(
                ["tune" if sweep else "run", "x.yaml"],
                work,
                {processes.MARK: f"reference-{key}"},
                work / "output.txt",
            )
            code = driver.wait(900)
            assert code == 0, (
                f"the undisturbed run ended with {code}: "
                f"{work / 'output.txt'}\n{driver.text[-2000:]}"
            )
            found = (facts.sweep_facts if sweep else facts.run_facts)(
                work / "runs" / "case" / "001"
            )
            path.write_text(json.dumps(found))
            shutil.rmtree(work)
        expected: dict[str, Any] = json.loads(path.read_text())
        return expected

    def database(self) -> Path:
        """Return an empty MLflow database, which cases copy: making one takes seconds."""
        path = self.folder / "empty.db"
        if not path.exists():
            code = "import sys; from flray.tracking.client import connect; connect(sys.argv[1])"
            subprocess.run(
                [sys.executable, "-c", code, f"sqlite:///{path}"], check=True, timeout=300
            )
        return path

    def close(self) -> None:
        """End all that was started."""
        for warm in (self._warm, self._second):
            if warm is not None:
                warm.close()
        if self._bucket is not None:
            self._bucket.kill()
        self.leave_nodes()


def _version() -> str:
    """Return what tells one state of the code from another."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted((root / "flray").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Case:
    """A federation with its kills.

    Parameters
    ----------
    place : Place
        Where.
    federation : Federation
        What.
    seed, index : int
        Decide all moments and victims.
    kills : int or None
        How many; None: by the seed.
    """

    def __init__(
        self, place: Place, federation: Federation, seed: int, index: int, kills: int | None = None
    ) -> None:
        self._place, self._federation, self._seed, self._index = place, federation, seed, index
        self._random = random.Random(f"{seed}/{index}")
        few = 3 if federation.ray else 5
        self._wanted = kills or self._random.randint(2, few)
        self.folder = place.folder / "cases" / f"{seed}-{index}"
        self._said = place.folder / "cases" / f"{seed}-{index}.txt"
        self._mark = f"case-{seed}-{index}-{os.getpid()}"
        self._outcome = Outcome(federation.name, federation.group, seed, index)
        self._tracking: processes.Service | None = None
        self._threads: list[threading.Thread] = []
        experiment = federation.content["experiment"]
        self._rounds = int(experiment["rounds"])
        self._pace = 0.15

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
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def _extra(self) -> dict[str, Any]:
        """Return what a warm process does beside obeying."""
        return {}

    def _meanwhile(self, driver: processes.Driver) -> None:
        """Do something beside a driver that has begun."""

    def _prepare(self, wanted: dict[str, Any]) -> None:
        content = self._federation.content
        self._all = (
            sum(len(t["rounds"]) for t in wanted["trials"].values())
            if self._federation.sweep
            else self._rounds
        )
        experiment = {**content["experiment"], "name": "case"}
        self._environment = {
            processes.MARK: self._mark,
            "RAY_AUTH_TOKEN": self._place.token,
            "RAY_TMPDIR": f"/tmp/flray-chaos-{os.getpid()}",
        }
        Path(self._environment["RAY_TMPDIR"]).mkdir(exist_ok=True)
        if self._federation.served:
            self._tracking = processes.tracking_server(self.folder / "tracking")
            experiment["tracking"] = {"uri": self._tracking.uri}
            self._environment["MLFLOW_TRACKING_URI"] = self._tracking.uri  # of a run from a bucket
        elif self._random.random() < 0.9:
            shutil.copy(self._place.database(), self.folder / "mlflow.db")
        self._output = "runs"
        if self._federation.place == "bucket":
            self._output = experiment["output"] = f"s3://{BUCKET}/{self._mark}"
            self._environment |= {
                "AWS_ENDPOINT_URL": self._place.bucket().uri,
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
        found = [
            p
            for p in self.folder.glob(base)
            if (p / "run.json").exists() or (p / "sweep.json").exists()
        ]
        return max(found, default=None)

    def _arguments(self) -> list[str]:
        file = "sweep.json" if self._federation.sweep else "run.json"
        there = self._run() is not None or (
            self._federation.place == "bucket" and file in self._in_bucket()
        )
        address = (
            ["--address", self._place.nodes().address] if self._federation.place == "nodes" else []
        )
        if there:
            return ["resume", "case", "--output", self._output, *address]
        return ["tune" if self._federation.sweep else "run", "x.yaml", *address]

    def _in_bucket(self) -> set[str]:
        return {name.rpartition("/")[2] for name in self._bucket_names()}

    def _bucket_names(self) -> list[str]:
        from pyarrow.fs import FileSelector, S3FileSystem

        system = S3FileSystem(
            endpoint_override=self._place.bucket().uri,
            access_key="one",
            secret_key="two",
            region="us-east-1",
        )
        return [
            info.path
            for info in system.get_file_info(
                FileSelector(f"{BUCKET}/{self._mark}", allow_not_found=True, recursive=True)
            )
        ]

    def _draw(self, number: int) -> Kill:
        """Return the so many-th kill: at the start, between rounds, at the end, or at a file operation."""
        draw = random.Random(f"{self._seed}/{self._index}/{number}")
        victims = self._federation.victims
        victim = draw.choices(list(victims), list(victims.values()))[0]
        start = 12.0 if self._federation.sweep else 8.0 if self._federation.ray else 1.5
        kind, pace = draw.random(), self._pace * (1 if not self._federation.ray else 2)
        if kind < 0.2 and (victim in ("driver", "head", "tracking") or victim in SIGNALS):
            return Kill(victim, 0, draw.uniform(0, start))
        if kind < 0.35 and victim in ("driver", "head"):
            return Kill(victim, 0, 0.0, int(10 ** draw.uniform(0, 2.5)))
        if kind > 0.85:
            return Kill(victim, self._all - self._done(), draw.uniform(0, 1.5))
        return Kill(victim, draw.randint(0, max(1, self._all // 3)), draw.uniform(0, pace * 1.5))

    def _grown(self, journals: dict[Path, tuple[int, int]]) -> int:
        """Return how many rounds are recorded; reads only what has grown."""
        run = self._run()
        if run is None:
            return 0
        for path in (
            run.glob("trials/*/journal.jsonl")
            if self._federation.sweep
            else [run / "journal.jsonl"]
        ):
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if journals.get(path, (-1, 0))[0] != size:
                    journals[path] = size, path.read_bytes().count(b'"type":"round"')
        return sum(count for _, count in journals.values())

    def _done(self) -> int:
        run = self._run()
        return 0 if run is None else facts.recorded(run)

    def _sessions(self) -> None:
        """Start and resume until it ends by itself."""
        failed = 0
        while failed < 4:
            driver_kills = sum(bool(k.hit) for k in self._outcome.kills)
            kill = (
                self._draw(len(self._outcome.kills))
                if driver_kills < self._wanted and len(self._outcome.kills) < 3 * self._wanted
                else None
            )
            before = len(self._outcome.kills)
            code, text = self._session(kill)
            self._outcome.sessions += 1
            if "Traceback (most recent call last)" in text:
                self._different(f"a traceback: {last_lines(text)}", keep=True)
            if code == 0:
                return
            fatal = [
                k
                for k in self._outcome.kills[before:]
                if k.hit and k.victim in ("driver", "head", *SIGNALS)
            ]
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
            self._different(
                f"it does not say how to go on after {kill}: {last_lines(text)}", keep=True
            )

    def _different(self, line: str, keep: bool = False) -> None:
        self._outcome.differences.append(line)
        if keep:
            with contextlib.suppress(OSError):
                shutil.copy(
                    self._said, self._said.with_suffix(f".{len(self._outcome.differences)}.txt")
                )

    def _session(self, kill: Kill | None) -> tuple[int | None, str]:
        """Run one driver; kill what is to be killed meanwhile, one after another."""
        arguments = self._arguments()
        self._said.unlink(missing_ok=True)
        driver = self._place.drivers().start(
            arguments,
            self.folder,
            self._environment,
            self._said,
            operation=kill.operation if kill else None,
            **self._extra(),
        )
        beside = threading.Thread(target=self._meanwhile, args=(driver,))
        beside.start()
        self._threads.append(beside)
        moved = time.monotonic()
        first = done = self._done()
        reached: float | None = None
        if kill is not None:
            self._outcome.kills.append(kill)
        journals: dict[Path, tuple[int, int]] = {}
        while (code := driver.wait(0.008)) is None:
            now = time.monotonic()
            count = self._grown(journals)
            if count != done:
                done, moved = count, now
            if kill is not None and not kill.hit and kill.operation is None:
                if reached is None and done - first >= kill.rounds:
                    reached = now
                if (
                    reached is not None
                    and now - reached >= kill.seconds
                    and self._strike(kill, driver)
                ):
                    moved = now
                    if kill.victim not in ("driver", "head") and kill.victim not in SIGNALS:
                        first, reached, kill = done, None, self._next()
            if now - moved > IDLE:
                self._different(
                    f"hung: no round for {IDLE:g} s after {done} of {self._all}; "
                    f"{driver.text[-300:]!r}",
                    keep=True,
                )
                driver.signal(signal.SIGKILL)
                moved = now
        if kill is not None and kill.operation is not None and code == -signal.SIGKILL:
            kill.hit = f"{self._done()} rounds"
        if kill is not None and kill.victim == "head" and kill.hit:
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

    def _next(self) -> Kill | None:
        """Return the kill that follows in the same session."""
        hits = sum(bool(k.hit) for k in self._outcome.kills)
        if hits >= self._wanted or len(self._outcome.kills) >= 3 * self._wanted:
            return None
        kill = self._draw(len(self._outcome.kills))
        kill.operation = None
        self._outcome.kills.append(kill)
        return kill

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
            service, pause = self._tracking, draw.uniform(0, 2)

            def start_later() -> None:
                time.sleep(pause)
                service.start()

            self._threads.append(threading.Thread(target=start_later))
            self._threads[-1].start()
        elif kill.victim == "node":
            if not self._place.nodes().replace():
                return False
        else:
            mark = self._place.nodes().mark if self._federation.place == "nodes" else self._mark
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
        lines = self._sync(run)
        if self._federation.place == "bucket":
            run = self._downloaded(run)
        found = (facts.sweep_facts if self._federation.sweep else facts.run_facts)(run)
        if self._federation.promise == "all":
            lines += facts.compare(found, wanted)
        else:
            lines += facts.promised(found, wanted, self._rounds)
        database = self.folder / ("tracking/mlflow.db" if self._federation.served else "mlflow.db")
        artifacts = self.folder / "tracking" / "artifacts" if self._federation.served else None
        return lines + facts.tracked(run, database, artifacts)

    def _downloaded(self, run: Path) -> Path:
        """Return a copy of what the bucket holds."""
        from pyarrow.fs import S3FileSystem

        system = S3FileSystem(
            endpoint_override=self._place.bucket().uri,
            access_key="one",
            secret_key="two",
            region="us-east-1",
        )
        copy = self.folder / "downloaded"
        root = f"{BUCKET}/{self._mark}/case/{run.name}"
        for name in self._bucket_names():
            info = system.get_file_info(name)
            if info.is_file and name.startswith(f"{root}/") and "/tune/" not in name:
                target = copy / name.removeprefix(f"{root}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                with system.open_input_stream(name) as source:
                    target.write_bytes(source.read())
        return copy

    def _sync(self, run: Path) -> list[str]:
        """Send what could not be sent while the server was away, as the user is told to."""
        waiting = False
        for path in [run, *run.glob("trials/*")]:
            cursor, journal = path / "tracking.json", path / "journal.jsonl"
            sent = json.loads(cursor.read_text())["offset"] if cursor.exists() else 0
            waiting |= journal.exists() and sent < journal.stat().st_size
        if not waiting:
            return []
        driver = self._place.drivers().start(
            ["sync", "case", "--output", self._output],
            self.folder,
            self._environment,
            self._said.with_suffix(".sync.txt"),
        )
        code = driver.wait(120)
        return [] if code == 0 else [f"flray sync ended with {code}: {last_lines(driver.text)}"]


def last_lines(text: str) -> str:
    """Return the end of what a command said."""
    lines = [line for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-500:]
