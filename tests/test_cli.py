"""What a person types and sees: lists, schema, partitions, runs, the commands around them; and the same from Python."""

import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from mlflow import MlflowClient

import flray
from flray import registry
from flray.cli.display import _course, print_json
from flray.cli.main import app
from flray.cli.tables import Suite, list_suites, show_list, show_papers
from flray.config.arms import setting_label
from flray.config.schema import schema
from flray.metrics import MEASURES_IN_WORDS, VIEWS, VIEWS_IN_WORDS, is_test, is_validation
from flray.records import JOURNAL, directory, read_events
from flray.results import ALIKE_NOTE
from flray.tasks.classification import Binary, Classification, FewShot
from flray.tasks.multi_output import MultiLabel, Regression, Segmentation
from tests.helpers import INLINE, Settings, printed, small, told, written
from tests.messages import mistyped, refused


@pytest.fixture
def file(tmp_cwd: Path, digits: Settings) -> str:
    return written({**digits, **INLINE, "rounds": 2})


@pytest.mark.parametrize("kind", sorted(registry.ALL))
def test_lists_name_everything(kind: str) -> None:
    shown = printed("list", kind)
    assert all(name in shown for name in registry.ALL[kind].names())


def test_an_algorithm_is_listed_with_defaults_and_sources() -> None:
    shown = " ".join(printed("list", "algorithms", "fedprox").split())
    assert "mu" in shown and "0.01" in shown and "Table VII" in shown and "number >= 0" in shown


def test_a_partition_has_its_own_seed() -> None:
    assert [row["option"] for row in shown("list", "partitions", "iid")] == ["clients", "seed"]
    assert setting_label({"algorithm.mu": 0.1, "partition.seed": 3}) == "mu=0.1 partition.seed=3"


def test_misspelt_names_are_answered_with_the_nearest(tmp_cwd: Path) -> None:
    for line in ("list algoritms", "list algorithms fedprx", "data get digit5-local"):
        mistyped(*line.split())


def test_the_schema_describes_every_component_with_its_options() -> None:
    document = schema()
    text = json.dumps(document)
    for kind, registered in registry.ALL.items():
        for name in registered.names():
            assert f'"const": "{name}"' in text or kind == "tasks"
    tasks = document["$defs"]["DatasetChoice"]["anyOf"]
    (table,) = [form for form in tasks if "table" in str(form.get("properties", {}).get("name"))]
    assert {"regression", "multi-label"} < set(table["properties"]["task"]["enum"])
    forms = document["$defs"]["AlgorithmChoice"]["anyOf"]
    names = [form.get("properties", {}).get("name", {}).get("const") for form in forms]
    prox = forms[names.index("fedprox")]
    assert prox["properties"]["mu"]["default"] == 0.01 and prox["additionalProperties"] is False
    parts = {"base", "experiment", "arms", "space", "sweep", "paper"}
    assert set(document["$defs"]["File"]["properties"]) == parts
    assert set(document["$defs"]["Local"]["properties"]) >= {"lr", "epochs", "batch_size"}


def test_a_plan_of_what_optuna_will_suggest_says_so(file: str) -> None:
    space = "space={local.lr: {loguniform: [0.01, 1]}}"
    typed = ("sweep.search=optuna", "sweep.samples=5", "sweep.seeds=[0, 1]", space)
    assert "10 trials, none of which is known yet: " in printed("tune", file, "--plan", *typed)


