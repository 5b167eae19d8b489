"""Where cases are run: what starts their commands, what they are compared with, the servers that they share."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
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
        # Ray's sockets need short paths
        self.ray = tempfile.mkdtemp(prefix="flray-chaos-", dir="/tmp")
        self._warm: processes.Warm | None = None
        self._cold, self._used = cold, 0
        self._second: Any = None
        self._bucket: services.Service | None = None
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

    def bucket(self) -> services.Service:
        """Return the S3-compatible server."""
        if self._bucket is None:
            self._bucket = services.bucket_server(self.folder / "bucket", BUCKET).start()
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
        for warm in (self._warm, self._second):
            if warm is not None:
                warm.close()
        if self._bucket is not None:
            self._bucket.kill()
        self.leave_nodes()
        shutil.rmtree(self.ray, ignore_errors=True)


def _version() -> str:
    """Return what tells one state of the code from another."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted((root / "flray").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
