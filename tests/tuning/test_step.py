"""What one step of a trial runs and reports."""

import json
import pickle
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from flray import registry
from flray.algorithms.base import Algorithm, Server
from flray.config.loader import load
from flray.federation import checkpoint
from flray.federation.federation import Federation
from flray.metrics import summarise_history
from flray.records import directory
from flray.records.directory import checkpoints, remove_old_checkpoints
from flray.runs.progress import Progress
from flray.tuning import trial as trial_module
from flray.tuning.callback import TrialRecorder
from flray.tuning.checkpoint_store import CheckpointStore
from flray.tuning.trial import FederationTrial, SweepContext
from flray.tuning.trial_store import TrialFolder
from tests.helpers import Clock, Settings, cases
from tests.tuning.helpers import begun

FIRST = {"number": "0001", "values": {"seed": 0}, "bundles": [{"CPU": 1.0}]}
POINT = {**FIRST, "recorded": 0, "until": None, "metric": "auto"}


def trial_of(
    content: Any, recorded: int = 0, gpus: float = 0.0, others: bool = False, session: str = ""
) -> FederationTrial:
    """Return a trial whose checkpoints are in the current folder."""

    class Trial(FederationTrial):
        def setup(self, config: Settings, shared: SweepContext | None = None) -> None:
            store, name = CheckpointStore(str(Path.cwd())), session or uuid.uuid4().hex
            super().setup(config, SweepContext(load(content), {}, {}, store, name, others, 600.0))

    bundle = {"CPU": 1.0, "GPU": gpus}
    return Trial(config={"point": {**POINT, "recorded": recorded, "bundles": [bundle]}})


def rounds_reported(trial: FederationTrial) -> tuple[list[int], list[int]]:
    """Return the rounds that a step carries over from a checkpoint, and those it runs."""
    result = trial.step()
    told, done = json.loads(result["report"]), result["training_iteration"]
    first = done - len(told["rounds"]) + 1
    return [round_ for round_, _ in told["carried"]], list(range(first, done + 1))