def test_a_run_ends_with_table_digest_and_folder(file: str, tmp_cwd: Path, store: str) -> None:
    """And MLflow holds its parameters, metrics, tags and figures."""
    settings = ["algorithm={name: fedprox, mu: 0.5}", "tracking.experiment=seen"]
    shown = printed("run", file, *settings, f"tracking.uri={store}")
    folder = tmp_cwd / "runs/digits/001"
    identity = json.loads((folder / "run.json").read_text())
    assert identity["status"] == "finished" and f"model SHA-256: {identity['sha256']}" in shown
    assert "run: runs/digits/001" in shown and "mlflow ui --backend-store-uri sqlite:///" in shown
    assert "round 2/2" in shown and "global/common" in shown
    speed = r"\n[\d.e-]+ s per round, [\d,.]+ training samples per second, at most [\d,]+ MiB"
    assert re.search(f"{speed} in one", shown)
    figures = {f"figures/{name}.png" for name in ("curves", "clients", "partition")}
    assert {f"figures/{path.name}" for path in (folder / "figures").iterdir()} == figures
    client = MlflowClient(tracking_uri=store)
    (run,) = client.search_runs([client.get_experiment_by_name("seen").experiment_id])
    wanted = {"algorithm.name": "fedprox", "algorithm.mu": "0.5", "local.momentum": "0.0"}
    assert wanted.items() <= run.data.params.items()
    assert run.data.tags["model.sha256"] == identity["sha256"]
    assert run.data.tags["version.torch"] and len(run.data.tags["partition.fingerprint"]) == 64
    accuracy = flray.resume(folder).metrics["global/common/accuracy"]
    assert run.data.metrics["global/common/accuracy"] == accuracy
    kept = [*client.list_artifacts(run.info.run_id)]
    kept += client.list_artifacts(run.info.run_id, "figures")
    assert {"config.yaml", *figures} <= {one.path for one in kept}


def test_python_gives_a_history(file: str, tmp_cwd: Path) -> None:
    result = flray.run(file, rounds=3, **{"local.lr": 0.1})
    assert list(result.history["round"]) == [1, 2, 3] and result.experiment.local.lr == 0.1
    assert result.history["global/common/accuracy"].between(0, 1).all()
    assert result.metrics["time/round"] > 0
    assert 0 < result.metrics["system/server/cpu_utilization_percentage"] < 400
    assert 0 < result.metrics["system/system_memory_usage_percentage"] <= 100
    assert not any(name.startswith("system/actor") for name in result.metrics), "it is this process"
    assert (result.history["train/samples"] == 4 * 96).all()  # four clients, one epoch
    seen = result.history["time/samples_per_second"] * result.history["time/train"]
    assert seen.to_numpy() == pytest.approx(4 * 96)
    again = flray.run(result.folder / "config.yaml")  # the resolved file
    assert again.sha256 == result.sha256
    assert flray.run(file, ["local.lr=0.1", "rounds=3", "seed=1"]).sha256 != result.sha256


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *path, name)


def test_every_help_text_ends_with_an_example_of_the_command() -> None:
    for path in commands(typer.main.get_command(app)):
        example = " ".join(printed(*path, "--help").split()).rsplit("Example: ", 1)[1]
        assert example.startswith(" ".join(["flray", *path]))


def test_version_and_an_unknown_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed("--version") == f"flray {metadata.version('flray')}\n"
    mistyped("runn")

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert printed("--version") == "flray from source, not installed\n"


DIGITS = "data: digits-sklearn, model: linear, tracking: {uri: null}"
SUITE = """
paper: {name: fedskc, table: table5, title: "made up"}
experiment: {data: DATA, model: linear, algorithm: fedavg, rounds: 3}
arms: {method: {fedavg: {}, fedprox: {algorithm: fedprox}}}
sweep: {seeds: [0, 1], skip: [{method: [fedprox]}]}
"""


@pytest.fixture
def suite_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "search_spaces" / "papers" / "fedskc"
    place.mkdir(parents=True)
    given = "{name: folder, path: PATH}".replace("PATH", str(tmp_path))
    every = (1, "digits-sklearn"), (2, "usps"), (3, "eeg"), (4, given), (10, "nowhere")
    for number, data in (*every, (11, "{name: folder, path: /away}")):
        (place / f"table{number}.yaml").write_text(SUITE.replace("DATA", data))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path / "empty"))


@pytest.mark.usefixtures("suite_files")
def test_suites_with_their_runs_data_and_missing_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.datasets.load()
    monkeypatch.setitem(registry.datasets._entries, "eeg", pytest.fail)  # it would download
    refused(show_papers, "nope")
    refused(show_list, "fedavg", None)
    show_papers("fedskc/table1")
    text = capsys.readouterr().out
    assert "fedskc/table1" in text and "yes" in text and "fedskc/table2" not in text
    there, absent, fetched, given, unknown, away = list_suites()
    assert (there.name, there.title, there.runs) == ("fedskc/table1", "made up", 2)
    assert there.data == ("digits-sklearn",) and there.problem == "" and there.availability == "yes"
    assert absent.problem == "without data: usps" and "usps" in absent.absent["usps"]
    assert unknown.problem == "without data: nowhere" and unknown.runs == 2
    assert (absent.availability, unknown.availability) == ("no", "no")
    assert fetched.absent == {"eeg": "eeg: pip install 'flray[eeg]'"} and given.absent == {}
    assert away.absent == {"folder": "folder: /away is not on this machine"}
    assert unknown.absent["nowhere"].startswith("unknown dataset 'nowhere'")
    some = Suite("x", "", 1, ("a", "b", "c"), "without data: b", absent={"b": "fetch b"})
    assert some.availability == "2 of 3"


