"""Where cases are run: what starts their commands, what they are compared with, the servers that they share."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import facts
import processes
import yaml

from tests import services

BUCKET = "flray-chaos"


class Place:
    """Where cases are run: warm processes, references, servers that several cases share."""

    def __init__(self, folder: Path, cold: bool) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.token = hashlib.sha256(os.urandom(16)).hexdigest()
        os.environ["RAY_AUTH_TOKEN"] = self.token
        self._started = ExitStack()
        # Ray's sockets need short paths
        self.ray = tempfile.mkdtemp(prefix="flray-chaos-", dir="/tmp")
        self._started.callback(shutil.rmtree, self.ray, ignore_errors=True)
        self._warm: processes.Warm | None = None
        self._cold, self._used = cold, 0
        self._version = _version()

    def drivers(self) -> processes.Warm | processes.Cold:
        """Return what starts commands; another interpreter, so another order of sets, now and then."""
        if self._cold:
            return processes.Cold()
        if self._warm is None or self._used % 40 == 0:
            if self._warm is not None:
                self._warm.close()
            self._warm = processes.Warm(self.folder / "warm.log")
            self._started.callback(self._warm.close)
        self._used += 1
        return self._warm

    @cached_property
    def second(self) -> processes.Warm:
        """What starts commands beside those of `drivers`."""
        warm = processes.Warm(self.folder / "second.log")
        self._started.callback(warm.close)
        return warm

    @cached_property
    def bucket(self) -> services.Service:
        """The S3-compatible server."""
        server = services.bucket_server(self.folder / "bucket", BUCKET)
        self._started.callback(server.kill)
        return server.start()

    @cached_property
    def nodes(self) -> processes.Nodes:
        """The cluster of two nodes."""
        nodes = processes.Nodes(self.folder / "nodes" / "log.txt", f"nodes-{os.getpid()}")
        self._started.callback(nodes.close)
        return nodes

    def leave_nodes(self) -> None:
        """End the cluster; the next case that needs one gets a new one."""
        if "nodes" in vars(self):
            self.nodes.close()
            del self.nodes

    def reference(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of the undisturbed run or sweep, which a new interpreter runs once."""
        whole = json.dumps([content, self._version], sort_keys=True)
        key = hashlib.sha256(whole.encode()).hexdigest()[:20]
        path = self.folder / "references" / f"{key}.json"
        if not path.exists():
            work = self.folder / "references" / key
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            experiment = {**content["experiment"], "name": "case", "tracking": {"uri": None}}
            (work / "x.yaml").write_text(yaml.safe_dump({**content, "experiment": experiment}))
            arguments = ["tune" if "sweep" in content else "run", "x.yaml"]
            mark, said = {processes.MARK: f"reference-{key}"}, work / "output.txt"
            driver = processes.Cold().start(arguments, work, mark, said)
            code = driver.wait(900)
            assert code == 0, f"without kills it ended with {code}: {said}\n{driver.text[-2000:]}"
            path.write_text(json.dumps(facts.facts_of(work / "runs" / "case" / "001")))
            shutil.rmtree(work)
        expected: dict[str, Any] = json.loads(path.read_text())
        return expected

    def database(self) -> Path:
        """Return an empty MLflow database, which cases copy: making one takes seconds."""
        path = self.folder / "empty.db"
        if not path.exists():
            code = "import sys; from flray.tracking.client import connect; connect(sys.argv[1])"
            command = [sys.executable, "-c", code, f"sqlite:///{path}"]
            subprocess.run(command, check=True, timeout=300)
        return path

    def close(self) -> None:
        """End all that was started."""
        self._started.close()


def _version() -> str:
    """Return what tells one state of the code from another."""
    package = sorted((Path(__file__).parents[2] / "flray").rglob("*.py"))
    digest = hashlib.sha256(Path(facts.__file__).read_bytes())
    for path in package:
        digest.update(path.read_bytes())
    return digest.hexdigest()
