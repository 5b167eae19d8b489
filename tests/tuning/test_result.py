"""What is said of a sweep while it runs, and the tables of one that has ended."""

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flray.cli.display import SweepProgress
from flray.config.loader import load
from flray.records import directory
from flray.results.load import load_folder
from flray.results.sweep import SweepResult
from flray.tuning.callback import Standing
from flray.tuning.space import trial_specs
from flray.tuning.trial_store import TrialFolder, suggested_settings, trial_folders
from tests.helpers import Settings, cases
from tests.messages import refused
from tests.tuning.helpers import begun, leave

ACCURACY = "global/common/accuracy"


@pytest.fixture
def sweep(content: Settings, tmp_path: Path) -> Path:
    """A sweep's folder with two methods at two seeds, one trial stopped early, and a third method that failed."""
    content["space"] = {"algorithm": {"grid": ["fedavg", {"name": "fedprox", "mu": 0.5}, "local"]}}
    finals = {"0001": (0.8, 3), "0002": (0.9, 3), "0003": (0.6, 3), "0004": (0.5, 1)}
    ends: dict[int, dict[str, Any]] = {
        3: {"metric": ACCURACY, "sha256": "ab"},
        1: {"status": "stopped", "metric": ACCURACY, "sha256": None},
        0: {"status": "failed", "failure": "client 1 (b), round 1: ValueError: no\nmore"},
    }
    config, made = begun(content, tmp_path)
    local = "global/local/accuracy"
    for point in made:
        final, rounds = finals.get(point.number, (0.0, 0))
        scores = [final - 0.1 * before for before in reversed(range(rounds))]
        names, (a, b) = ("score", ACCURACY, local), (f"{local}/client/{name}" for name in "ab")
        rows = [{**dict.fromkeys(names, one), a: one + 0.05, b: one - 0.05} for one in scores]
        rows = [{"time/round": 2.0, **values} for values in rows]
        leave(tmp_path, point, config, rows, **{"metric": None, **ends[rounds]})
    return tmp_path


def test_a_row_per_trial_and_one_per_setting(sweep: Path) -> None:
    table = SweepResult(sweep).results
    assert list(table["status"]) == ["finished"] * 3 + ["stopped"] + ["failed"] * 2
    assert list(table["algorithm"]) == ["fedavg"] * 2 + ["fedprox"] * 2 + ["local"] * 2
    assert list(table["rounds"]) == [3, 3, 3, 1, 0, 0]
    assert list(table["seconds"]) == [6.0, 6.0, 6.0, 2.0, 0.0, 0.0]
    assert table["client/a"][1] == pytest.approx(0.95)
    assert table["client/b"][3] == pytest.approx(0.45) and math.isnan(table["score"][4])
    summary = SweepResult(sweep).summary
    assert list(summary["algorithm"]) == ["fedavg", "fedprox", "local"]
    first, second, third = summary.to_dict("records")
    for name, mean in (("score", 0.85), ("client/a", 0.90)):
        assert first[name] == pytest.approx(mean)
        assert first[f"{name}_std"] == pytest.approx(0.1 / math.sqrt(2))
    counts = ("seeds", "rounds_min", "rounds_max", "stopped")
    assert [first[name] for name in counts] == [2, 3, 3, 0]
    assert [second[name] for name in counts] == [2, 1, 3, 1]
    assert (third["seeds"], third["failed"]) == (0, 2) and math.isnan(third["score"])
    assert SweepResult(sweep).best["algorithm"] == "fedavg"


def test_a_trial_that_failed_is_none_of_the_best_setting(sweep: Path) -> None:
    directory.update(sweep / "trials" / "0001", status="failed")
    found = SweepResult(sweep)
    best = found.summary.iloc[0]
    assert [one.status for one in found.best_trials] == ["finished"] * best["seeds"]


def test_a_setting_that_stopped_early_is_not_the_best(sweep: Path) -> None:
    """Its value of early rounds may be higher than those of the settings that went on."""
    directory.update(sweep / "trials" / "0002", status="stopped")  # now both at one seed
    assert list(SweepResult(sweep).summary["algorithm"]) == ["fedavg", "fedprox", "local"]
    directory.update(sweep / "trials" / "0004", status="finished")
    other, order = SweepResult(sweep), ["fedprox", "fedavg", "local"]
    assert list(other.summary["algorithm"]) == order and other.best["algorithm"] == "fedprox"
    assert {one.seed for one in other.best_trials} == {0, 1}
    assert [name.partition(" ")[0] for name in other.main_table.rows] == order