def test_options_of_another_function_under_the_same_name_are_its_own() -> None:
    def first(*, width: int = 1) -> None: ...

    def second(*, depth: int = 2) -> None: ...

    try:
        registry.partitions.register("of-a-test")(first)
        assert set(registry.partitions.params("of-a-test").model_fields) == {"width"}
        assert registry.partitions.params("of-a-test") is registry.partitions.params("of-a-test")
        del registry.partitions._entries["of-a-test"]
        registry.partitions.register("of-a-test")(second)
        assert set(registry.partitions.params("of-a-test").model_fields) == {"depth"}
    finally:
        registry.partitions._entries.pop("of-a-test", None)


def test_every_view_and_every_measure_has_a_line() -> None:
    assert tuple(VIEWS_IN_WORDS) == VIEWS
    tasks = (*Classification.base_measures, *Binary.base_measures, *FewShot.measures)
    others = (*Segmentation(["disc"]).measures, *Regression.measures, *MultiLabel.measures)
    assert {*tasks, *others, "topK"} == set(MEASURES_IN_WORDS)
    # Metrics of validation and test are told apart.
    assert is_test("auto") and is_test("personal/local/accuracy/worst")
    assert is_validation("global/validation/loss") and not is_test("global/validation/loss")
    assert not is_test("train/loss") and not is_validation("train/loss")


def test_the_list_of_metrics_and_that_of_an_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed("list", "metrics")
    for name in (*VIEWS, "global/validation/MEASURE", "auto", "/worst10", "hausdorff95"):
        assert name in text

    def topical(targets: Any, outputs: Any) -> float:
        """Return a metric of one's own."""
        return 0.0

    registry.metrics.load()
    monkeypatch.setitem(registry.metrics._entries, "topical", topical)
    measured = "evaluation: {validation: 0.2, top_k: 3, metrics: [topical]}"
    (tmp_path / "e.yaml").write_text(f"experiment: {{{DIGITS}, algorithm: fedbn, {measured}}}")
    text = printed("list", "metrics", str(tmp_path / "e.yaml"))
    assert "personal/validation/accuracy" in text and "personal/local/top3" in text
    assert "topical" in text and "Return a metric of one's own.: " in " ".join(text.split())
    assert "global/common" not in text


PARTITION = {"name": "dirichlet", "clients": 3, "alpha": 5.0}
SMALL = small(name="small", rounds=2, subset=60, partition=PARTITION)


@pytest.fixture
def runs(tmp_cwd: Path) -> list[Path]:
    return [flray.run({"experiment": {**SMALL, "local": {"lr": lr}}}).folder for lr in (0.01, 0.1)]


def shown(*arguments: str) -> Any:
    return json.loads(printed(*arguments, "--json"))


