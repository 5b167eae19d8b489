"""The page of troubles: every text in its table is what flray prints when just this goes wrong."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import yaml

from flray.cli.main import invoke
from flray.federation import checkpoint
from flray.federation.ray_backend import handle, nodes
from flray.records import Journal
from tests.clusters import joined_cluster
from tests.helpers import INLINE, written

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "troubleshooting.md"
SEEN = re.findall(r"^\| `([^`]*)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)

BROKEN = """import flray
from flray.algorithms import Algorithm
{line}

@flray.register_algorithm("broken")
class Broken(Algorithm):
    def loss(self, client, batch):
        if client.id == 2:
            {what}
        return super().loss(client, batch)
"""
DATA = """import flray, numpy as np
from flray.data import DataSet, Domain

def made(x, y):
    return DataSet("own", (Domain("own", "real", x, y, x, y),), ("a", "b"), (0.5,) * 3, (0.2,) * 3)

@flray.register_dataset("last-axis")
def last_axis(root):
    return made(np.zeros((20, 32, 32, 3), np.uint8), np.arange(20) % 2)

@flray.register_dataset("from-one")
def from_one(root):
    return made(np.zeros((20, 3, 32, 32), np.uint8), np.arange(20) % 2 + 1)

@flray.register_dataset("from-file")
def from_file(root):
    return made(np.load("x.npy"), np.arange(20) % 2)
"""
NETWORK = """import flray
from torch import nn

@flray.register_model("short")
def short(shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes - 1))
"""
AT_THE_SERVER = """import flray
from flray.algorithms import Algorithm

@flray.register_algorithm("mine")
class Mine(Algorithm):
    def aggregate(self, server, stage, replies):
        {}["weight"]
