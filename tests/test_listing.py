import json
from pathlib import Path

import pytest

from flray import registry
from flray.cli.main import invoke
from flray.cli.papers import Suite, list_suites, show_papers
from flray.cli.tables import show_list
from flray.config.arms import setting_label
from flray.errors import FlrayError
from flray.metrics.catalogue import MEASURES_IN_WORDS, VIEWS_IN_WORDS, is_test, is_validation
from flray.metrics.names import VIEWS
from flray.tasks.binary import Binary
from flray.tasks.classification import Classification
from flray.tasks.few_shot import FewShot
from flray.tasks.segmentation import Segmentation

DIGITS = "data: digits-sklearn, model: linear, tracking: {uri: null}"
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
    for number, data in ((1, "digits-sklearn"), (2, "usps"), (10, "nowhere")):
        (place / f"table{number}.yaml").write_text(SUITE.replace("DATA", data))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path / "empty"))


def test_an_unknown_suite_and_a_method_without_its_kind_are_refused() -> None:
    with pytest.raises(FlrayError, match="no suite 'nope'"):
        show_papers("nope", timed=False)
    with pytest.raises(
        FlrayError, match="nothing called 'fedavg' to list; did you mean 'algorithms"
    ):
        show_list("fedavg", None)


def test_a_plan_of_a_search_says_how_many_it_will_suggest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = ["sweep.search=optuna", "sweep.samples=3", "sweep.seeds=[0, 1]", "tracking.uri=null"]
    file = Path("x.yaml")
    file.write_text(
        "experiment: {data: digits-sklearn, model: linear, algorithm: fedavg, rounds: 1}\n"
        "space: {local.lr: {loguniform: [0.01, 0.1]}}\n"
    )
    assert invoke(["tune", str(file), "--plan", *settings]) == 0
    assert "6 trials, none of which is known yet: optuna" in capsys.readouterr().out


def test_suites_with_their_runs_data_and_what_is_missing() -> None:
    there, absent, unknown = list_suites()
    assert (there.name, there.title, there.runs) == ("fedskc/table1", "made up", 2)
    assert there.data == ("digits-sklearn",)
    assert there.problem == "" and there.hours is None and there.availability == "yes"
    assert absent.problem == "without data: usps" and "usps" in absent.absent["usps"]
    assert unknown.problem == "unknown here: data nowhere" and unknown.runs == 2
    assert (absent.availability, unknown.availability) == ("no", "no")
    assert unknown.messages == ["fedskc/table10 needs data nowhere, which is unknown here"]
    assert (
        Suite("x", "", 1, ("a", "b", "c"), "without data: b", absent={"b": "fetch b"}).availability
        == "2 of 3"
    )
    assert Suite("x", "", 1, ("a",), "no such setting").messages == ["x: no such setting"]


def test_hours_are_estimated_where_it_can_be_run() -> None:
    there, absent, _ = list_suites(timed=True)
    assert there.hours is not None and 0 < there.hours < 0.1 and absent.hours is None


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_papers("fedskc/table1", False)
    text = capsys.readouterr().out
    assert all(word in text for word in ("fedskc/table1", "yes", "--time"))
    assert "fedskc/table2" not in text


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


def test_a_partition_is_listed_with_the_seed_that_it_may_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_list("partitions", "iid", as_json=True)
    assert [row["option"] for row in json.loads(capsys.readouterr().out)] == ["clients", "seed"]


def test_a_partitions_seed_is_not_taken_for_the_runs() -> None:
    setting = {"algorithm.mu": 0.1, "partition.seed": 3}
    assert setting_label(setting) == "mu=0.1 partition.seed=3"


def test_every_view_and_every_measure_has_a_line() -> None:
    assert tuple(VIEWS_IN_WORDS) == VIEWS
    tasks = (*Classification.base_measures, *Binary.base_measures, *FewShot.measures)
    assert {*tasks, *Segmentation(["disc"]).measures, "topK"} == set(MEASURES_IN_WORDS)


def test_validation_and_test_metrics_are_told_apart() -> None:
    assert is_test("auto") and is_test("personal/local/accuracy/worst")
    assert is_validation("global/validation/loss") and not is_test("global/validation/loss")
    assert not is_test("train/loss") and not is_validation("train/loss")


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["list", "metrics"]) == 0
    text = capsys.readouterr().out
    for name in (*VIEWS, "global/validation/MEASURE", "auto", "/worst10", "hausdorff95"):
        assert name in text


def test_the_list_of_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = (
        f"experiment: {{{DIGITS}, algorithm: fedbn, evaluation: {{validation: 0.2, top_k: 3}}}}"
    )
    (tmp_path / "e.yaml").write_text(content)
    assert invoke(["list", "metrics", str(tmp_path / "e.yaml")]) == 0
    text = capsys.readouterr().out
    assert "personal/validation/accuracy" in text and "personal/local/top3" in text
    assert "global/common" not in text


def test_a_metric_that_is_not_measured_points_to_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.yaml").write_text(
        f"experiment: {{{DIGITS}, algorithm: fedavg, output: {tmp_path}/runs}}\n"
        "sweep: {metric: validation/accuracy}\n"
    )
    assert invoke(["tune", str(tmp_path / "s.yaml")]) == 2
    said = capsys.readouterr().err
    assert "sweep.metric" in said and "flray list metrics says what each is" in said
    assert not (tmp_path / "runs").exists()