def test_ls_and_compare(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = shown("ls")
    assert [row["run"] for row in rows] == ["small/001", "small/002"]
    monkeypatch.setenv("HOME", str(runs[0].parents[2]))
    assert shown("ls", "--output=~/runs") == rows and not Path("~").exists()
    assert rows[0]["status"] == "finished" and rows[0]["done"] == "2 of 2 rounds"
    assert rows[0]["what"] == "fedavg on digits-sklearn"
    value, metric = rows[1]["value"].split()
    result = flray.resume(runs[1])
    assert metric == result.metric
    values = result.history[metric]
    shown_values = *(100 * one for one in (values[1], values.mean(), values.max())), values.idxmax()
    course = "{}: last {:.2f}, mean of the last 2 {:.2f}, best {:.2f} in round {}"
    line = course.format(metric, *shown_values[:3], 1 + shown_values[3])
    assert line in " ".join(printed("resume", str(runs[1])).split())
    losses = replace(result, metric="global/common/loss")
    least = result.history.set_index("round")[losses.metric].idxmin()
    assert _course(losses).endswith(f"in round {least}")
    assert float(value) == pytest.approx(result.metrics[metric], abs=1e-4)
    found = shown("compare", "small/001", "small/002")
    assert found["settings"] == [{"setting": "local.lr", "small/001": "0.01", "small/002": "0.1"}]
    row = next(row for row in found["values"] if row["value"] == "global/local/accuracy")
    low, _, high = row["95 % interval"].removesuffix(" (n=3)").split()
    assert float(low) <= float(row["difference"]) <= float(high)
    shutil.copytree(runs[1], "away/small/001")
    far = shown("compare", str(runs[0]), "away/small/001")
    assert far["settings"] == [
        {"setting": "local.lr", str(runs[0]): "0.01", "away/small/001": "0.1"}
    ]
    said = printed("compare", "small/001", "small/002")
    assert "small/002 less small/001, over the clients" in said
    directory.update(runs[0], status="running")
    assert shown("ls")[0]["status"] == "running"
    before = time.time() - 20 * 60
    os.utime(runs[0] / JOURNAL, (before, before))
    assert shown("ls")[0]["status"] == "running, but silent for 20 min"

    def unreadable(path: Path) -> Any:
        if path.parent == runs[0]:
            raise PermissionError(13, "Permission denied", str(path))
        return read_events(path)

    monkeypatch.setattr("flray.cli.runs.read_events", unreadable)
    assert [row["value"] for row in shown("ls")] == ["", rows[1]["value"]]


def test_a_global_model_is_compared_with_clients_own_ones_on_the_same_data(tmp_cwd: Path) -> None:
    runs = [{"experiment": {**SMALL, "algorithm": name}} for name in ("fedavg", "local")]
    one, other = (flray.run(run).metrics for run in runs)
    row = shown("compare", "small/001", "small/002")["values"][0]
    assert row["value"] == "global/local/accuracy, personal/local/accuracy"
    difference = other["personal/local/accuracy"] - one["global/local/accuracy"]
    assert one["global/local/accuracy"] != pytest.approx(one["global/common/accuracy"], abs=1e-3)
    assert float(row["difference"]) == pytest.approx(difference, abs=1e-4)
    assert row["95 % interval"].endswith("(n=3)")
    assert "personal/local/accuracy" in (out := printed("compare", "small/002", "small/001"))
    assert ALIKE_NOTE in out


def test_options_that_exclude_each_other(tmp_cwd: Path) -> None:
    show, tune = "data show digits-sklearn --json", "tune quickstart --detect 1"
    shown = f"{show} --split split.json", f"{show} --plot plot.png"
    for line in (*shown, "export small/001 --all --client a", f"{tune} --plan", f"{tune} --smoke"):
        mistyped(*line.split())
    assert not Path("split.json").exists()


def test_json_has_null_for_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"loss": [math.inf, -math.inf, math.nan, 0.5], "name": "Infinity"})
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown == {"loss": [None, None, None, 0.5], "name": "Infinity"}


def test_json_for_scripts(tmp_cwd: Path) -> None:
    (tmp_cwd / "one.yaml").write_text(json.dumps({"experiment": SMALL}))
    made = shown("run", "one.yaml")
    assert made["value"] == made["values"][made["metric"]] and len(made["sha256"]) == 64
    assert shown("resume", "small")["sha256"] == made["sha256"]
    space = {"local.lr": {"grid": [0.1, 0.2]}}
    (tmp_cwd / "two.yaml").write_text(json.dumps({"experiment": SMALL, "space": space}))
    assert [row["number"] for row in shown("tune", "two.yaml", "--plan")] == ["0001", "0002"]
    kinds = told(2, "list", "nothing").rpartition("one of ")[2].split(", ")
    assert len(kinds) == len(set(kinds)) > 8
    assert {"fedavg", "fedskc"} <= {row["name"] for row in shown("list", "algorithms")}
    assert shown("list", "algorithms", "fedprox")[0]["option"] == "mu"
    assert {row["name"] for row in shown("data", "list")} >= {"digits-sklearn", "usps"}
    assert "global/common/MEASURE" in shown("list", "metrics")
    assert shown("list", "papers", "fedskc/local")[0]["name"] == "fedskc/local"