@cases(
    "space, labels",
    """[{model: {grid: [{name: mlp, hidden: [8, 4]}, {name: mlp, hidden: [8]}]}}, ['hidden=[8, 4]', 'hidden=[8]']],
    [{local.batch_size: {grid: [16384, 8]}, local.lr: {grid: [0.5]}}, [batch_size=16384, batch_size=8]]""",
)
def test_labels_of_any_type(content: Settings, tmp_path: Path, space: Any, labels: Any) -> None:
    """A whole number beside a column of fractions stays one."""
    config, made = begun({**content, "space": space}, tmp_path)
    for point in made:
        rounds = [{ACCURACY: 0.5, "score": 0.5}]
        leave(tmp_path, point, config, rounds, metric=ACCURACY, sha256="ab")
    result = SweepResult(tmp_path)
    found = {result.label(row): row["seeds"] for _, row in result.summary.iterrows()}
    assert found == dict.fromkeys(labels, 2)
    shown = set(map(str, result.summary[result.data.varying[0]]))
    assert shown == {label.split("=")[1] for label in labels}


def test_the_table_says_what_matters(sweep: Path) -> None:
    Console(file=(buffer := io.StringIO()), width=160).print(SweepResult(sweep).table())
    lines = buffer.getvalue().splitlines()
    assert any("setting" in line and "score" in line for line in lines)
    (fedavg,) = [line for line in lines if line.startswith("│ fedavg")]
    (fedprox,) = [line for line in lines if line.startswith("│ fedprox")]
    assert "85.00 ± 7.07" in fedavg and "90.00 ± 7.07" in fedavg and "80.00 ± 7.07" in fedavg
    assert "mu=0.5" in fedprox
    assert any("1 of 6 trials stopped early, after 1 round" in line for line in lines)
    failed = "trials 0005 (local seed=0), 0006 (local seed=1) failed: client 1 (b), round 1: ValueError: no"
    assert failed in " ".join(" ".join(lines).split())


def test_runs_that_their_rule_ended_are_counted(content: Settings, tmp_path: Path) -> None:
    """Their values and costs are of different rounds."""
    content["experiment"] |= {"rounds": 5, "stop": {"patience": 1}}
    config, made = begun(content, tmp_path)
    for point, rounds in zip(made, (3, 2, 5), strict=False):
        leave(tmp_path, point, config, [{ACCURACY: 0.5, "score": 0.5}] * rounds, metric=ACCURACY)
    notes = SweepResult(tmp_path).main_table.notes
    assert "2 of 3 trials ended by experiment.stop, after 2 to 3 rounds" in notes


def test_a_population_of_an_earlier_version_is_not_reported(sweep: Path) -> None:
    """Its settings changed while it ran, so those at the start are not the ones of its scores."""
    directory.update(TrialFolder(sweep, "0002").path, setting_at_end={"algorithm": "fedavg"})
    refused(load_folder, sweep)


def test_the_folder_is_all_a_resume_needs(sweep: Path) -> None:
    assert [f.number for f in trial_folders(sweep)] == [f"{i:04d}" for i in range(1, 7)]
    methods = ["fedavg", {"mu": 0.5, "name": "fedprox"}, "local"]
    assert suggested_settings(sweep, seeds=2) == [{"algorithm": one} for one in methods]
    assert trial_folders(sweep)[3].scores() == [(1, 0.5)]


BEST = "round of the best mean validation value, the last where there is none"
LAST = "mean of the last 2 evaluated rounds"


