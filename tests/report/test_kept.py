import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from flray.cli.main import _show_sweep
from flray.records import directory
from flray.reporting import build
from flray.results import PROVENANCE, ResultSet, beside, digest, export, read_entries
from flray.results.costs import costs
from flray.results.export import export_runs, kept_results, read_export
from flray.results.load import load_folder
from flray.results.sweep import SweepResult, build_table
from flray.results.table import Table
from flray.results.verify import agreement
from tests.helpers import printed
from tests.messages import refused


def test_a_row_per_finished_run_and_the_same_table_from_it(sweep: Path, tmp_path: Path) -> None:
    directory.update(sweep / "trials" / "0008", status="running", sha256=None)
    path = tmp_path / "new" / "results.csv"
    assert export_runs(load_folder(sweep), path) == (7, 0, 1)
    frame = read_export(path)
    settings = ["arms.modules", "arms.data"]
    last = [*export.LAST, *PROVENANCE]
    assert list(frame) == ["suite", "algorithm", *settings, *export.MEASURED, *last]
    first = frame.iloc[0]
    assert list(first[:4]) == ["made", "fedskc", "none", "CIFAR-10"]
    assert list(first[["seed", "rounds", "bytes_up", "bytes_down"]]) == [0, 4, 4e6, 8e6]
    measured = list(first[["value", "own", "worst", "others", "seconds"]].astype(float))
    assert measured == pytest.approx([70.0, 70.0, 65.0, 70.0, 6.0])
    assert first["sha256"] == "ab" * 32 and first["torch"] == directory.versions()["torch"]
    assert (first["data"], first["origins"]) == ("digits-sklearn", "d real")
    made = build.report(path).table
    assert list(made.rows) == ["full CIFAR-10", "none CIFAR-10", "none CIFAR-100", "full CIFAR-100"]
    moved = build_table(kept_results(frame[list(frame)[::-1]]))  # by a spreadsheet
    words, others = ({frozenset(name.split()) for name in one.rows} for one in (moved, made))
    assert words == others
    best, second = made.rows["full CIFAR-10"][0], made.rows["none CIFAR-10"][0]
    assert best.mean == pytest.approx(82.0) and best.std == pytest.approx(2 * math.sqrt(2))
    assert second.mean == pytest.approx(71.0)
    found = {one.place: one.differences[0].mean for one in made.studies.each}
    assert found == pytest.approx({"CIFAR-10": -11.0, "CIFAR-100": 0.0})
    assert len(made.rows["full CIFAR-100"][0].values) == 1  # the run that has not finished


