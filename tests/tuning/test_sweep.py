"""Whole sweeps on a real Ray with a real MLflow database."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml
from ray.tune.execution import tune_controller
from rich.console import Console

from flray import api
from flray.cli.main import invoke
from flray.config.loader import load
from flray.records import directory, read_events
from flray.results.sweep import SweepResult
from flray.runs import runner
from flray.tracking.client import connect
from flray.tuning import sweep
from flray.tuning.callback import Standing
from flray.tuning.trial_store import TrialFolder, trial_folders
from tests.end_to_end.test_protocols import Watched
from tests.forked import light_nodes
from tests.helpers import Settings, inline, printed, tracked
from tests.messages import refused
from tests.tuning.helpers import Seen, digests, drive_and_kill, rounds_recorded, specs

CURVES = ("score", "global/common/accuracy", "train/loss")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_killed_it_ends_with_all_runs(content: Settings, tmp_path: Path, store: str) -> None:
    tracking = {"uri": store, "experiment": "killed"}
    content["experiment"] |= {"tracking": tracking, "checkpoint": {"min_seconds": 0.0}}
    content["sweep"]["concurrency"] = 2
    content["space"] = {"local.lr": {"grid": [0.02, 0.1]}, "algorithm": {"grid": ["fedavg"]}}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    folder = tmp_path / "runs" / "small" / "001"

    drive_and_kill("tune", file, folder, 3)
    before = {f.number: f.identity["uid"] for f in trial_folders(folder)}
    assert rounds_recorded(folder) == 3
    result = api.resume_sweep(folder)

    assert len(result.results) == 4 and set(result.results["status"]) == {"finished"}
    assert {f.number: f.identity["uid"] for f in trial_folders(folder)} == before
    assert rounds_recorded(folder) == 4 * 3 and len(set(digests(result))) == 4
    assert not [path for path in folder.rglob("*") if path.suffix == ".pkl"]
    trial = trial_folders(folder)[0]
    # The trial's own file, inline and uninterrupted, as `flray run` does.
    overrides = ["resources.executor=inline", f"output={tmp_path / 'alone'}", "tracking.uri=null"]
    alone = runner.run(trial.path / "config.yaml", overrides)
    assert trial.identity["sha256"] == alone.sha256
    drawn = sorted(path.name for path in (alone.folder / "figures").iterdir())
    assert drawn == ["clients.png", "curves.png", "partition.png"]
    listed = [event["path"] for event in read_events(trial.path) if event["type"] == "artifact"]
    assert listed == ["config.yaml", "partition.json"] and not (trial.path / "figures").exists()
    _check_tracked(store, folder)
    _check_tables(folder)
    # A finished sweep gives the same result; nothing is run or tracked again.
    assert digests(api.resume_sweep(folder)) == digests(result)
    _check_tracked(store, folder)


def _check_tracked(uri: str, folder: Path) -> None:
    client = connect(uri)

    def curve(run: Any, name: str) -> tuple[list[int], list[float]]:
        # After a kill the means of an early round may be sent after those of a later one.
        points = sorted(client.get_metric_history(run.info.run_id, name), key=lambda one: one.step)
        return [point.step for point in points], [point.value for point in points]

    runs = tracked(uri, "killed")
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    settings = [run for run in runs if run.data.tags.get("flray.kind") == "setting"]
    children = [run for run in runs if "trial" in run.data.tags]
    assert (len(settings), len(children)) == (2, 4)
    assert {run.data.tags["mlflow.parentRunId"] for run in settings} == {parent.info.run_id}
    for setting in settings:
        above, name = setting.info.run_id, setting.data.tags["setting"]
        seeds = [run for run in children if run.data.tags["mlflow.parentRunId"] == above]
        assert [run.data.tags["setting"] for run in seeds] == [name] * 2
        assert setting.data.tags["seeds"] == "2"
        for name in CURVES:
            curves = np.array([curve(run, name)[1] for run in seeds])
            expected_of = {name: curves.mean(0), f"{name}/seed_std": curves.std(0, ddof=1)}
            for found, expected in expected_of.items():
                steps, values = curve(setting, found)
                assert steps == [1, 2, 3]
                np.testing.assert_allclose(values, expected, rtol=1e-12)
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow.user"] and run.data.tags["mlflow.source.name"]
        (data,) = run.inputs.dataset_inputs
        assert data.dataset.name == "digits-sklearn"
        assert data.dataset.digest == children[0].data.tags["data.fingerprint"][:36]
        assert json.loads(data.dataset.profile)["classes"] == 10
    for run in children:
        trial = folder / "trials" / run.data.tags["trial"]
        assert run.data.tags["model.sha256"] == directory.read(trial)["sha256"]
        held = json.loads((trial / "partition.json").read_text())["fingerprints"]
        parts = ("data", "partition")
        assert {part: run.data.tags[f"{part}.fingerprint"] for part in parts} == held
        assert [curve(run, name)[0] for name in CURVES] == [[1, 2, 3]] * 3
    note = parent.data.tags["mlflow.note.content"]
    assert "| lr" in note and note.count("\n|") >= 3
    assert parent.data.metrics == {}, "a dot is no chart"
    assert parent.data.tags["trials.finished"] == "4"
    listed = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert listed >= {"config.yaml", "results.csv", "summary.csv", "table.txt", "report"}


def _check_tables(folder: Path) -> None:
    swept = SweepResult(folder)
    curves = pd.read_csv(folder / "curves.csv", dtype={"trial": str})
    first = ["trial", *swept.data.settings, "seed", "round"]
    assert len(curves) == 12 and list(curves.columns[: len(first)]) == first
    one = curves[curves.trial == "0003"].set_index("round")["global/common/accuracy"]
    history = swept.data.trials[2].history.set_index("round")
    assert dict(one) == dict(history["global/common/accuracy"])
    assert "<table" in swept._repr_html_() and "<li>" in swept._repr_html_()


OWN_METHODS = '''
import os, signal
from flray.algorithms.base import Algorithm
from flray.registry import register_algorithm

@register_algorithm("own-good")
class Good(Algorithm):
    """FedAvg under another name."""

@register_algorithm("own-bad")
class Bad(Algorithm):
    def loss(self, client, batch):
        if client.id == 2 and client.round == 1:
            raise ValueError("no such luck")
        return super().loss(client, batch)

@register_algorithm("own-crash")
class Crash(Algorithm):
    def aggregate(self, server, stage, replies):
        if server.round == 1 and not os.path.exists(MARK):
            open(MARK, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        super().aggregate(server, stage, replies)
'''


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_own_methods_that_fail_and_that_crash(content: Settings, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"MARK = {str(tmp_path / 'mark')!r}\n{OWN_METHODS}")
    own = {"plugins": [str(tmp_path / "own.py")], "checkpoint": {"min_seconds": 0.0}}
    content["experiment"] |= {**own, "resources": {"executor": "ray", "actors": 1}}
    content["space"] = {"algorithm": {"grid": ["own-good", "own-bad", "own-crash"]}}
    content["sweep"]["seeds"] = [0]
    result = api.tune(content, progress=(seen := Seen()))
    good, bad, crash = result.results.to_dict("records")
    assert {row["status"] for row in (good, crash)} == {"finished"}
    fedavg = runner.run(inline({**content["experiment"], "plugins": []}))
    assert good["sha256"] == crash["sha256"] == fedavg.sha256
    failure = bad["failure"].splitlines()[0]
    assert failure.startswith("client 2 (") and "round 2" in failure and "own.py:15" in failure
    assert "ValueError: no such luck at" in failure
    assert (bad["status"], bad["rounds"]) == ("failed", 1)
    assert [line[:18] for line in seen.find("tried again")] == ["trial 0003 crashed"]
    Console(width=200, file=(shown := io.StringIO())).print(result.table())
    assert "no such luck" in shown.getvalue()


OWN_NETWORK = """
import math, os, signal
from torch import nn
from flray import register_model