@pytest.mark.parametrize(
    ("protocol", "score", "client", "note"),
    [("last", 0.5, 0.55, ""), ("best", 0.7, 0.75, BEST), ("mean-last", 0.6, 0.65, LAST)],
)
def test_the_protocol_decides_the_score(
    content: Settings, tmp_path: Path, protocol: str, score: float, client: float, note: str
) -> None:
    how = {"validation": 0.2, "protocol": protocol, "last": 2, "every": 2}
    content["experiment"]["evaluation"] = how
    content["space"] = {"algorithm": {"grid": ["fedavg"]}}
    rounds = []
    for test, validation in ((0.3, 0.4), (0.7, 0.9), (0.5, 0.8)):
        # A round that is not evaluated has an old score.
        rounds.append({"score": test - 0.2, "time/round": 1.0})
        tested = {ACCURACY: test, "global/local/accuracy/client/a": test + 0.05}
        tested |= {"global/validation/accuracy": validation}
        rounds.append({"score": test, "time/round": 1.0, **tested})
    config, made = begun(content, tmp_path)
    for point in made:
        leave(tmp_path, point, config, rounds, metric=ACCURACY, sha256="ab")
    result = SweepResult(tmp_path)
    assert result.best["score"] == pytest.approx(score)
    assert result.results["client/a"].tolist() == pytest.approx([client] * len(result.results))
    assert result.results["seconds"].tolist() == [6.0] * len(result.results)
    values = [line for line in result.main_table.notes if line.startswith("value of a run: ")]
    assert values == ([f"value of a run: {note}"] if note else [])


def points_of(content: Settings, *rates: float) -> dict[str, Any]:
    specs = trial_specs(load(content), [{"local.lr": rate} for rate in rates or (0.02, 0.1)])
    return {point.number: point for point in specs}


def test_a_sweep_s_line_counts_and_names_the_best(content: Settings, tmp_path: Path) -> None:
    content["sweep"]["seeds"] = [0, 1, 2]
    found = Standing(tmp_path, points_of(content))
    assert found.line() == "0 of 6 trials ended, 0 running"
    accuracy, loss = "personal/local/accuracy", "global/common/loss"
    found.add("0001", "finished", 0.8, accuracy)
    found.add("0004", "running", math.nan, accuracy)
    assert found.line() == (
        "1 of 6 trials ended, 1 running; best so far: fedavg · digits-sklearn · lr=0.02, 0.8000 (1 seed)"
    )
    for number, score in (("0002", 0.82), ("0003", 0.84), ("0004", 0.79), ("0005", 0.8)):
        found.add(number, "finished", score, accuracy)
    found.add("0006", "failed", math.nan, accuracy)
    best = "best so far: fedavg · digits-sklearn · lr=0.02, 0.8200 (3 seeds)"
    assert found.line() == f"6 of 6 trials ended, 0 running, 1 failed; {best}"
    for number, (_, score, *_) in list(found._trials.items()):
        found.add(number, "finished", 0.5 if math.isnan(score) else score, loss)
    assert "lr=0.1" in found.line()
    for number in found._points:
        found.add(number, "finished", math.inf, loss)
    assert found.line().endswith(", inf (3 seeds)")


def test_stopped_trials_and_metrics_are_not_mixed(content: Settings, tmp_path: Path) -> None:
    found = Standing(tmp_path, points_of(content))
    found.add("0001", "stopped", 0.99, ACCURACY)
    found.add("0003", "finished", 0.5, ACCURACY)
    assert "lr=0.1, 0.5000" in found.line() and "2 of 4 trials ended" in found.line()
    found.add("0002", "finished", 0.8, "personal/local/accuracy")
    assert found.best() == (
        "by global/common/accuracy: fedavg · digits-sklearn · lr=0.1, 0.5000 (1 seed); "
        "by personal/local/accuracy: fedavg · digits-sklearn · lr=0.02, 0.8000 (1 seed)"
    )
    # Settings that a title does not tell apart stay two.
    found = Standing(tmp_path, points_of(content, 0.10001, 0.10002))
    for number, score in (("0001", 0.8), ("0003", 0.5)):
        found.add(number, "finished", score, ACCURACY)
    assert found.best() == "fedavg · digits-sklearn · lr=0.1, 0.8000 (1 seed)"


def test_in_a_log_a_line_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = SweepProgress()
    progress.standing("1 of 4 trials ended")
    monkeypatch.setattr("flray.runs.progress._STANDING_SECONDS", 0.0)
    progress.standing("2 of 4 trials ended")
    progress.begin(2, 0)
    progress.trial_done("0001", "fedavg", "failed", 0, math.nan)  # shown without nan
    said = capsys.readouterr().out
    assert "2 of 4" in said and "1 of 4" not in said
    assert "trial 0001 failed after 0 rounds: fedavg (1/2)" in said