def test_settings_code_and_machine_are_kept_beside_the_rows(sweep: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    export_runs(load_folder(sweep), path)
    older = read_export(path).drop(columns=list(PROVENANCE)).iloc[:1]
    beside(path).unlink()
    older.to_csv(path, index=False)
    code = {"flray": {"flray": "f" * 64}, "versions": {"python": "3.11", "torch": "2.0"}}
    code["files"] = {"/home/someone/mine.py": "a" * 64}
    for trial in sorted(sweep.glob("trials/*")):
        settings = yaml.safe_load((trial / "config.yaml").read_text())
        settings["experiment"]["plugins"] = ["/home/someone/mine.py"]
        settings["experiment"]["data"]["folder"] = "/home/someone/images"
        settings["experiment"]["tracking"]["uri"] = "https://me:secret@host"
        (trial / "config.yaml").write_text(yaml.safe_dump(settings))
        cpu = {"model": "a CPU", "kinds": {"torch": "0" * 12}}
        directory.update(trial, code=code, cpu=cpu, source={"commit": "c" * 40, "user": "someone"})
    assert export_runs(load_folder(sweep), path) == (7, 1, 0)
    frame, entries = read_export(path), read_entries(path)
    assert frame.iloc[0][list(PROVENANCE)].tolist() == [""] * 4
    assert set(frame["commit"][1:]) == {"c" * 40}
    code["files"] = {"mine.py": "a" * 64}
    assert [entries[name] for name in set(frame["code"][1:])] == [code]
    assert [entries[name]["cpu"]["model"] for name in set(frame["machine"][1:])] == ["a CPU"]
    assert frame["settings"][1:].nunique() == 4 and len(entries) == 6
    settings = entries[frame["settings"].iloc[-1]]
    assert (settings["plugins"], settings["data"]["folder"]) == (["mine.py"], "images")
    assert not {"name", "seed", "output", "tracking", "callbacks"} & set(settings)
    assert settings["resources"].keys() == {"bits", "cpus_per_actor"}
    text = beside(path).read_text()
    assert "someone" not in text and "secret" not in text

    before = path.read_text()
    changed = text.replace("a CPU", "another")
    for content in (changed, "[]", text.replace(digest(code), "../x"), "{"):
        beside(path).write_text(content)
        refused(read_entries, path)
    beside(path).write_text(text)
    path.write_text(before.replace(digest(code), "../../x", 1))
    refused(read_export, path)


def test_tuned_settings_and_the_positive_class_are_kept(sweep: Path, tmp_path: Path) -> None:
    source = load_folder(sweep)
    for trial in source.trials[:2]:
        trial.tuned["local.lr"] = 0.123456789
    for trial in source.trials:
        trial.history["global/common/sensitivity"] = 0.5
        (trial.partition or {})["positive"] = "ill"
    export_runs(source, tmp_path / "kept.csv")
    frame = read_export(tmp_path / "kept.csv")
    assert frame["tuned.local.lr"].tolist() == ["0.123456789"] * 2 + [""] * 6
    table = build_table(kept_results(frame))
    untuned = build_table(kept_results(frame.drop(columns="tuned.local.lr")))
    assert list(table.rows) == list(untuned.rows)
    assert "tuned: none CIFAR-10 lr=0.1235" in table.notes
    assert frame["positive"].tolist() == ["ill"] * 8 and "positive class: ill" in table.notes


def test_differences_that_are_equal_stay_so(sweep: Path, tmp_path: Path) -> None:
    """One 24th at every seed, so that nothing varies and nothing can be tested."""
    source = load_folder(sweep)
    compared = [one for one in source.trials if one.setting["arms.data"] == "CIFAR-10"]
    pairs = itertools.product(compared[::2], range(4))
    source.trials = [replace(one, seed=seed, sha256="") for one, seed in pairs]
    for number, one in enumerate(source.trials):
        better = one.setting["arms.modules"] == "full"
        value = (5 + 2 * one.seed + better) / 24
        one.history = one.history.assign(**{one.metric: value})
        one.sha256 = f"{number:064d}"
    export_runs(source, tmp_path / "kept.csv")
    tables = build_table(source), build.report(tmp_path / "kept.csv").table
    (whole,), (kept,) = ([one.differences[0] for one in t.studies.each] for t in tables)
    assert (kept.std, kept.verdict) == (whole.std, whole.verdict) == (0.0, "")
    assert kept.mean == pytest.approx(whole.mean, rel=1e-12)


def test_a_kept_file_knows_the_looks_before_and_what_failed(sweep: Path, tmp_path: Path) -> None:
    """Two modules at seeds 0 and 1, then at 0 to 4, of which one fails: its own sweep, or the same file again."""

    def of(seeds: range, taken_over: range, failed: int = -1) -> ResultSet:
        source = load_folder(sweep)
        first = [one for one in source.trials if one.setting["arms.data"] == "CIFAR-10"]
        source.trials = [
            replace(
                one,
                seed=seed,
                sha256=f"{seed}{one.number[-1]}" * 32,
                taken_over="made/001/0001" if seed in taken_over else "",
                look=seed not in taken_over,
                status="failed" if (seed, one.number) == (failed, first[0].number) else "finished",
                failure="ValueError: no",
            )
            for one in (first[0], first[-1])
            for seed in seeds
        ]
        return source

    whole, grown = tmp_path / "whole.csv", tmp_path / "grown.csv"
    last = of(range(5), range(2), failed=3)
    export_runs(last, whole)
    export_runs(of(range(2), range(0)), grown)
    assert not {"look", "failed"} & set(read_export(grown).columns)
    assert export_runs(last, grown) == (5, 4, 1)
    kept = [kept_results(read_export(path)) for path in (whole, grown)]
    for table in map(build_table, (last, *kept)):
        (pair,) = table.studies.each[0].differences
        assert (pair.first_look, pair.seeds) == (2, 4)
        assert (pair.first_failed or pair.second_failed).startswith("1 of 5 seeds")
    grown.write_text(grown.read_text().replace(",3,", ",3 x,"))
    refused(read_export, grown)


KINDS = "until, places, stopped, failed, no number, domains, error, early, close"


@pytest.mark.parametrize("kind", KINDS.split(", "))
def test_a_kept_file_says_what_its_sweep_says(sweep: Path, tmp_path: Path, kind: str) -> None:
    """Seeds that a rule added are tested by it, places stay apart, and nothing disappears without a line."""
    rule = {"margin": 1.0, "alpha": 0.05, "at_least": 2, "at_most": 4}
    if kind in ("stopped", "failed"):
        directory.update(sweep / "trials" / "0008", status=kind, failure="ValueError: no")
    for trial in sweep.glob("trials/*") if kind == "domains" else ():
        held = json.loads((trial / "partition.json").read_text())
        for client, domain in zip(held["clients"], "ab", strict=True):
            client["domain"] = domain
        (trial / "partition.json").write_text(json.dumps(held))
    source = load_folder(sweep)
    source.config["paper"] = None
    source.config["sweep"] |= {"until": {"until": rule}.get(kind)}
    if kind == "places":
        source.config["sweep"]["places"] = ["partition.seed"]
        for trial in source.trials:
            trial.setting["partition.seed"] = trial.setting.pop("arms.data")[6:]  # 10 and 100
    for number, trial in enumerate(source.trials):
        if kind == "early":  # by experiment.stop, each after another round
            trial.history = trial.history[: 2 + number % 3]
        if kind == "close":  # settings that four digits do not keep apart
            trial.setting["local.lr"] = 0.1 + len(trial.setting.pop("arms.data")) / 1e6
    if kind == "no number":
        source.trials[-1].history["global/common/accuracy"] = math.nan
    if kind == "error":  # a measure that is no share, and less is better
        for number, trial in enumerate(source.trials):
            values = {"global/common/rmse": 3e-5 + number % 3 / 1e6, "global/local/rmse": 2.0}
            trial.history = trial.history[["round"]].assign(**values)
            trial.metric = "global/common/rmse"
    export_runs(source, tmp_path / "kept.csv")
    frame = read_export(tmp_path / "kept.csv")
    own, other = build_table(source), build_table(kept_results(frame))
    found, kept = own.studies, other.studies
    why = " (ValueError: no)" if kind == "failed" else "\n"  # it is not kept
    frames = [one.frame().replace(re.escape(why), "", regex=True) for one in (found, kept)]
    pd.testing.assert_frame_equal(*frames)
    assert found.left_out == kept.left_out
    said = [one.replace(why, "") for one in own.conclusions if "registered" not in one]
    assert said == other.conclusions
    assert (said == own.conclusions[: len(said)]) is (kind != "failed")
    gone = {"stopped": ["1 of 8 trials stopped early"]}
    gone["failed"] = ["trial (full CIFAR-100 seed=1) failed"]
    assert [one for one in other.notes if "trial" in one] == gone.get(kind, [])
    assert own.rows.keys() == other.rows.keys() and len(own.rows) == 4
    for label, row in other.rows.items():
        cells = zip(own.rows[label], own.columns, strict=True)
        same = [one.mean for one, at in cells if kind == "domains" or at.client == "avg"]
        assert [one.mean for one in row] == pytest.approx(same, nan_ok=True)
    lines = {"stopped": "stopped early", "no number": "no number at 1 of 2 seeds"}
    assert found.left_out == [f"CIFAR-100 full: {lines.get(kind)}, not compared"] * (kind in lines)
    if kind == "until":
        assert {one.first_look for study in kept.each for one in study.differences} == {2}
        mixed = build_table(kept_results(frame.assign(until=["", *frame["until"][1:]])))
        pair = mixed.studies.each[0].differences[0]
        assert (pair.first_look, pair.last_look) == (2, 0)
        frame.assign(until="{at_most: 1}").to_csv(tmp_path / "kept.csv", index=False)
        refused(read_export, tmp_path / "kept.csv")


def test_domains_have_the_mean_of_their_clients(sweep: Path, tmp_path: Path) -> None:
    for trial in sweep.glob("trials/*"):
        held = json.loads((trial / "partition.json").read_text())
        held["clients"][1]["domain"] = "e"
        held["fingerprints"] = {"data": "d" * 64, "partition": "e" * 64}
        (trial / "partition.json").write_text(json.dumps(held))
    export_runs(load_folder(sweep), tmp_path / "r.csv")
    first = read_export(tmp_path / "r.csv").iloc[0]
    assert first["domain/d"] == pytest.approx(75.0) and first["domain/e"] == pytest.approx(65.0)
    assert (first["data_sha256"], first["partition_sha256"]) == ("d" * 64, "e" * 64)


def test_what_is_no_kept_file_is_neither_read_nor_replaced(sweep: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    refused(export_runs, load_folder(sweep), other)
    assert other.read_text() == "a,b\n1,2\n"
    good = tmp_path / "good.csv"
    export_runs(load_folder(sweep), good)
    before = good.read_bytes()
    assert export_runs(load_folder(sweep), good) == (0, 8, 0) and good.read_bytes() == before


def test_values_for_scripts(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "create_sections", lambda *_: [])  # figures: test_page
    path = tmp_path / "r.csv"
    assert f"kept: 8 finished runs in {path}" in printed("report", str(sweep), "--keep", str(path))
    trial = str(sweep / "trials" / "0001")
    assert "kept: 1 finished run in" in printed("report", trial, "--keep", str(tmp_path / "1.csv"))
    values = json.loads(printed("report", str(sweep), "--json"))
    source = load_folder(sweep)
    table = build_table(source)
    assert values["conclusions"] == table.conclusions and values["title"] == table.title
    assert [row["name"] for row in values["rows"]] == list(table.rows)
    for shown, row in zip(values["rows"], table.rows.values(), strict=True):
        for cell, found in zip(shown["values"], row, strict=True):
            assert cell["seeds"] == {str(seed): value for seed, value in found.values.items()}
            assert cell["mean"] == found.mean and cell["best"] is found.best
    assert len(values["comparisons"]) == len(table.studies.frame())
    assert [one["label"] for one in values["costs"]] == [one.label for one in costs(source)]
    assert all(Path(file).exists() for file in values["files"])
    assert "82.00 ± 2.83" in printed("report", str(path), "--to", str(tmp_path / "out"))
    text = (tmp_path / "out" / "r.md").read_text(encoding="utf-8")
    assert "| full CIFAR-10 | 82.00 ± 2.83 |" in text
    kept = json.loads(printed("report", str(path), "--json"))
    assert kept["costs"] == kept["files"] == [] and kept["rows"]
    assert len(json.loads(printed("compare", str(sweep), str(sweep), "--json"))["values"]) == 4


def test_what_was_kept_is_never_lost_and_a_run_is_kept_once(sweep: Path, tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    first, second = load_folder(sweep), load_folder(sweep)
    first.trials, second.trials = first.trials[:2], second.trials[1:]
    assert export_runs(first, path) == (2, 0, 0)
    before = path.read_text().splitlines()
    assert export_runs(second, path) == (6, 1, 0)
    after = path.read_text().splitlines()
    assert (after[:3], len(after)) == (before, 9)
    for trial in second.trials:  # another sweep, which varies something else
        trial.setting = {"local.lr": 0.1, "=odd": "+name"}
    second.name = "other"
    assert export_runs(second, path) == (7, 0, 0)
    frame = read_export(path)
    assert len(frame) == 15 and frame["local.lr"].tolist() == [""] * 8 + ["0.1"] * 7
    assert frame["=odd"].tolist() == [""] * 8 + ["+name"] * 7
    assert frame["arms.data"].tolist()[8:] == [""] * 7
    assert export_runs(first, path) == (0, 2, 0)


def table_of(path: Path, *changes: dict[str, object]) -> Table:
    """Keep a row for each change of a first one and return the table of what is read."""
    columns = ["suite", "algorithm", "algorithm.mu", *export.MEASURED, *export.LAST]
    first = dict.fromkeys(columns, "")
    first |= {"algorithm": "fedavg", "metric": "global/common/accuracy", "data": "mnist"}
    numbers = {"seed": 0, "rounds": 5, "value": 50.0, "own": 50.0, "others": 50.0, "worst": 40.0}
    base = first | numbers | {"sha256": "ab" * 32, "protocol": "last round"}
    pd.DataFrame([base | change for change in changes]).to_csv(path, index=False)
    return build_table(kept_results(read_export(path)))


def test_a_row_is_named_whole_and_what_differs_is_not_pooled(tmp_path: Path) -> None:
    path, prox = tmp_path / "r.csv", {"algorithm": "fedprox"}
    mu = prox | {"algorithm.mu": 0.1}
    made = table_of(path, {}, {"seed": 1}, mu, mu | {"seed": 1, "value": 60.0})
    found = {label: row[0].values for label, row in made.rows.items()}
    assert found == {"fedprox mu=0.1": {0: 50.0, 1: 60.0}, "fedavg": {0: 50.0, 1: 50.0}}
    made = table_of(path, {}, {"seed": 1, "rounds": 2}, prox, prox | {"data": "svhn"})
    several = {"fedavg mnist rounds=5", "fedavg mnist rounds=2"}
    several |= {"fedprox mnist rounds=5", "fedprox svhn rounds=5"}
    assert set(made.rows) == several and "rounds: 5; 2" in made.notes
    again = table_of(path, {"suite": "a"}, {"suite": "b", "value": 52.0})
    assert again.title.startswith("a and b: ") and again.rows["fedavg"][0].values == {0: 52.0}
    assert "kept more than once, of which the last counts: fedavg seed 0" in again.notes
    one, other = ({"suite": name, "settings": name * 64} for name in "ab")
    apart = table_of(path, one, other | {"value": 52.0}, one | {"seed": 1})
    found = {label: row[0].values for label, row in apart.rows.items()}
    assert found == {"suite=b": {0: 52.0}, "suite=a": {0: 50.0, 1: 50.0}}


def test_runs_that_are_the_kept_ones_are_counted(sweep: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    source = load_folder(sweep)
    export_runs(source, path)
    assert agreement(source, path) == f"8 of 8 runs are the ones that are kept (SHA-256): {path}"
    directory.update(sweep / "trials" / "0003", sha256="cd" * 32)
    other = agreement(load_folder(sweep), path)
    assert other.startswith("7 of 8 runs are the ones that are kept")
    assert "its code is not recorded" in other
    for trial in source.trials:
        trial.fingerprints["data"] = "ef" * 32
    assert agreement(source, path) == ""  # of other data: none that is kept


def test_rows_that_another_report_keeps_meanwhile_stay(
    source: ResultSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "kept.csv", replace(source, trials=source.trials[4:])

    def meanwhile(file: Path) -> object:
        monkeypatch.undo()
        export_runs(other, file)
        return read_entries(file)

    monkeypatch.setattr(export, "read_entries", meanwhile)
    assert export_runs(replace(source, trials=source.trials[:4]), path) == (4, 0, 0)
    assert len(read_export(path)) == 8


def test_a_sweep_beside_another_table_has_ended_well(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.results.csv").write_text("a,b\n1,2\n")
    _show_sweep(SweepResult(sweep), True, file=tmp_path / "x.yaml")
    assert "x.results.csv: no kept results: without the columns" in capsys.readouterr().out


def test_a_damaged_kept_file_is_one_line(sweep: Path, tmp_path: Path) -> None:
    export_runs(load_folder(sweep), path := tmp_path / "kept.csv")
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    cells = ("seed", "0.5"), ("seed", "inf"), ("rounds", "inf"), ("tuned.local.lr", "[")
    for changed in (frame.iloc[:0], *(frame.assign(**{name: cell}) for name, cell in cells)):
        changed.to_csv(path, index=False)
        refused(build.report, path)
