"""Rows of kept results are run again: each difference is named, and nothing that a kept file names is followed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import flray
from flray.cli import main
from flray.config import yaml_files
from flray.config.experiment import Experiment
from flray.process import InterruptedRunError
from flray.results import PROVENANCE, beside, digest, entries_text, read_entries
from flray.results.export import export_runs, read_export, records
from flray.results.load import load_folder
from flray.results.verify import Verdict, compare, experiment_of, verify
from tests.helpers import StopAfter, printed, small
from tests.messages import refused

Edit = Callable[..., Path]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kept file of three runs of two rounds."""
    folder = tmp_path_factory.mktemp("kept")
    path = folder / "kept.results.csv"
    for seed in range(3):
        settings = small(rounds=2, seed=seed, output=str(folder / "runs"))
        export_runs(load_folder(flray.run({"experiment": settings}).folder), path)
    return path


def test_a_small_number_is_compared_by_its_digits(runs: Path) -> None:
    row = {"label": "", **records(read_export(runs))[0]}
    older = (0.0012, 0.0012345, "same")  # an older flray kept four decimals
    for kept, here, kind in (3.2e-5, 3.3e-5, "unexplained"), (3.2e-5, 3.2e-5, "same"), older:
        assert compare({**row, "value": kept}, {**row, "value": here}, {}, {}).kind == kind


