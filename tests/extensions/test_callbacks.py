"""Callbacks: every round once and in order, whatever dies, also for TensorBoard and W&B; and early stopping.

At last all extensions in one sweep whose driver is killed: the bits of one that was not, and every round told once.
"""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flray import api, register_algorithm, register_callback
from flray.algorithms.base import Algorithm, Client
from flray.callbacks import RunInfo
from flray.config.experiment import Stop
from flray.federation.state import EarlyStop
from flray.runs import runner
from flray.tuning.trial_store import trial_folders
from tests.algorithms import helpers as tiny
from tests.helpers import INLINE, Said, Settings, StopAfter, inline, steady, written
from tests.messages import refused
from tests.tuning.conftest import ONE

PLUGIN = """
import os, signal
from pathlib import Path
from flray import api, register_callback

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


def killed(experiment: Settings, code: str, round_: int = 2, **sections: Any) -> None:
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


def test_one_that_raises_is_told_later_what_it_missed(tmp_cwd: Path, digits: Settings) -> None:
    content = inline(digits, callbacks=["raises-once"], rounds=4)
    refused(runner.run, content, progress=(progress := StopAfter(3)))
    (told,) = progress.find("raises-once")
    assert "the log is full" in told and "not called again" in told
    folder = tmp_cwd / "runs" / "digits" / "001"
    assert (folder / "seen.txt").read_text() == "1 "
    runner.resume(folder)
    assert (folder / "seen.txt").read_text() == "1 2 3 4 "


@register_callback("ends")
class Ends:
    def __init__(self, run: RunInfo) -> None:
        self.told = run.folder / "ends.txt"

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        pass

    def end(self, status: str) -> None:
        self.told.write_text(status)


@register_algorithm("raises-in-round-two")
class RaisesInRoundTwo(Algorithm):
    def begin(self, client: Client) -> None:
        if client.round == 1:
            raise ValueError("no second round")


def test_a_callback_is_told_of_failures_and_ctrl_c(tmp_cwd: Path, digits: Settings) -> None:
    failing = inline(digits, callbacks=["ends"], algorithm="raises-in-round-two")
    refused(runner.run, failing)
    refused(runner.run, inline(digits, callbacks=["ends"], rounds=4), progress=StopAfter(2))
    folders = sorted((tmp_cwd / "runs" / "digits").iterdir())
    assert [(folder / "ends.txt").read_text() for folder in folders] == ["failed", "interrupted"]


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


def test_a_key_for_wandb(tmp_cwd: Path, digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_cwd / "netrc"))
    refused(runner.run, inline(digits, callbacks=["wandb"]))


@pytest.mark.slow
def test_tensorboard_and_wandb_read_all_rounds(tmp_cwd: Path, digits: Settings) -> None:
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


TAKES_RUN: dict[str, Any] = {"__init__": lambda self, run: None}
ROUND: dict[str, Any] = {"round": lambda self, number, metrics: None}
WRONG: dict[str, dict[str, Any]] = {
    "no round": TAKES_RUN,
    "a round of nothing": {**TAKES_RUN, "round": lambda self: None},
    "made of nothing": ROUND,
    "an end of nothing": {**TAKES_RUN, **ROUND, "end": lambda self: None},
}


def test_what_cannot_be_called_is_refused_at_first(tmp_cwd: Path, digits: Settings) -> None:
    for item in (*(type("Made", (), methods) for methods in WRONG.values()), lambda run: None):
        register_callback("wrong")(item)
        refused(runner.run, inline(digits, callbacks=["wrong"]))
    refused(runner.run, inline(digits, callbacks=["raises-once", "raises-once"]))
    for stop in ({"metric": "acuracy", "patience": 2}, {}):  # what cannot be decided by
        refused(tiny.spec_of, "fedavg", stop=stop)
    common = {"name": "tensorboard", "folder": "all/runs"}
    refused(
        runner.run, inline(digits, callbacks=[common], stop={"metric": "acuracy", "patience": 2})
    )
    assert list(tmp_cwd.iterdir()) == []


STOP = {"metric": "train/loss", "patience": 2, "min_delta": 0.5}


def decided(metric: str, values: list[float], **settings: Any) -> int:
    """Return after how many values it ends; 0: never."""
    stop = EarlyStop(Stop.model_validate({"metric": metric, **settings}), metric)
    for number, value in enumerate(values, start=1):
        stop.add({metric: value, "other": 1.0})
        stop.add({"other": 1.0})  # a round without an evaluation
        again = EarlyStop(Stop.model_validate({"metric": metric, **settings}), metric)
        again.restore(stop.state())
        stop = again
        if stop.reason:
            return number
    return 0


ACCURACY, LOSS = "global/common/accuracy", "train/loss"


@pytest.mark.parametrize(
    ("metric", "values", "settings", "ends"),
    [
        (ACCURACY, [0.1, 0.2, 0.2, 0.1, 0.3], {"patience": 2}, 4),
        (ACCURACY, [0.1, 0.2, 0.2, 0.3, 0.1], {"patience": 2}, 0),
        (ACCURACY, [0.1, 0.2, 0.24, 0.26, 0.3], {"patience": 2, "min_delta": 0.05}, 0),
        (ACCURACY, [0.1, 0.2, 0.24, 0.25, 0.3], {"patience": 2, "min_delta": 0.05}, 4),
        (ACCURACY, [0.1, 0.5, 0.9], {"target": 0.5}, 2),
        (LOSS, [3.0, 2.0, 1.0], {"target": 1.5}, 3),
        (LOSS, [3.0, 2.0, 2.5, 2.1], {"patience": 2}, 4),
    ],
)
def test_when_it_ends(metric: str, values: list[float], settings: Any, ends: int) -> None:
    assert decided(metric, values, **settings) == ends


def stopping(digits: Settings, **changes: Any) -> dict[str, Any]:
    return inline(digits, **{"rounds": 12, "stop": STOP, **changes})


@pytest.mark.slow
def test_an_interrupted_run_ends_at_the_same_round(tmp_cwd: Path, digits: Settings) -> None:
    whole = runner.run(stopping(digits))
    ended = len(whole.history)
    assert 3 <= ended < 12
    loss = whole.history["train/loss"].tolist()
    assert min(loss[:-2]) - min(loss[-2:]) <= 0.5
    assert runner.run(stopping(digits, stop=None, rounds=ended)).sha256 == whole.sha256
    for at in (2, ended):
        refused(runner.run, stopping(digits), progress=StopAfter(at))
        folder = sorted((tmp_cwd / "runs" / "digits").iterdir())[-1]
        resumed = runner.resume(folder)
        assert resumed.sha256 == whole.sha256 and len(resumed.history) == ended


@pytest.mark.usefixtures("tmp_cwd")
def test_a_round_that_a_training_metric_makes_the_last_is_evaluated(digits: Settings) -> None:
    stop = {"metric": "train/loss", "target": 100}
    stopped = runner.run(stopping(digits, stop=stop, evaluation={"every": 5}))
    short = runner.run(inline(digits, rounds=1))
    assert steady(stopped.history.iloc[0]) == steady(short.history.iloc[0])


@pytest.mark.usefixtures("tmp_cwd")
@pytest.mark.parametrize("metric", ["train/los", "global/local/accuracy/worts"])
def test_a_metric_that_is_never_measured_is_named_once(digits: Settings, metric: str) -> None:
    said = Said()
    stop = {"metric": metric, "patience": 1}
    run = runner.run(stopping(digits, rounds=4, stop=stop, evaluation={"every": 2}), progress=said)
    (line,) = said.find("experiment.stop.metric")
    assert len(run.history) == 4 and f"{metric!r}, which round 2 did not measure; did you" in line


@pytest.mark.slow
@pytest.mark.usefixtures("tmp_cwd", "ray_here")
def test_a_run_on_actors_ends_at_the_same_round(digits: Settings) -> None:
    """Of trials: below."""
    whole = runner.run(stopping(digits))
    on_ray = runner.run(stopping(digits, resources={"executor": "ray", "actors": 1}))
    assert on_ray.sha256 == whole.sha256 and len(on_ray.history) == len(whole.history)


MEASURE = "global/common/balanced-accuracy"
CALLBACKS = ["lines", "tensorboard", {"name": "wandb", "mode": "offline"}]


def experiment(digits: Settings, **changes: Any) -> Settings:
    sampler = {"name": "power-of-choice", "candidates": 3}
    settings = {"rounds": 6, "participation": {"clients": 2, "sampler": sampler}, "stop": STOP}
    return {**digits, **settings, "evaluation": {"metrics": ["balanced-accuracy"]}, **changes}


def wandb_steps(folder: Path) -> list[int]:
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    records = [record for file in files for record in wandb_records(file.read_bytes())]
    return [one.history.step.num for one in records if one.WhichOneof("record_type") == "history"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_killed_sweep_of_all(tmp_cwd: Path, digits: Settings, ray_here: dict[str, float]) -> None:
    pytest.importorskip("wandb")
    # killed once in the whole sweep, not once in each trial
    own = PLUGIN.replace('run.folder / "killed"', 'run.folder.parents[1] / "killed"')
    rates = {"local.lr": {"grid": [0.02, 0.1]}}
    sweep = {"seeds": [0], "metric": MEASURE, **ONE}
    killed(experiment(digits, callbacks=CALLBACKS, **INLINE), own, space=rates, sweep=sweep)
    folder = tmp_cwd / "runs" / "digits" / "001"
    before = sum(one.rounds_recorded() for one in trial_folders(folder))
    resumed = api.resume_sweep(folder)
    whole = [runner.run(inline(experiment(digits)), [f"local.lr={lr}"]) for lr in (0.02, 0.1)]
    assert set(resumed.results["status"]) == {"finished"}
    assert resumed.results["sha256"].tolist() == [one.sha256 for one in whole]
    assert before < sum(resumed.results["rounds"]) < 2 * 6, "early stopping ended a trial"
    for trial, alone in zip(trial_folders(folder), whole, strict=True):
        history, other = resumed.history(trial.number), alone.history
        rounds = history["round"].tolist()
        assert rounds == list(range(1, len(other) + 1))
        for name in (MEASURE, "train/loss", "cohort/asked"):
            assert history[name].tolist() == other[name].tolist(), name
        told = (trial.path / "lines.txt").read_text().splitlines()
        assert [int(line.split()[0]) for line in told[:-1]] == rounds and told[-1] == "finished"
        assert [step for step, _ in tensorboard_points(trial.path, MEASURE)] == rounds
        assert wandb_steps(trial.path) == rounds
