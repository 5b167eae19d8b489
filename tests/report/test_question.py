"""What a sweep registers at its start, and what its reports say of it."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flray import api
from flray.config import yaml_files
from flray.config.loader import load
from flray.errors import FlrayError
from flray.records import directory
from flray.results.export import export_runs, kept_results, read_export
from flray.results.load import load_folder
from flray.results.paired import compare
from flray.results.result_set import ResultSet
from flray.results.sequential import detectable_difference, seeds_to_detect
from flray.results.study import DRAWS, Studies, Study, forecast
from flray.results.sweep import build_table
from flray.runs.resume_checks import load_config, settings_text
from tests.report.conftest import Edited, plain


@pytest.fixture
def asked(edited: Edited, sweep: Path) -> ResultSet:
    """The sweep with a row per setting, started with a reference."""
    edited(lambda config: (plain(config), config["sweep"].update(reference="none")))
    directory.update(sweep, settings=settings_text(load_config(sweep), "sweep"))
    return load_folder(sweep)


def change(config: dict[str, Any], sweep: dict[str, Any]) -> None:
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
    assert (
        build_table(edited(plain))
        .conclusions[-1]
        .endswith("evaluation.protocol is best and was last")
    )


def test_a_reference_that_is_chosen_afterwards_spares_no_correction(
    asked: ResultSet, edited: Edited
) -> None:
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


def test_a_reference_without_values_was_not_chosen_afterwards(asked: ResultSet) -> None:
    asked.registered["sweep.reference"] = "gone"
    asked.config["sweep"]["reference"] = "gone"
    line = build_table(asked).conclusions[-1]
    assert line.endswith("(all against gone): gone has no values, so all pairs are compared")


def test_runs_that_had_ended_before_are_counted(asked: ResultSet) -> None:
    for trial in asked.trials[:3]:
        trial.taken_over = "made/000/trials/0001"
    (line,) = build_table(asked).conclusions[-1:]
    assert line.endswith("; when it was asked, 3 of 8 runs had ended elsewhere")


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
def test_the_seeds_of_a_forecast_are_the_fewest(
    std: float, difference: float, alpha: float
) -> None:
    seeds = seeds_to_detect(std, difference, alpha)
    assert seeds is not None and detectable_difference(std, seeds, alpha) <= difference
    assert seeds == 2 or detectable_difference(std, seeds - 1, alpha) > difference


def test_a_forecast_by_hand() -> None:
    """Deviation 1 between three settings at three seeds; half an hour a trial."""
    values = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": dict.fromkeys(range(3), 5.0)}
    values["c"] = {0: 3.0, 1: 2.0, 2: 1.0}  # a minus c: -2, 0, 2
    (line,) = forecast(Studies([Study("", "personal/local/accuracy", values)]), 1800.0, 2.0)
    seeds = seeds_to_detect((1 / 3 + 1 / 3 + 4 / 3) ** 0.5, 2.0, 0.05 / 3)
    assert (
        f"difference of 2 points would probably be seen (4 times in 5) with {seeds} seeds (" in line
    )
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
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(FlrayError, match=r"--detect: found .*; a difference above 0"):
            api.detect(config, yaml_files.locate("quickstart"), wrong)
    own = load({"experiment": {**asked.config["experiment"], "output": str(sweep.parents[1])}})
    assert api.detect(own, sweep / "file.yaml", 1.0)[0] == f"pilot: {sweep}"
    for trial in sorted(sweep.glob("trials/*/run.json"))[1:]:
        trial.unlink()
    with pytest.raises(FlrayError, match=f"found nothing in {sweep} that is compared"):
        api.detect(own, sweep / "file.yaml", 1.0)
    with pytest.raises(FlrayError, match="run a pilot first"):
        api.detect(load(own, ["name=other"]), sweep / "file.yaml", 1.0)
