"""Callbacks: every round once and in order, whatever dies; files that TensorBoard and W&B read themselves."""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flray import register_callback
from flray.callbacks import RunInfo
from flray.interrupts import InterruptedRunError
from flray.runs import runner
from tests.helpers import StopAfter, inline, written
from tests.messages import refused

PLUGIN = """
import os, signal
from pathlib import Path
from flray import register_callback


@register_callback("lines")
class Lines:
    def __init__(self, run, *, file="lines.txt"):
        self.file = run.folder / file

    def round(self, number, metrics):
        with self.file.open("a") as file:
            file.write(f"{number} {metrics['train/loss']!r}\\n")

    def end(self, status):
        with self.file.open("a") as file:
            file.write(f"{status}\\n")


@register_callback("kill")
class Kill:
    def __init__(self, run, *, round=2):
        self.at, self.mark = round, run.folder / "killed"

    def round(self, number, metrics):
        if number == self.at and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


@register_callback("raises-once")
class RaisesOnce:
    def __init__(self, run: RunInfo) -> None:
        self.mark, self.seen = run.folder / "raised", run.folder / "seen.txt"

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        if number == 2 and not self.mark.exists():
            self.mark.touch()
            raise ValueError("the log is full")
        with self.seen.open("a") as file:
            file.write(f"{number} ")


def killed(experiment: dict[str, Any], code: str, round_: int = 2, **sections: Any) -> None:
    """Run an experiment, or a sweep of it, with a plug-in's code in a process that is killed after a round."""
    Path("own.py").write_text(code)
    callbacks = [*experiment.get("callbacks", ()), {"name": "kill", "round": round_}]
    added = {"plugins": ["own.py"], "callbacks": callbacks, "checkpoint": {"min_seconds": 0}}
    file = written({**experiment, **added}, **sections)
    command = [sys.executable, "-m", "flray", "tune" if sections else "run", file]
    # with a service of its own: one of this process would outlive it
    env = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    ended = subprocess.run(command, capture_output=True, timeout=240, check=False, env=env)
    assert ended.returncode == -9, ended.stderr[-2000:]


def assert_told(folder: Path, history: Any) -> None:
    """Every round once, in order, with its value, and then the end."""
    *lines, end = (folder / "lines.txt").read_text().splitlines()
    told = [(int(n), float(v)) for n, v in map(str.split, lines)]
    assert end == "finished"
    assert told == list(zip(history["round"], history["train/loss"], strict=True))


def test_one_that_raises_is_reported_once_and_gets_what_it_missed_at_a_resume(
    tmp_cwd: Path, digits: dict[str, Any]
) -> None:
    progress = StopAfter(3)
    with pytest.raises(InterruptedRunError):
        runner.run(inline(digits, callbacks=["raises-once"], rounds=4), progress=progress)
    (told,) = progress.find("raises-once")
    assert "the log is full" in told and "not called again" in told
    folder = tmp_cwd / "runs" / "digits" / "001"
    assert (folder / "seen.txt").read_text() == "1 "
    runner.resume(folder)
    assert (folder / "seen.txt").read_text() == "1 2 3 4 "


def wandb_records(data: bytes) -> Iterator[Any]:
    """Yield the records of an offline run's file, a LevelDB log of W&B's own messages."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    place, parts = 7, b""  # behind W&B's own header
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record = messages.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def tensorboard_points(folder: Path, name: str) -> list[tuple[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(name)]


def test_weights_and_biases_without_a_key_is_one_line(
    tmp_cwd: Path, digits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_cwd / "netrc"))
    refused(runner.run, inline(digits, callbacks=["wandb"]))


def test_tensorboard_and_weights_and_biases_read_every_round_and_the_settings(
    tmp_cwd: Path, digits: dict[str, Any]
) -> None:
    pytest.importorskip("wandb")
    callbacks = ["tensorboard", {"name": "wandb", "mode": "offline"}]
    result = runner.run(inline(digits, callbacks=callbacks))
    (file,) = result.folder.glob("wandb/offline-run-*/*.wandb")
    steps, settings, code = {}, {}, None
    for record in wandb_records(file.read_bytes()):
        if record.WhichOneof("record_type") == "history":
            row = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
            steps[record.history.step.num] = float(row["global/common/accuracy"])
        elif record.WhichOneof("record_type") == "run":
            settings |= {i.key: i.value_json for i in record.run.config.update}
        elif record.WhichOneof("record_type") == "exit":
            code = record.exit.exit_code
    values = result.history["global/common/accuracy"]
    assert steps == dict(zip(result.history["round"], values, strict=True))
    assert settings["local.lr"] == '"0.05"' and code == 0
    numbers, told = zip(*tensorboard_points(result.folder, "global/common/accuracy"), strict=True)
    assert numbers == tuple(steps) and told == pytest.approx(tuple(steps.values()), rel=1e-6)


def made(**methods: Any) -> type:
    return type("Made", (), methods)


TAKES_RUN: dict[str, Any] = {"__init__": lambda self, run: None}
ROUND: dict[str, Any] = {"round": lambda self, number, metrics: None}
WRONG = {
    "no round": made(**TAKES_RUN),
    "a round of nothing": made(**TAKES_RUN, round=lambda self: None),
    "made of nothing": made(**ROUND),
    "an end of nothing": made(**TAKES_RUN, **ROUND, end=lambda self: None),
    "a function": lambda run: None,
}


@pytest.mark.parametrize("item", WRONG.values(), ids=WRONG)
def test_what_cannot_be_called_is_refused_before_anything_is_made(
    item: Any, tmp_cwd: Path, digits: dict[str, Any]
) -> None:
    register_callback("wrong")(item)
    refused(runner.run, inline(digits, callbacks=["wrong"]))
    refused(runner.run, inline(digits, callbacks=["raises-once", "raises-once"]))
    assert not Path("runs").exists()