@pytest.fixture
def edited(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """A function that writes the file with other cells in its first row, and entries of another content."""
    monkeypatch.chdir(tmp_path)

    def edit(change: Any = None, column: str = "", **cells: Any) -> Path:
        frame = pd.read_csv(runs, dtype=str, keep_default_na=False)
        entries = dict(read_entries(runs))
        if change is not None:
            entry = json.loads(json.dumps(entries[frame.loc[0, column]]))
            change(entry)
            cells[column] = digest(entry)
            entries[digest(entry)] = entry
        for name, value in cells.items():
            frame.loc[0, name] = value
        path = tmp_path / runs.name
        frame.to_csv(path, index=False)
        beside(path).write_bytes(entries_text(entries))
        return path

    return edit


@pytest.fixture
def as_kept(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run that is made again be a copy of the kept one, which takes no time."""

    def ran(experiment: Experiment, _: object) -> Path:
        (kept,) = runs.parent.glob(f"runs/*/{experiment.seed + 1:03d}")
        return Path(shutil.copytree(kept, f"runs/{experiment.name}/001"))

    monkeypatch.setattr("flray.results.verify._run", ran)


def first(path: Path) -> Verdict:
    verdict = verify(path, 1)[0]
    assert verdict.row == "fedavg seed 0"
    assert not Path("runs").exists() or not list(Path("runs").iterdir())
    return verdict


def test_the_same_bits_and_evenly_spread_rows(edited: Edit) -> None:
    path, told = edited(), list[Verdict]()
    assert verify(path, tell=told.append) == told
    rows = [f"fedavg seed {seed}" for seed in range(3)]
    assert [(one.row, one.kind) for one in told] == [(row, "same") for row in rows]
    assert [one.row for one in verify(path, 2)] == rows[:2] and len(verify(path, 5)) == 3


@pytest.mark.usefixtures("as_kept")
@pytest.mark.parametrize(
    ("cells", "words"),
    [
        *(({"value": "99.5"}, "value 99.5, here"), ({"bytes_up": "1"}, "bytes_up 1, here")),
        ({"rounds": "3"}, "rounds 3, here 2"),
        ({"data": "mnist"}, "data mnist, here digits-sklearn"),
        ({"algorithm": "fedprox"}, "algorithm fedprox, here fedavg"),
        ({"data_sha256": "ab" * 32}, "data_sha256 abababababab, here "),
        ({"partition_sha256": "ab" * 32}, "partition_sha256 abababababab, here "),
    ],
)
def test_an_edited_cell_is_found(cells: dict[str, str], words: str, edited: Edit) -> None:
    verdict = verify(edited(**cells), 1)[0]
    assert verdict.kind == "unexplained" and verdict.text.startswith(words)
    assert verdict.text.endswith("of the same bits: the row is not as it was kept")


def with_rate(path: Path, text: str) -> Path:
    """Give a kept file a column of learning rates."""
    rows = path.read_text().replace("algorithm,seed", "algorithm,local.lr,seed", 1)
    path.write_text(rows.replace("fedavg,", f"fedavg,{text},"))
    return path


@pytest.mark.usefixtures("as_kept")
def test_edited_settings_and_causes_of_other_bits_are_named(edited: Edit) -> None:
    assert verify(with_rate(edited(), "0.7"), 1)[0].text.startswith("local.lr 0.7, here ")
    other = {"sha256": "ab" * 32}
    assert first(edited(**other)).kind == "unexplained"
    assert "nothing that is recorded explains" in first(edited(**other)).text

    def cpu(entry: dict[str, Any]) -> None:
        entry["cpu"]["kinds"]["mkl"] = "d" * 12
        entry["cpu"]["model"] = "a 386"

    for change, column, words in (
        (lambda e: e["flray"].update(flray="c" * 64), "code", f"flray {'c' * 12}, here "),
        (lambda e: e["versions"].update(torch="1.0"), "code", "torch 1.0, here "),
        (cpu, "machine", "kind of CPU a 386 ("),
        (lambda e: e.update(gpus=[{"model": "a GPU"}]), "machine", "began on a GPU"),
    ):
        verdict = first(edited(change, column, **other))
        assert verdict.kind == "other" and words in verdict.text
        assert first(edited(change, column)).kind == "same"
    verdict = first(edited(**other, data_sha256="e" * 64))
    assert verdict.kind == "other" and f"data_sha256 {'e' * 12}, here " in verdict.text


@pytest.mark.parametrize(("bits", "kind"), [("fast", "other"), ("native", "unexplained")])
def test_fast_bits_explain_other_ones_on_a_gpu(runs: Path, bits: str, kind: str) -> None:
    row, entries = {"label": "", **records(read_export(runs))[0]}, read_entries(runs)
    for gpus, found in (([{"model": "a GPU"}], kind), ([], "unexplained")):
        own: dict[str, Any] = json.loads(json.dumps(entries))
        own[row["settings"]]["resources"]["bits"] = bits
        own[row["machine"]]["gpus"] = gpus
        assert compare({**row, "sha256": "ab" * 32}, row, own, own).kind == found


def test_rows_of_an_older_flray_say_what_is_not_recorded(edited: Edit) -> None:
    path = edited(sha256="ab" * 32, torch="1.0")
    frame = pd.read_csv(path, dtype=str, keep_default_na=False).drop(columns=[*PROVENANCE])
    frame.to_csv(path, index=False)
    refused(verify, path)
    content = {"experiment": small(rounds=9), "sweep": {"seeds": [0, 1, 2]}}
    path.with_name("kept.yaml").write_text(yaml.safe_dump(content))
    one, *others = verify(path)
    assert one.kind == "other" and "torch 1.0, here " in one.text
    assert one.text.endswith("its settings and code and kind of CPU are not recorded")
    assert {other.kind for other in others} == {"same"}


def test_nothing_that_a_kept_file_names_is_followed(edited: Edit, tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("raise SystemExit('executed')")

    def leading_away(entry: dict[str, Any]) -> None:
        entry |= {"output": str(tmp_path / "elsewhere"), "name": "../../away"}
        entry["tracking"] = {"uri": f"sqlite:///{tmp_path}/tracked.db"}
        entry["callbacks"] = ["tensorboard"]

    assert first(edited(leading_away, "settings")).kind == "same"
    assert not (tmp_path / "elsewhere").exists() and not (tmp_path / "tracked.db").exists()
    path = edited(lambda entry: entry.update(plugins=[str(planted)]), "settings")
    refused(verify, path, 1)
    planted.write_text("")
    assert verify(path, 1, [f"plugins=[{planted}]"])[0].kind == "same"
    older = pd.read_csv(path, dtype=str, keep_default_na=False).drop(columns=[*PROVENANCE])
    older.to_csv(path, index=False)
    content = {"experiment": small(plugins=[str(planted)])}
    path.with_name("kept.yaml").write_text(yaml.safe_dump(content))
    refused(verify, path, 1)
    refused(verify, edited(), 1, ["output=s3://bucket/runs"])


@pytest.mark.usefixtures("as_kept")
def test_damaged_entries_are_one_line(edited: Edit) -> None:
    for change, column in (
        (lambda entry: entry.update(rounds=-1), "settings"),
        (lambda entry: entry.update(versions=3), "code"),
        (lambda entry: entry.update(cpu={"kinds": [1]}), "machine"),
    ):
        refused(verify, edited(change, column, sha256="ab" * 32), 1)
    for cells in (*({"seed": one} for one in ("0.5", "-1", "")), {"rounds": "much"}):
        refused(verify, edited(**cells), 1)
    assert verify(edited(metric="none"), 1)[0].kind == "unexplained"
    refused(verify, with_rate(edited(), "["), 1)
    path = edited()
    beside(path).unlink()
    refused(verify, path)


KILLED = """
import os, signal, sys
from pathlib import Path
from flray.results.verify import verify
from tests.helpers import StopAfter
class Kill(StopAfter):
    def round(self, finished, metric):
        if finished.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
verify(Path(sys.argv[1]), 1, progress=Kill(1))
"""


@pytest.mark.slow
def test_a_killed_call_is_continued_by_the_next(edited: Edit) -> None:
    path = edited()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", KILLED, str(path)]
    done = subprocess.run(command, env=environment, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(Path("runs").glob("verify-*/001/run.json"))) == 1
    assert type(refused(verify, path, 1, progress=StopAfter(2))) is InterruptedRunError
    assert len(list(Path("runs").glob("verify-*/*"))) == 1 and first(path).kind == "same"


def test_rows_of_the_same_settings_and_other_data_are_one_run(edited: Edit) -> None:
    path = edited()
    frame = pd.read_csv(path, dtype=str, keep_default_na=False).iloc[[0, 0]]
    frame["data_sha256"] = [frame["data_sha256"].iloc[0], "0" * 64]
    frame.to_csv(path, index=False)
    assert [verdict.kind for verdict in verify(path)] == ["same", "unexplained"]
    assert not list(Path("runs").iterdir())


def test_the_command_and_its_exit_codes(edited: Edit, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed("verify", str(edited()), "--rows", "1")
    assert "fedavg seed 0: the same bits" in out and "\n1 row: 1 with the same" in out
    assert main.invoke(["verify", str(edited(value="99.5")), "--rows", "1", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["row"], found["kind"]) == ("fedavg seed 0", "unexplained")
    other = edited(sha256="ab" * 32, data_sha256="e" * 64)
    assert main.invoke(["verify", str(other), "--rows", "1"]) == 3
    assert main.invoke(["verify", "nowhere.csv"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_run_that_was_left_is_not_taken_for_one_of_another_folder() -> None:
    path = yaml_files.locate("quickstart").with_suffix(".results.csv")
    row, entries = records(read_export(path))[0], read_entries(path)
    data = [[f"data={{name: folder, path: {place}/photos}}"] for place in ("/a", "/b", "/b")]
    one, other, same = (experiment_of(path, row, entries, given).name for given in data)
    assert one != other == same


def test_rows_that_come_with_flray_name_settings_that_can_be_run() -> None:
    files = [*yaml_files.folder().rglob("*.results.csv")]
    assert files
    for path in files:
        rows = records(read_export(path))
        every = [experiment_of(path, row, read_entries(path), []) for row in rows]
        assert len({one.name for one in every}) == len(rows)
        if path.name == "tuned.results.csv":  # settings were chosen on validation samples
            assert {one.evaluation.validation for one in every} == {0.2}
