"""The commands around runs: ls, compare, rm, and JSON for scripts."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import flray
from flray.cli.main import invoke
from flray.records import directory
from flray.records.journal import JOURNAL, Journal
from flray.results.result_set import ALIKE_NOTE
from tests.helpers import printed, small
from tests.messages import mistyped

PARTITION = {"name": "dirichlet", "clients": 3, "alpha": 5.0}
SMALL = small(name="small", rounds=2, subset=60, partition=PARTITION)


@pytest.fixture
def runs(tmp_cwd: Path) -> list[Path]:
    """Two runs that differ in the learning rate."""
    return [flray.run({"experiment": {**SMALL, "local": {"lr": lr}}}).folder for lr in (0.01, 0.1)]


def shown(*arguments: str) -> Any:
    return json.loads(printed(*arguments, "--json"))


def test_ls_compare_and_rm(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = shown("ls")
    assert [row["run"] for row in rows] == ["small/001", "small/002"]
    assert rows[0]["status"] == "finished" and rows[0]["done"] == "2 of 2 rounds"
    assert rows[0]["what"] == "fedavg on digits-sklearn"
    value, metric = rows[1]["value"].split()
    result = flray.resume(runs[1])
    assert metric == result.metric
    assert float(value) == pytest.approx(result.metrics[metric], abs=1e-4)

    found = shown("compare", "small/001", "small/002")
    assert found["settings"] == [{"setting": "local.lr", "small/001": "0.01", "small/002": "0.1"}]
    row = next(row for row in found["values"] if row["value"] == "global/local/accuracy")
    low, _, high = row["95 % interval"].removesuffix(" (n=3)").split()
    assert float(low) <= float(row["difference"]) <= float(high)
    assert "small/002 less small/001, over the clients" in printed(
        "compare", "small/001", "small/002"
    )

    directory.update(runs[0], status="running")
    assert shown("ls")[0]["status"] == "running"
    before = time.time() - 20 * 60
    os.utime(runs[0] / JOURNAL, (before, before))
    assert shown("ls")[0]["status"] == "running, but silent for 20 min"

    monkeypatch.setattr("typer.confirm", lambda question: False)
    assert "nothing was removed" in printed("rm", "small/001") and runs[0].is_dir()
    mistyped("rm", "small", "--yes")
    with Journal(runs[0] / JOURNAL):
        mistyped("rm", "small/001", "--yes")
    assert runs[0].is_dir()
    assert invoke(["rm", "small/001", "--yes"]) == 0
    assert [row["run"] for row in shown("ls")] == ["small/002"]
    assert not list(runs[0].parent.glob(".*"))


def test_a_global_model_is_compared_with_clients_own_ones_on_the_same_data(tmp_cwd: Path) -> None:
    runs = [{"experiment": {**SMALL, "algorithm": name}} for name in ("fedavg", "local")]
    one, other = (flray.run(run).metrics for run in runs)
    found = shown("compare", "small/001", "small/002")
    row = found["values"][0]
    assert row["value"] == "global/local/accuracy, personal/local/accuracy"
    difference = other["personal/local/accuracy"] - one["global/local/accuracy"]
    assert one["global/local/accuracy"] != pytest.approx(one["global/common/accuracy"], abs=1e-3)
    assert float(row["difference"]) == pytest.approx(difference, abs=1e-4)
    assert row["95 % interval"].endswith("(n=3)")
    assert (
        "personal/local/accuracy" in (out := printed("compare", "small/002", "small/001"))
        and ALIKE_NOTE in out
    )


def test_watching_goes_on_until_it_is_interrupted(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            directory.update(runs[0], status="interrupted")  # by its own process, meanwhile
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("flray.cli.runs.time.sleep", sleep)
    out = printed("ls", "--watch")
    assert "small/002" in out and "interrupted" in out and len(looks) == 3
    mistyped("ls", "--watch", "--json")


def test_only_runs_are_removed_and_of_a_link_the_link(
    tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_cwd / "project"
    project.mkdir()
    (project / "thesis.tex").write_text("years of work")
    for content in ('{"name": "web"}', '{"uid": "a", "status": "ready"}'):
        (project / "run.json").write_text(content)
        mistyped("rm", "project", "--yes")
    assert (project / "thesis.tex").read_text() == "years of work"
    run = flray.run({"experiment": SMALL}).folder
    Path("link").symlink_to(run)
    assert invoke(["rm", "link", "--yes"]) == 0
    assert not Path("link").is_symlink() and (run / JOURNAL).exists()
    monkeypatch.chdir(run)
    assert printed("rm", ".", "--yes").startswith(f"removed {tmp_cwd / run}: ")
    assert [path.name for path in (tmp_cwd / run).parent.iterdir()] == []


def test_json_for_scripts(tmp_cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_cwd / "one.yaml").write_text(json.dumps({"experiment": SMALL}))
    made = shown("run", "one.yaml")
    assert made["value"] == made["values"][made["metric"]] and len(made["sha256"]) == 64
    assert shown("resume", "small")["sha256"] == made["sha256"]
    space = {"local.lr": {"grid": [0.1, 0.2]}}
    (tmp_cwd / "two.yaml").write_text(json.dumps({"experiment": SMALL, "space": space}))
    planned = shown("tune", "two.yaml", "--plan")
    assert [row["number"] for row in planned] == ["0001", "0002"]
    assert invoke(["list", "nothing"]) == 2
    kinds = capsys.readouterr().err.rpartition("one of ")[2].split(", ")
    assert len(kinds) == len(set(kinds)) > 8
    methods = shown("list", "algorithms")
    assert {"fedavg", "fedskc"} <= {row["name"] for row in methods}
    assert shown("list", "algorithms", "fedprox")[0]["option"] == "mu"
    assert {row["name"] for row in shown("data", "list")} >= {"digits-sklearn", "usps"}
    assert "global/common/MEASURE" in shown("list", "metrics")
    suites = shown("list", "papers", "fedskc/local")
    assert suites[0]["name"] == "fedskc/local"
