"""What a sweep registers and selects by, what its reports say of it, and a report from MLflow."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flray import api
from flray.config import yaml_files
from flray.config.experiment import selects_on_test
from flray.config.loader import load
from flray.records import Journal, directory
from flray.reporting.build import markdown
from flray.results import ResultSet
from flray.results.export import export_runs, kept_results, read_export
from flray.results.load import load_folder
from flray.results.paired import compare
from flray.results.sequential import detectable_difference, seeds_to_detect
from flray.results.study import DRAWS, Studies, Study, forecast
from flray.results.sweep import SweepResult, build_table
from flray.runs.resume_checks import load_config, settings_text
from flray.tuning import sweep as sweeps
from flray.tuning.space import resolve_sweep
from flray.tuning.trial_store import trial_folders
from tests.helpers import Said, Settings, cases, small
from tests.messages import refused
from tests.report.conftest import Edited, make_sweep, plain, settings


@pytest.fixture
def asked(edited: Edited, sweep: Path) -> ResultSet:
    """The sweep with a row per setting, started with a reference."""
    edited(lambda config: (plain(config), config["sweep"].update(reference="none")))
    directory.update(sweep, settings=settings_text(load_config(sweep), "sweep"))
    return load_folder(sweep)


def change(config: Settings, sweep: dict[str, Any]) -> None:
    config["sweep"] = sweep


def test_a_report_of_what_was_asked_says_so(asked: ResultSet, edited: Edited) -> None:
    assert build_table(asked).conclusions[-1] == "as registered: all against none"
    for key, value in (("metric", "validation"), ("seeds", [0, 1, 2]), ("places", ["data.seed"])):
        before = dict(asked.config["sweep"])
        changed = edited(partial(change, sweep={**before, key: value}))
        line = build_table(changed).conclusions[-1]
        assert line.startswith("not as registered (all against none): ")
        assert f"sweep.{key} is {value} and was {before[key]}" in line
        edited(partial(change, sweep=before))
    edited(lambda config: config["experiment"]["evaluation"].update(protocol="best"))
    line = build_table(edited(plain)).conclusions[-1]
    assert line.endswith("evaluation.protocol is best and was last")


def test_a_reference_chosen_late_spares_no_correction(asked: ResultSet, edited: Edited) -> None:
    asked.registered["sweep.reference"] = "None"
    for table in (build_table(asked), build_table(replace(asked), "none")):
        assert {one.pairs for study in table.studies.each for one in study.differences} == {1}
        assert "the reference none was chosen afterwards" in table.conclusions[-1]
    seeds = {name: {s: k + (7 * s + s * k) % 5 for s in range(4)} for k, name in enumerate("abcde")}
    for late, pairs in ((False, 4), (True, 10)):
        found = compare(seeds, reference="a", afterwards=late)
        assert {one.pairs for one in found} == {pairs} and len(found) == 4
    every = {(one.first, one.second): one.corrected for one in compare(seeds)}
    late_ones = compare(seeds, reference="a", afterwards=True)
    assert all(one.corrected == every["a", one.first] for one in late_ones)


def test_a_reference_without_values_and_runs_that_had_ended_are_said(asked: ResultSet) -> None:
    for trial in asked.trials[:3]:
        trial.taken_over = "made/000/trials/0001"
    line = build_table(asked).conclusions[-1]
    assert line.endswith("; when it was asked, 3 of 8 runs had ended elsewhere")
    asked.registered["sweep.reference"] = asked.config["sweep"]["reference"] = "gone"
    assert build_table(replace(asked)).conclusions[-1] == (
        "not as registered (all against gone; when it was asked, 3 of 8 runs had ended elsewhere): "
        "gone has no values, so all pairs are compared"
    )


def test_a_kept_file_remembers_the_question(asked: ResultSet, tmp_path: Path) -> None:
    for number, trial in enumerate(asked.trials):
        trial.sha256 = f"{number:064d}"
    export_runs(asked, tmp_path / "kept.csv")
    kept = read_export(tmp_path / "kept.csv")
    assert set(kept["reference"]) == {"none"}
    own, other = build_table(kept_results(kept)), build_table(kept_results(kept), "full")
    assert {one.reference for one in own.studies.each} == {"none"}
    assert not any("afterwards" in line for line in own.conclusions)
    assert other.conclusions[-1].startswith("the reference full was chosen afterwards")
    # Rows of two sweeps that asked for different things ask for nothing together.
    kept.loc[kept.index[0], "reference"] = "full"
    assert build_table(kept_results(kept)).studies.registered is None


@pytest.mark.parametrize(
    ("std", "difference", "alpha"), [(1, 1, 0.05), (2, 0.5, 0.005), (3, 9, 0.05)]
)
def test_the_seeds_of_a_forecast_are_fewest(std: float, difference: float, alpha: float) -> None:
    seeds = seeds_to_detect(std, difference, alpha)
    assert seeds is not None and detectable_difference(std, seeds, alpha) <= difference
    assert seeds == 2 or detectable_difference(std, seeds - 1, alpha) > difference


def test_a_forecast_by_hand() -> None:
    """Deviation 1 between three settings at three seeds; half an hour a trial."""
    values = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": dict.fromkeys(range(3), 5.0)}
    values["c"] = {0: 3.0, 1: 2.0, 2: 1.0}  # a minus c: -2, 0, 2
    (line,) = forecast(Studies([Study("", "personal/local/accuracy", values)]), 1800.0, 2.0)
    seeds = seeds_to_detect((1 / 3 + 1 / 3 + 4 / 3) ** 0.5, 2.0, 0.05 / 3)
    seen = "difference of 2 points would probably be seen (4 times in 5) with"
    assert f"{seen} {seeds} seeds (" in line
    assert f": {3 * seeds} trials, {1.5 * seeds:.2g} hours of training (" in line
    assert " hours" not in next(forecast(Studies([Study("", "x", values)]), math.nan, 2.0))
    shared = {DRAWS: {0: "u", 1: "u", 2: "v"}}
    (line,) = forecast(Studies([Study("", "x", values, levels=shared)]), 1.0, 2.0)
    assert line.startswith("x: not known, because seeds of the pilot share")
    (none,) = forecast(Studies([Study("", "x", {"a": {0: 1.0}, "b": {0: 2.0}})]), 1.0, 2.0)
    assert none.startswith("x: not known")


def test_the_pilot_is_what_was_kept_or_the_newest_sweep(asked: ResultSet, sweep: Path) -> None:
    config = load("quickstart")
    first, line = api.detect(config, yaml_files.locate("quickstart"), 1.0)
    assert first.endswith("quickstart.results.csv") and "a difference of 1 point would" in line
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        refused(api.detect, config, yaml_files.locate("quickstart"), wrong)
    own = load({"experiment": {**asked.config["experiment"], "output": str(sweep.parents[1])}})
    assert api.detect(own, sweep / "file.yaml", 1.0)[0] == f"pilot: {sweep}"
    for trial in sorted(sweep.glob("trials/*/run.json"))[1:]:
        trial.unlink()
    refused(api.detect, own, sweep / "file.yaml", 1.0)
    refused(api.detect, load(own, ["name=other"]), sweep / "file.yaml", 1.0)


RATES = {"local.lr": {"grid": [0.01, 0.1]}}
LINE = "this sweep selects on test data (sweep.metric: auto)"


@cases(
    "space, sweep, selects",
    """[{}, {}, false], [{local.lr: {loguniform: [0.01, 0.1]}}, {}, true],
    [{experiment.local.lr: {grid: [0.01, 0.1]}}, {}, true], [{local.lr: {grid: [0.01]}}, {}, false],
    [{algorithm: {grid: [fedavg, {name: fedprox, mu: 0.1}]}}, {}, false],
    [{algorithm: {grid: [{name: fedprox, mu: 1}, {name: fedprox, mu: 0.1}]}}, {}, true],
    [{partition.alpha: {grid: [0.1, 1.0]}}, {}, false], [{}, {scheduler: {name: asha}}, true],
    [{local.lr: {grid: [0.01, 0.1]}}, {metric: personal/validation/accuracy}, false],
    [{local.lr: {grid: [0.01, 0.1]}}, {metric: personal/local/accuracy}, true]""",
)
def test_what_selects_on_tests(space: dict[str, Any], sweep: dict[str, Any], selects: bool) -> None:
    assert bool(selects_on_test({"space": space, "sweep": {"metric": "auto", **sweep}})) == selects


def test_the_table_says_that_it_selects_on_test_data(edited: Edited, source: ResultSet) -> None:
    assert "test data" not in markdown(build_table(source), ())  # arms are compared
    drawn = edited(lambda config: config.update(space=RATES))  # as one that draws learning rates
    assert LINE in markdown(build_table(drawn), ())


def test_the_sweep_says_so_as_it_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(sweeps.Sweep, "_connect", lambda self: {})
    monkeypatch.setattr(sweeps.Sweep, "_run", stop)
    settings = small(partition={"name": "iid", "clients": 2}, output=str(tmp_path / "runs"))
    content = {"experiment": settings, "space": RATES}
    chosen = (
        "this sweep chooses by validation values, for which 0.2 of each client's training samples "
        "are kept, and reports test values"
    )
    on_test = {"sweep.metric": "auto"}, {"evaluation.validation": 0.0}
    for changes, line in ((on_test[0], LINE), (on_test[1], LINE), ({}, chosen)):
        with pytest.raises(Stop):
            api.tune(content, list(changes.items()), progress=(said := Said()))
        assert len(said.lines) == 1 and said.lines[0].startswith(line)


@cases(
    "changes, experiment, metric, share",
    """[{space: &rates {local.lr: {grid: [0.01, 0.1]}}}, {}, validation, 0.2],
    [{sweep: {scheduler: asha}}, {}, validation, 0.2],
    [{space: {algorithm: {grid: [fedavg, local]}}}, {}, auto, 0.0],
    [{arms: {method: {a: {}, b: {local.lr: 0.5}}}}, {}, auto, 0.0],
    [{space: *rates , sweep: {metric: auto}}, {}, auto, 0.0],
    [{space: *rates }, {evaluation: {validation: 0.0}}, auto, 0.0],
    [{space: *rates }, {evaluation: {validation: 0.1}}, validation, 0.1],
    [{space: *rates }, {evaluation: {every: 2}}, validation, 0.2],
    [{space: *rates }, {split: [0.6, 0.2, 0.2]}, validation, 0.0],
    [{space: *rates }, {split: [0.8, 0.0, 0.2]}, auto, 0.0]""",
)
def test_a_sweep_that_chooses_keeps_validation_samples_by_default(
    content: Settings, changes: Any, experiment: Any, metric: str, share: float
) -> None:
    """A file that says what is kept is followed."""
    del content["paper"], content["arms"]
    content["experiment"] |= experiment
    config = resolve_sweep(load({**content, **changes}))
    assert config.sweep.metric == metric and config.experiment.evaluation.validation == share
    # What was written down is read again alike, so that a sweep that began without goes on without.
    assert resolve_sweep(load(config.model_dump(mode="json"))) == config


def test_what_is_chosen_on_validation_is_reported_on_test(sweep: Path, edited: Edited) -> None:
    for folder in trial_folders(sweep):
        directory.update(folder.path, metric="global/validation/accuracy")
        with Journal(folder.path / directory.JOURNAL) as journal:
            for event in journal.rounds():
                # On validation data the other settings are the better ones.
                held = 1.0 - event["metrics"]["global/common/accuracy"]
                more = {"global/validation/accuracy": held, "score": held}
                journal.record_round(event["round"], {**event["metrics"], **more}, replace=True)
    rows = SweepResult(sweep).summary
    assert rows["score"].is_monotonic_decreasing and rows["test"].is_monotonic_increasing
    assert rows["test"].iloc[0] == pytest.approx(0.5)
    table = build_table(edited(plain))
    assert any(note.startswith("settings are chosen by global/valid") for note in table.notes)
    assert [column.head for column in table.columns][:2] == [("validation",), ("test",)]
    first = next(iter(table.rows.values()))
    assert first[0].mean == pytest.approx(50.0) and first[1].mean == pytest.approx(50.0)


def made(place: Path) -> Path:
    """Return the folder of a sweep over arms, which differ in how they are reported, and a learning rate."""
    content = settings() | {"space": {"local.lr": {"grid": [0.1, 1]}}}
    content["experiment"]["tracking"] = {"experiment": place.name}
    content["arms"]["data"]["CIFAR-100"] |= {"evaluation.protocol": "mean-last"}
    content["sweep"] = {"seeds": [1], "metric": "global/local/accuracy"}
    (folder := place / "made" / "001").mkdir(parents=True)
    return make_sweep(folder, content)


def test_a_trial_that_has_not_ended_is_measured_as_the_others(tmp_path: Path) -> None:
    folder = made(tmp_path)
    first, *_ = trial_folders(folder)
    directory.update(first.path, metric=None, status="running")
    trials = load_folder(folder).trials
    assert trials[0].status == "running"
    assert {one.metric for one in trials} == {"global/local/accuracy"}
