from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from flray import cli, rundir
from flray.errors import DataError, FlrayError
from flray.report import kept
from flray.report.source import from_folder


def test_a_row_per_finished_run_and_the_same_table_from_it(sweep: Path, tmp_path: Path) -> None:
    rundir.update(sweep / "trials" / "0008", status="running", sha256=None)
    path = tmp_path / "new" / "results.csv"
    assert kept.keep(from_folder(sweep), path) == (7, 1)
    frame = kept.read(path)
    assert list(frame.columns) == [
        "suite", "algorithm", "arms.modules", "arms.data", *kept.MEASURED, *kept.LAST]
    first = frame.iloc[0]
    assert (first["suite"], first["algorithm"], first["arms.modules"], first["seed"], first["rounds"]) \
        == ("made", "fedskc", "none", 0, 4)
    assert first["value"] == pytest.approx(70.0) and first["own"] == pytest.approx(70.0)
    assert first["worst"] == pytest.approx(65.0) and first["others"] == pytest.approx(70.0)
    assert (first["bytes_up"], first["bytes_down"], first["seconds"]) == (4_000_000, 8_000_000, 6.0)
    assert first["sha256"] == "ab" * 32 and first["torch"] == rundir.versions()["torch"]
    assert (first["data"], first["origins"]) == ("digits-sklearn", "d real")
    made = kept.table(frame)
    assert list(made.rows) == ["full CIFAR-10", "none CIFAR-10", "none CIFAR-100", "full CIFAR-100"]
    best, second = made.rows["full CIFAR-10"][0], made.rows["none CIFAR-10"][0]
    assert best.mean == pytest.approx(82.0) and best.std == pytest.approx(2 * math.sqrt(2)) and best.best
    assert second.mean == pytest.approx(71.0) and not second.best
    assert made.comparisons[0][1].difference == pytest.approx(11.0)
    assert len(made.rows["full CIFAR-100"][0].values) == 1  # the run that has not finished


def test_domains_have_the_mean_of_their_clients(sweep: Path, tmp_path: Path) -> None:
    for trial in sweep.glob("trials/*"):
        held = json.loads((trial / "partition.json").read_text())
        held["clients"][1]["domain"] = "e"
        held["fingerprints"] = {"data": "d" * 64, "partition": "e" * 64}
        (trial / "partition.json").write_text(json.dumps(held))
    kept.keep(from_folder(sweep), tmp_path / "r.csv")
    first = kept.read(tmp_path / "r.csv").iloc[0]
    assert first["domain/d"] == pytest.approx(75.0) and first["domain/e"] == pytest.approx(65.0)
    assert (first["data_sha256"], first["partition_sha256"]) == ("d" * 64, "e" * 64)


def test_fingerprints_of_earlier_versions_lie_with_the_checkpoint(sweep: Path) -> None:
    for round_ in (3, 4):
        place = sweep / "tune" / "001" / "0001" / f"checkpoint_{round_}"
        place.mkdir(parents=True)
        (place / f"round-{round_:06d}.json").write_text(json.dumps({"data": f"{round_}", "partition": "p"}))
    trials = from_folder(sweep).trials
    assert trials[0].fingerprints == {"data": "4", "partition": "p"} and trials[1].fingerprints == {}


def test_what_is_no_kept_file_is_neither_read_nor_replaced(sweep: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="without the columns suite"):
        kept.keep(from_folder(sweep), other)
    assert other.read_text() == "a,b\n1,2\n"
    good = tmp_path / "good.csv"
    kept.keep(from_folder(sweep), good)
    kept.keep(from_folder(sweep), good)  # its own file it replaces
    good.write_text(good.read_text().replace("ab" * 32, "ab" * 31, 1))
    with pytest.raises(DataError, match="64 hexadecimal digits"):
        kept.read(good)
    with pytest.raises(DataError, match="no kept results"):
        kept.read(tmp_path / "nowhere.csv")


def test_nothing_finished_is_nothing_to_keep(sweep: Path, tmp_path: Path) -> None:
    for trial in sweep.glob("trials/*"):
        rundir.update(trial, status="running")
    with pytest.raises(FlrayError, match="no run has finished"):
        kept.keep(from_folder(sweep), tmp_path / "r.csv")


def test_the_command(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.csv"
    assert cli.invoke(["report", str(sweep), "--keep", str(path)]) == 0
    assert f"kept: 8 finished runs in {path}" in capsys.readouterr().out
    assert cli.invoke(["report", str(path), "--to", str(tmp_path / "out")]) == 0
    assert "82.00 ± 2.83" in capsys.readouterr().out
    assert "| full CIFAR-10 | **82.00 ± 2.83** |" in (tmp_path / "out" / "r.md").read_text(encoding="utf-8")
