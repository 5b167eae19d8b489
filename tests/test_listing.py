from __future__ import annotations

from pathlib import Path

import pytest

from flray.listing import listed, show

SUITE = """
paper: {name: fedskc, table: table5, title: "made up"}
experiment: {data: DATA, model: linear, algorithm: fedavg, rounds: 3}
arms: {method: {fedavg: {}, fedprox: {algorithm: fedprox}}}
sweep: {seeds: [0, 1], skip: [{method: [fedprox]}]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "search_spaces" / "papers" / "fedskc"
    place.mkdir(parents=True)
    for table, data in ((1, "digits-sklearn"), (2, "usps"), (10, "nowhere")):
        (place / f"table{table}.yaml").write_text(SUITE.replace("DATA", data))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path / "empty"))


def test_suites_with_their_runs_data_and_what_is_missing() -> None:
    there, absent, unknown = listed()
    assert (there.name, there.title, there.runs, there.data) == ("fedskc/table1", "made up", 2, ("digits-sklearn",))
    assert there.problem == "" and there.hours is None
    assert absent.problem == "without data: usps" and "usps" in absent.absent["usps"]
    assert unknown.problem == "unknown here: data nowhere" and unknown.runs == 2


def test_hours_are_estimated_where_it_can_be_run() -> None:
    there, absent, _ = listed(timed=True)
    assert there.hours is not None and 0 < there.hours < 0.1
    assert absent.hours is None


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show("fedskc/table1", False)
    text = capsys.readouterr().out
    assert "fedskc/table1" in text and "fedskc/table2" not in text and "yes" in text