@pytest.fixture(autouse=True)
def _hook_restored(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial puts its own hook in the place of Python's."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)


@cases(
    "part, settings, steps",
    """[experiment, {checkpoint: {min_seconds: 600}}, [3]], [sweep, {scheduler: asha}, [1, 1, 1]],
    [experiment, {checkpoint: {min_seconds: 0}}, [1, 1, 1]]""",
)
def test_short_rounds_share_a_step(content: Settings, part: str, settings: Any, steps: Any) -> None:
    """Unless others wait for a round: a scheduler compares rounds, a checkpoint is written between steps."""
    content[part] |= settings
    trial = trial_of(content)
    results = [trial.step() for _ in steps]
    reports = [json.loads(result["report"]) for result in results]
    assert [len(report["rounds"]) for report in reports] == steps
    assert [result["done"] for result in results] == [False] * (len(steps) - 1) + [True]
    rounds = [metrics for report in reports for metrics in report["rounds"]]
    assert [sorted(metrics)[0] for metrics in rounds] == ["bytes/down"] * 3
    assert results[-1]["score"] == rounds[-1]["score"] != rounds[0]["score"]
    assert results[-1]["training_iteration"] == 3 and len(reports[-1]["sha256"]) == 64


def test_slow_checkpoints_end_no_step(content: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    written, clock = checkpoint.save, Clock()

    def slowly(*what: Any, **how: Any) -> Path:
        clock.now += 60
        return written(*what, **how)

    monkeypatch.setattr(checkpoint, "save", slowly)
    monkeypatch.setattr("flray.runs.loop.time", clock)
    content["experiment"]["checkpoint"] = {"min_seconds": 0.001}
    trial = trial_of(content)
    assert rounds_reported(trial) == ([], [1]) and rounds_reported(trial) == ([], [2, 3])


def test_a_history_has_no_gap(content: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    content["experiment"] |= {"rounds": 6, "checkpoint": {"every": 2, "min_seconds": 0}}
    content["sweep"]["scheduler"] = "asha"  # a round for each step
    # So that a checkpoint carries the rounds since the last one.
    monkeypatch.setattr(trial_module, "CARRIED_SECONDS", 0.0)
    trial = trial_of(content, session="first")
    for _ in range(5):
        trial.step()
    # A lost driver's journal ends after round 4, 2, 1 or before; the newest checkpoint carries no round 2.
    for recorded, reported in ((4, ([], [])), (2, ([3, 4], [])), (1, ([2], []))):
        trial = trial_of(content, recorded)
        assert rounds_reported(trial) == reported  # the scheduler decides on these first
        assert rounds_reported(trial) == ([], [3 if recorded == 1 else 5])
    # A process that crashes: the driver has recorded what it reported.
    assert rounds_reported(trial_of(content, session="first")) == ([3, 4], [])
    monkeypatch.setattr(trial_module, "CARRIED_SECONDS", 600.0)
    assert rounds_reported(trial_of(content, recorded=0)) == ([1, 2], [])


def test_reports_of_the_first_step_alone_outlive_the_driver(content: Settings) -> None:
    """The driver is killed after the first checkpoint, and before it has recorded the step."""
    content["experiment"] |= {"checkpoint": {"min_seconds": 0}, "tracking": {"features": True}}

    def first(trial: FederationTrial) -> list[Any]:
        report = json.loads(trial.step()["report"])
        return [report.get(name) for name in (directory.PARTITION, directory.INITIAL_DIAGNOSTICS)]

    reported = first(trial_of(content))
    again = trial_of(content)
    assert again._federation.rounds_done == 1 and all(reported)
    assert first(again) == reported and first(again) == [None, None]


def test_a_stopped_trial_keeps_its_last_round(content: Settings) -> None:
    content["experiment"]["checkpoint"] = {"min_seconds": 600}
    content["sweep"]["scheduler"] = "asha"  # a round for each step
    trial = trial_of(content)
    trial.step()
    assert checkpoints(".", "0001") == []
    trial.reset_config({"point": {**POINT, "number": "0002", "values": {"seed": 1}}})
    trial.step()
    trial.cleanup()
    for number in ("0001", "0002"):
        assert [stored.round for stored in checkpoints(".", number)] == [1]


class Planted:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


def test_pickles_beside_a_checkpoint_are_never_read(content: Settings) -> None:
    """A bucket may hold them, under the names that Tune gives its own state."""
    content["experiment"]["checkpoint"] = {"min_seconds": 0}
    first = trial_of(content)
    first.step()
    (stored,) = checkpoints(".", "0001")
    planted = [Path("001/0001/error.pkl"), Path("001/tuner.pkl")]
    planted += [Path(stored.uri) / name for name in ("_dict_checkpoint.pkl", ".metadata.pkl")]
    for path in planted:
        path.write_bytes(pickle.dumps(Planted()))
    again = trial_of(content, recorded=1)
    assert again._federation.sha256() == first._federation.sha256()
    assert rounds_reported(again) == ([], [2]) and not Path("executed").exists()
    pickle.loads(planted[0].read_bytes())
    assert Path("executed").exists()  # the trap works


def test_other_gpus_if_allowed(content: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    content["experiment"]["checkpoint"] = {"min_seconds": 0}
    one = {"model": "One", "driver": "580.1", "cuda": "13.0", "cudnn": "92000"}
    monkeypatch.setattr("flray.devices.gpu_identity", lambda device: one)
    trial = trial_of(content, gpus=1.0)
    ended = [json.loads(trial.step()["report"]) for _ in range(3)][-1]
    assert ended["gpus"] == [one]
    other = {**one, "model": "Other"}
    monkeypatch.setattr("flray.devices.gpu_identity", lambda device: other)
    refused = json.loads(trial_of(content, 1, 1.0).step()["report"])
    assert "began on One" in refused["failure"] and "--other-hardware" in refused["failure"]
    allowed = trial_of(content, 1, 1.0, others=True)
    reports = [json.loads(allowed.step()["report"]) for _ in range(2)]
    assert "began on One" in reports[0]["lines"][0]
    assert (reports[-1]["sha256"], reports[-1]["gpus"]) == (ended["sha256"], [other])


@pytest.mark.parametrize("protocol", ["last", "best", "mean-last"])
def test_the_score_is_the_number_that_tables_report(
    content: Settings, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    class Forgets(Algorithm):
        def refine(self, server: Server) -> None:
            if server.round == 6:  # so that the last round is not the best, on every CPU
                ((key, weights),) = server.models.items()
                server.models = {key: {name: -entry for name, entry in weights.items()}}

    registry.algorithms.names()
    monkeypatch.setitem(registry.algorithms._entries, "forgets", Forgets)
    own = {"rounds": 8, "algorithm": "forgets", "checkpoint": {"min_seconds": 0}}
    evaluation = {"protocol": protocol, "validation": 0.3, "last": 3}
    content["experiment"] |= {**own, "evaluation": evaluation}
    content["experiment"]["local"] = {"lr": 0.1, "batch_size": 8, "momentum": 0.5}
    trial, rounds, name = trial_of(content), [], "global/common/accuracy"
    for round_ in range(1, 9):
        result = trial.step()
        rounds += json.loads(result["report"])["rounds"]
        numbered = [{"round": n, **metrics} for n, metrics in enumerate(rounds, start=1)]
        summary = summarise_history(pd.DataFrame(numbered), name, protocol, 3)
        assert result["score"] == summary.values[name] == rounds[-1]["score"]
        if round_ == 4:
            trial = trial_of(content, recorded=4)
    assert any(metrics["score"] != metrics[name] for metrics in rounds) == (protocol != "last")


@pytest.mark.parametrize("where", ["training", "evaluation"])
def test_rounds_before_a_failure_are_kept_under_their_numbers(
    content: Settings, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    class Fails(Algorithm):
        def loss(self, client: Any, batch: Any) -> Any:
            if client.round == 2 and where == "training":
                raise ValueError("no such luck")
            return super().loss(client, batch)

    def evaluate(self: Federation) -> dict[str, float]:
        if self.rounds_done == 3 and where == "evaluation":
            raise ValueError("no such luck")
        return measured(self)

    measured = Federation.evaluate
    monkeypatch.setattr(Federation, "evaluate", evaluate)
    registry.algorithms.names()
    monkeypatch.setitem(registry.algorithms._entries, "fails", Fails)
    content["experiment"] |= {"algorithm": "fails", "checkpoint": {"min_seconds": 600}}
    told = json.loads((result := trial_of(content).step())["report"])
    assert len(told["rounds"]) == 2 and result["training_iteration"] == 2 and result["done"]
    assert "no such luck" in told["failure"] and "sha256" not in told


def test_a_process_ends_silently(content: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: seen.append(str(found.exc_value)))
    trial_of(content)
    for error in (SystemExit(1), ValueError("to be seen")):
        sys.unraisablehook(SimpleNamespace(exc_value=error))
    assert seen == ["to be seen"]


def test_a_folder_that_was_written_twice_is_the_later_rounds() -> None:
    for name in ("0/round-2", "0/round-4", "1/round-3"):
        path = Path(f"001/0001/checkpoint_{name}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [reference.round for reference in checkpoints(".", "0001")] == [4, 3]


def test_sessions_leave_three_checkpoints(content: Settings) -> None:
    content["experiment"] |= {"rounds": 6, "checkpoint": {"min_seconds": 0}}
    for recorded in (0, 2, 4):
        trial = trial_of(content, recorded)
        for _ in range(2 if recorded < 4 else 1):
            trial.step()
    assert [found.round for found in checkpoints(".", "0001")] == [5, 4, 3, 2, 1]
    for _ in range(2):
        trial.step()
    remove_old_checkpoints(".", "0001")
    assert [found.round for found in checkpoints(".", "0001")] == [6, 5, 4]
    remove_old_checkpoints(".", "0002")
    assert rounds_reported(trial_of(content, recorded=5)) == ([6], [])


def test_rounds_of_the_checkpoint_alone_count(content: Settings, tmp_path: Path) -> None:
    """The driver was killed after the last checkpoint, and before it had recorded the rounds before it."""
    config, (point, *_) = begun(content, tmp_path)
    folder = TrialFolder(tmp_path, point.number)
    folder.create(point, config)
    recorder = TrialRecorder(tmp_path, config, {point.number: point}, 3, None, Progress())
    report: dict[str, Any] = {"metric": "global/common/accuracy", "lines": [], "rounds": []}
    carried = [[round_, {"score": round_ / 10}] for round_ in (1, 2, 3)]
    report |= {"sha256": "ab", "carried": carried}
    result = {"training_iteration": 3, "score": 0.3, "report": json.dumps(report)}

    class Ended(SimpleNamespace):
        def __str__(self) -> str:
            return point.number

    trial: Any = Ended(last_result=result, error_file=None)
    recorder.on_trial_start(1, [], trial)
    recorder.on_trial_result(2, [], trial, result)
    recorder.on_trial_complete(3, [], trial)
    recorder.close()
    assert (folder.status, folder.identity["rounds"]) == ("finished", 3)
    assert folder.scores() == [(1, 0.1), (2, 0.2), (3, 0.3)]