@register_model("mortal")
def mortal(shape, num_classes, *, width: int = 4):
    if width == 5 and os.getpid() != DRIVER and not os.path.exists(MARK):
        open(MARK, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.Linear(width, num_classes))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_a_reused_process_may_die_without_failure(content: Settings, tmp_path: Path) -> None:
    names = f"DRIVER, MARK = {os.getpid()}, {str(tmp_path / 'mark')!r}"
    (tmp_path / "own.py").write_text(f"{names}\n{OWN_NETWORK}")
    plugins = [str(tmp_path / "own.py")]
    content["experiment"] |= {"plugins": plugins, "model": "mortal", "rounds": 1}
    content["space"], content["sweep"]["seeds"] = {"model.width": {"grid": [4, 5, 6]}}, [0]
    results = api.tune(content, progress=(seen := Seen())).results
    assert list(results["status"]) == ["finished"] * 3
    assert (tmp_path / "mark").exists()
    assert [line[:18] for line in seen.find("tried again")] == ["trial 0002 crashed"]


@pytest.mark.slow
def test_two_sweeps_of_a_name_at_once(content: Settings, tmp_path: Path, store: str) -> None:
    content["experiment"] |= {"rounds": 1, "tracking": {"uri": store, "experiment": "at once"}}
    content["sweep"], content["space"] = {"seeds": [0]}, {}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    script = (
        "import sys; from flray import api; from flray.tuning import sweep; "
        "sweep.add_report = lambda *_: None; api.tune(sys.argv[1])"
    )
    said: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    processes = [subprocess.Popen([sys.executable, "-c", script, file], **said) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = (SweepResult(tmp_path / "runs" / "small" / n) for n in ("001", "002"))
    assert digests(first) == digests(second)
    runs = tracked(store, "at once")
    assert len(runs) == 6 and {run.info.status for run in runs} == {"FINISHED"}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_early_stopping_compares_settings_and_ends_the_worse(content: Settings) -> None:
    content["experiment"]["rounds"] = 6
    content["space"] = {"local.lr": {"grid": [0.1, 1e-6, 1e-7]}}
    asha = {"name": "asha", "reduction_factor": 2}
    content["sweep"] = {"scheduler": asha, "seeds": [0], "concurrency": 1}
    result = api.tune(content)
    rows = result.results.set_index("local.lr")
    assert rows.loc[0.1, "status"] == "finished" and rows.loc[0.1, "rounds"] == 6
    assert "stopped" in set(rows["status"]) and rows["rounds"].sum() < 18
    assert (rows[rows["status"] == "stopped"]["rounds"] < 6).all()
    assert result.best["local.lr"] == 0.1
    # A driver that is killed after a trial's last round, before it decides or records that.
    before = (result.folder / "results.csv").read_text()
    for number in rows.loc[rows["status"] == "stopped", "trial"]:
        trial = TrialFolder(result.folder, number)
        record = json.loads((trial.path / "run.json").read_text())
        for name in ("rounds", "metric", "ended"):
            record.pop(name, None)
        (trial.path / "run.json").write_text(json.dumps(record | {"status": "running"}))
        journal = (trial.path / "journal.jsonl").read_text()
        (trial.path / "journal.jsonl").write_text(journal[: journal.rindex('{"type":"tags"')])
    record = json.loads((result.folder / "sweep.json").read_text())
    (result.folder / "sweep.json").write_text(json.dumps(record | {"status": "running"}))
    assert (api.resume(result.folder).folder / "results.csv").read_text() == before


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_a_search_without_a_further_setting_ends_its_sweep(content: Settings) -> None:
    content["experiment"]["rounds"] = 1
    content["experiment"]["participation"] = {"straggler_work": 0.2}
    content["space"] = {"local.lr": {"choice": [0.1, 0.2]}}
    content["sweep"] = {"search": "optuna", "samples": 5, "seeds": [0], "concurrency": 1}
    seen = Seen()
    result = api.tune(content, progress=seen)
    assert isinstance(result, SweepResult) and len(result.results) == 2
    (line,) = seen.find("sweep.samples")
    assert line.startswith("sweep.samples: 2 of 5 trials were ")
    assert len(seen.find("settings without effect here: participation.straggler_work=0.2")) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_of_very_many_trials_few_rounds_go_to_mlflow_and_tune_saves_no_state(
    content: Settings, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    periods: list[float] = []
    save = tune_controller.TuneController.save_to_dir

    def saved(self: Any) -> None:
        periods.append(self._checkpoint_manager._checkpoint_period)
        save(self)

    monkeypatch.setattr(tune_controller.TuneController, "save_to_dir", saved)
    monkeypatch.setattr(sweep, "MOST_IN_FULL", 2)
    content["experiment"] |= {"rounds": 5, "tracking": {"uri": store, "experiment": "thin"}}
    seen = Seen()
    result = api.tune(content, progress=seen)
    assert [line[:10] for line in seen.find("tracking.every")] == ["4 trials: "]
    assert len(periods) <= 3 and min(periods) > 10**8  # the first, and at the end
    client, every = connect(store), tracked(store, "thin")
    runs = [run for run in every if "score" in run.data.metrics]
    assert len(runs) >= 4 + 2  # trials and settings
    whole = [run.data.params for run in every if run.data.tags.get("flray.kind") == "sweep"]
    assert [params["tracking.every"] for params in whole] == ["2"]  # `flray sync` reads it
    for run in runs:
        steps = [one.step for one in client.get_metric_history(run.info.run_id, "score")]
        assert "mlflow.parentRunId" not in run.data.tags or steps == [2, 4, 5]
    assert all(rounds == 5 for rounds in result.results["rounds"])
    held = [one.dataset for run in every for one in run.inputs.dataset_inputs]
    origins = {mlflow.data.get_source(one).to_dict()["tags"]["origin"] for one in held}
    assert len(held) == 1 + 2 + 4 and origins == {"real, composed"}
    for trial in trial_folders(tmp_path / "runs" / "small" / "001"):
        assert trial.rounds_recorded() == 5


@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_rounds_without_evaluation_and_a_setting_that_diverges(content: Settings) -> None:
    content["experiment"]["evaluation"] = {"every": 2}
    content["space"] = {"local.lr": {"grid": [0.05, 1e30]}}
    result = api.tune(content)
    assert list(result.results["status"]) == ["finished"] * 4
    curves = {}
    for path in (result.folder / "settings").iterdir():
        first, *events = read_events(path)
        curves[first["name"]] = {e["round"]: e["metrics"] for e in events if e["type"] == "round"}
    names = ["fedavg · digits-sklearn · lr=0.05", "fedavg · digits-sklearn · lr=1e+30"]
    assert sorted(curves) == names
    good, bad = (curves[name] for name in names)
    assert sorted(good) == sorted(bad) == [1, 2, 3]
    assert all("train/loss/seed_std" in good[round_] for round_ in good)
    scored = [set(good[round_]) >= {"score", "score/seed_std"} for round_ in good]
    assert scored == [False, True, True]
    assert "train/loss" not in bad[3] and "score" in bad[3]


class _Watching(Watched, Seen):
    """Looks at MLflow and at the list of runs while a sweep goes on, and at its folder when its values are shown."""

    def __init__(self, experiment: Settings) -> None:
        Seen.__init__(self)
        Watched.__init__(self, experiment["tracking"])
        self.output, self.listed = experiment["output"], list[str]()

    def standing(self, line: str) -> None:
        super().standing(line)
        (row,) = json.loads(printed("ls", "--json", "--output", self.output))
        self.listed.append(row["value"])

    def values(self, result: SweepResult) -> None:
        self.summary = pd.read_csv(result.folder / "summary.csv")
        self.drawn = sorted(path.name for path in result.folder.rglob("*.png"))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_rounds_and_standing_are_seen_and_values_early(content: Settings, store: str) -> None:
    """One arm is named by the method that ran, which need not be the base's."""
    tracking = {"uri": store, "experiment": "watched"}
    # A checkpoint after each round, so that no two share a step.
    content["experiment"] |= {"rounds": 2, "tracking": tracking, "checkpoint": {"min_seconds": 0}}
    content["arms"] = {"method": {"plain": None, "prox": {"algorithm": "fedprox"}}}
    content["space"] = {}
    content["sweep"]["only"] = {"method": ["prox"]}
    progress = _Watching(content["experiment"])
    result = api.tune(content, progress=progress)
    assert progress.rounds == [1, 2] * 2
    assert progress.listed[0] == ""  # each sees the best that the line before it named
    for line, value in zip(progress.stood, progress.listed[1:], strict=False):
        assert value.removeprefix("so far: ") == line.partition("best so far: ")[2]
    assert progress.listed[-1].startswith("so far: prox · ")
    assert progress.stood[-1].startswith("2 of 2 trials ended, 0 running; best so far: prox · ")
    points = {point.number: point for point in specs(content)[1]}
    assert Standing(result.folder, points).line() == progress.stood[-1]
    summary = pd.read_csv(result.folder / "summary.csv")
    pd.testing.assert_frame_equal(progress.summary, summary, check_exact=True)
    assert progress.drawn == [] and (result.folder / "report" / "report.html").is_file()
    Console(width=200, file=(shown := io.StringIO())).print(result.table())
    assert "fedprox" in shown.getvalue() and "fedavg" not in shown.getvalue()


def test_one_override_may_stand_alone(content: Settings) -> None:
    labels = [one.label for one in api.plan(content, "sweep.seeds=[3]")]
    assert labels and all(label.endswith(" seed=3") for label in labels)
    config = load(content, "rounds=2")
    assert [load(config, "rounds=5").experiment.rounds, config.experiment.rounds] == [5, 2]


def test_mistakes_are_refused_before_any_folder(content: Settings, tmp_path: Path) -> None:
    refused(api.tune, {**content, "sweep": {"metric": "global/common/acuracy"}})
    refused(api.tune, {**content, "space": {"participation.clients": {"grid": [2, 50]}}})
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here", "no_pictures")
def test_a_sweep_of_failures_is_a_failed_one_until_it_is_mended(
    content: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], store: str
) -> None:
    own, file = tmp_path / "own.py", tmp_path / "s.yaml"
    own.write_text(f"MARK = ''\n{OWN_METHODS}".replace("own-bad", "own-worse"))
    content["experiment"] |= {"rounds": 2, "plugins": [str(own)], "algorithm": "own-worse"}
    content["experiment"]["tracking"] = {"uri": store, "experiment": "failures"}
    file.write_text(yaml.safe_dump(content))

    def parent() -> Any:
        runs = tracked(store, "failures")
        (found,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        return found

    assert invoke(["tune", str(file)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    trials = "trials 0001 (lr=0.02 seed=0), 0002 (lr=0.02 seed=1), 0003 (lr=0.1 seed=0)"
    assert f"{trials} and 1 more failed: " in shown
    folder = tmp_path / "runs" / "small" / "001"
    assert parent().info.status == "FAILED" and parent().data.tags["trials.failed"] == "4"
    own.write_text(own.read_text().replace("client.id == 2", "client.id == 99"))
    assert invoke(["resume", str(folder)]) == 2
    assert invoke(["resume", str(folder), "--other-code"]) == 0
    assert parent().info.status == "FINISHED"
    assert {"status", "settings"} <= set(directory.read(folder))
    tags = parent().data.tags
    assert (tags["trials.finished"], tags["trials.failed"]) == ("4", "0")
    best = SweepResult(folder).best["score"]
    assert float(tags["best.score"]) == pytest.approx(best, rel=1e-5)
    assert tags["best.metric"] == "global/validation/accuracy"
    (row,) = json.loads(printed("ls", "--json", "--output", str(tmp_path / "runs")))
    assert row["value"] == f"{tags['best.score']} global/validation/accuracy: {tags['best']}"


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_trials_share_a_gpu_of_a_ray_that_runs_already(content: Settings) -> None:
    import ray

    free: list[float] = []

    class Free(Seen):
        def round(self, *_: object) -> None:
            free.append(ray.available_resources().get("GPU", 0.0))

    content["experiment"]["resources"] = {"executor": "ray", "gpus_per_actor": 0.5}
    content["space"], content["sweep"]["concurrency"] = {}, "auto"
    ray.shutdown()  # the one without a GPU
    with light_nodes():
        ray.init(address="local", num_cpus=2, num_gpus=1, logging_level="ERROR")
    try:
        result = api.tune(content, progress=Free())
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    assert set(result.results["status"]) == {"finished"}
    assert min(free) == 0.0  # two trials at once, half a GPU each
