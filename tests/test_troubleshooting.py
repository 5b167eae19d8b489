"""The page of troubles: every text in its table is what flray prints when just this goes wrong, here or elsewhere."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from flray.cli.main import invoke
from flray.federation import checkpoint
from flray.federation.ray_backend import handle, nodes
from tests.clusters import joined_cluster
from tests.helpers import INLINE, Settings, written
from tests.messages import PAGE as MESSAGES

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

@flray.register_dataset("from-one")
def from_one(root):
    x, y = np.zeros((20, 3, 32, 32), np.uint8), np.arange(20) % 2 + 1
    return DataSet("own", (Domain("own", "real", x, y, x, y),), ("a", "b"), (0.5,) * 3, (0.2,) * 3)
"""
AT_THE_SERVER = """import flray
from flray.algorithms import Algorithm

@flray.register_algorithm("mine")
class Mine(Algorithm):
    def aggregate(self, server, stage, replies):
        {}["weight"]
"""
OWN = Path("own.py")
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


def resumed(change: Callable[[Path], object], *settings: str) -> Scenario:
    """Run a run, make it an interrupted one, change something in its folder and resume it."""

    def trouble() -> int:
        Path("own.py").write_text(DATA)
        assert run("rounds=1", "name=half", *settings)() == 0
        folder = Path("runs/half/001")
        other("status", lambda _: "interrupted")(folder)
        change(folder)
        return invoke(["resume", "half"])

    return trouble


def more_rounds(folder: Path) -> None:
    content = yaml.safe_load((folder / "config.yaml").read_text())
    content["experiment"]["rounds"] = 3
    (folder / "config.yaml").write_text(yaml.safe_dump(content))


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
    "found fedrep": run("algorithm=fedrep", "data=fundus-synthetic", "model=unet"),
    "is no finite number": run("local.lr=1e30", "rounds=1"),
    "ValueError": broken("raise ValueError('a mistake')"),
    "at the server": own(AT_THE_SERVER, "algorithm=mine", file="mine.py"),
    "that is a sweep": run("sweep.seeds=[0, 1]"),
    "a second time": key_twice,
    "is away": run("rounds=1", "tracking.uri=http://127.0.0.1:9"),
    "experiment.plugins": broken("pass", "import nosuchmodule"),
    "labels from 1": own(DATA, "data=from-one"),
    "began with other code": resumed(lambda _: OWN.write_text(DATA + "\n"), f"plugins=[{OWN}]"),
    "experiment.rounds is 3": resumed(more_rounds),
    "mkl compute other last bits": resumed(
        other("cpu", lambda cpu: cpu | {"kinds": cpu["kinds"] | {"mkl": "0"}})
    ),
    "experiment.resources.bits": run("resources={executor: inline, bits: portable}"),
    "no space left": full_disk,
    "no Ray at": run("resources.executor=ray", "--address", "127.0.0.1:1"),
    "path length": far_folder,
    "waits for room": no_room,
}
"""The troubles that no other test makes with this text."""
SLOW = {"waits for room"}
PASSING = {"is no finite number", "is away"}  # troubles that a run survives


@pytest.fixture
def demo(tmp_cwd: Path, digits: Settings) -> Path:
    data = {"name": "digits-sklearn", "samples": 60}
    written({**digits, **INLINE, "name": "demo", "rounds": 2, "data": data}, "demo.yaml")
    return tmp_cwd


def pattern(text: str) -> str:
    return ".*".join(re.escape(piece) for piece in text.split("..."))


def test_every_other_text_of_the_table_is_what_a_test_has_seen() -> None:
    """With whatever numbers, on the page that all tests of errors are compared with."""
    for part in TROUBLES:
        assert len([text for text in SEEN if part in text]) == 1, part
    others = [text for text in SEEN if not any(part in text for part in TROUBLES)]
    seen = MESSAGES.read_text(encoding="utf-8")
    assert others
    patterns = {text: re.sub(r"\d+", r"[\\d.]+", pattern(text)) for text in others}
    assert [text for text, found in patterns.items() if not re.search(found, seen)] == []


@pytest.mark.parametrize(
    "part", [pytest.param(one, marks=pytest.mark.slow if one in SLOW else ()) for one in TROUBLES]
)
def test_a_trouble_is_as_printed(demo: Path, capfd: pytest.CaptureFixture[str], part: str) -> None:
    code = TROUBLES[part]()
    captured = capfd.readouterr()
    (text,) = [text for text in SEEN if part in text]
    shown = " ".join((captured.out + captured.err).split())
    assert re.search(pattern(text), shown), shown
    assert code == 0 if part in PASSING else code in (1, 2)
    assert "Traceback" not in captured.err or part in ("ValueError", "at the server")