"""
GPU = {"model": "One", "driver": "1", "cuda": "1", "cudnn": "1"}
OWN, TWO = Path("own.py"), "partition={name: iid, clients: 2}"
Scenario = Callable[[], int]


def run(*settings: str) -> Scenario:
    return lambda: invoke(["run", "demo.yaml", *settings])


def own(text: str, *settings: str, file: str = "own.py") -> Scenario:
    def trouble() -> int:
        Path(file).write_text(text)
        return run(*settings, f"plugins=[{file}]")()

    return trouble


def broken(what: str, line: str = "", *settings: str) -> Scenario:
    text = BROKEN.format(line=line, what=what)
    return own(text, "algorithm=broken", *settings, file="my_broken.py")


def resumed(change: Callable[[Path], Any], *settings: str) -> Scenario:
    """Run a run, make it an interrupted one, change something in its folder and resume it."""

    def trouble() -> int:
        Path("own.py").write_text(DATA)
        np.save("x.npy", np.zeros((20, 3, 32, 32), np.uint8))
        assert run("rounds=1", "name=half", *settings)() == 0
        folder = Path("runs/half/001")
        other("status", lambda _: "interrupted")(folder)
        kept = change(folder)
        code = invoke(["resume", "half"])
        del kept
        return code

    return trouble


def more_rounds(folder: Path) -> None:
    content = yaml.safe_load((folder / "config.yaml").read_text())
    content["experiment"]["rounds"] = 3
    (folder / "config.yaml").write_text(yaml.safe_dump(content))


def other_samples(folder: Path) -> None:
    np.save("x.npy", np.ones((20, 3, 32, 32), np.uint8))


def damage(folder: Path) -> None:
    (path,) = (folder / "checkpoint").glob("server-*")
    path.write_bytes(path.read_bytes()[:-1])


def key_twice() -> int:
    Path("twice.yaml").write_text("experiment:\n  rounds: 1\n  rounds: 2\n")
    return invoke(["run", "twice.yaml"])


def other(key: str, value: Any) -> Callable[[Path], Any]:
    """Return what says that the run began on another machine."""

    def change(folder: Path) -> None:
        run = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(run | {key: value(run[key])}))

    return change


def far_folder() -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(Path("a" * 100).absolute()))
        return run("resources.executor=ray")()


def full_disk() -> int:
    """Write to a file that says it has no space left, as Linux keeps one for tests."""

    def full(path: Path, data: bytes, **_: object) -> None:
        with Path("/dev/full").open("wb") as file:
            file.write(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write_atomically", full)
        return run()()


def no_room() -> int:
    """Run on a Ray whose only CPU another actor has, and wait for a second in all."""
    with joined_cluster({"num_cpus": 1}), pytest.MonkeyPatch.context() as patch:
        holder: Any = ray.remote(dict).options(num_cpus=1).remote()
        ray.get(holder.__ray_ready__.remote(), timeout=120)
        patch.setattr(nodes, "WAIT_SECONDS", 0.5)
        patch.setattr(handle, "PLACEMENT_TIMEOUT_S", 0.5)
        return run("resources.executor=ray")()


TROUBLES: dict[str, Scenario] = {
    "data set digits5-local is not in": run("data=digits5-local"),
    "cannot fetch": lambda: invoke(["data", "get", "usps"]),
    "experiment.local.lrr": run("local.lrr=0.1"),
    "found fedrep": run("algorithm=fedrep", "data=fundus-synthetic", "model=unet"),
    "fedfomo needs": run("algorithm=fedfomo"),
    "fcclplus needs": run("algorithm=fcclplus", "data=random"),
    "no split of": run("partition={name: dirichlet, clients: 500, alpha: 0.01}"),
    "found one training sample": run("data.samples=1"),
    "resources.actors": run("resources={executor: ray, actors: 999}"),
    "resources.gpus_per_actor": run("resources={executor: ray, gpus_per_actor: 99}"),
    "is no finite number": run("local.lr=1e30", "rounds=1"),
    "ValueError": broken("raise ValueError('a mistake')"),
    "at the server": own(AT_THE_SERVER, "algorithm=mine", file="mine.py"),
    "that is a sweep": run("sweep.seeds=[0, 1]"),
    "a second time": key_twice,
    "found '1'": run("rounds='1'"),
    "is away": run("rounds=1", "tracking.uri=http://127.0.0.1:9"),
    "experiment.plugins": broken("pass", "import nosuchmodule"),
    "samples are [32, 32, 3]": own(DATA, "data=last-axis"),
    "labels from 1": own(DATA, "data=from-one"),
    "the data differ": resumed(other_samples, "data=from-file", TWO, f"plugins=[{OWN}]"),
    "began with other code": resumed(lambda _: OWN.write_text(DATA + "\n"), f"plugins=[{OWN}]"),
    "experiment.rounds is 3": resumed(more_rounds),
    "mkl compute other last bits": resumed(
        other("cpu", lambda cpu: cpu | {"kinds": cpu["kinds"] | {"mkl": "0"}})
    ),
    "with other last bits": resumed(other("gpus", lambda _: [GPU])),
    "experiment.resources.bits": run("resources={executor: inline, bits: portable}"),
    "one logit for each": own(NETWORK, "model=short"),
    "--address auto": run("--address", "auto"),
    "is damaged": resumed(damage),
    "a process that still runs": resumed(lambda folder: Journal(folder / "journal.jsonl")),
    "no space left": full_disk,
    "no Ray at": run("resources.executor=ray", "--address", "127.0.0.1:1"),
    "path length": far_folder,
}
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
SLOW = {
    "its actor died 3 times": broken(KILL, "", "resources.executor=ray"),
    "waits for room": no_room,
}
PASSING = {"is no finite number", "is away"}
"""Troubles that a run survives."""


@pytest.fixture
def demo(tmp_cwd: Path, digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    data = {"name": "digits-sklearn", "samples": 60}
    written({**digits, **INLINE, "name": "demo", "rounds": 2, "data": data}, "demo.yaml")
    monkeypatch.setenv("FLRAY_DATA", str(tmp_cwd / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_cwd


def test_every_trouble_of_the_table_is_made_here() -> None:
    parts = [*TROUBLES, *SLOW]
    assert len(SEEN) == len(parts)
    for text in SEEN:
        assert len([part for part in parts if part in text]) == 1, text


PARTS = [*TROUBLES, *(pytest.param(part, marks=pytest.mark.slow) for part in SLOW)]


@pytest.mark.parametrize("part", PARTS)
def test_a_trouble_is_printed_as_the_table_has_it(
    demo: Path, capfd: pytest.CaptureFixture[str], part: str
) -> None:
    code = (TROUBLES | SLOW)[part]()
    captured = capfd.readouterr()
    (text,) = [text for text in SEEN if part in text]
    pattern = ".*".join(re.escape(piece) for piece in text.split("..."))
    shown = " ".join((captured.out + captured.err).split())
    assert re.search(pattern, shown), shown
    assert code == 0 if part in PASSING else code in (1, 2)
    assert "Traceback" not in captured.err or part in ("ValueError", "at the server")
