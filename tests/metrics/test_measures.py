"""Measures against counting by hand and libraries; names of metrics, and numbers that describe a metric's course."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from pytest import approx
from sklearn.metrics import f1_score, recall_score, roc_auc_score

import flray
from flray import metrics
from flray.cli.main import invoke
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.evaluation import available_metrics
from flray.metrics import check_clients, clean_name, is_share, lower_is_better, measure_name
from flray.runs.export import export
from flray.tasks import make_task
from flray.tasks.classification import among_largest, binary_metrics
from flray.tasks.multi_output import dice_coefficient, hausdorff_distance
from tests.algorithms.helpers import gaussian_clients, run, spec_of
from tests.end_to_end.test_tasks import GLYPHS
from tests.helpers import cases, small, written
from tests.messages import mistyped, refused


def test_two_classes_equal_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=200)
    scores = np.round(np.clip(labels * 0.2 + generator.random(200) * 0.8, 0, 1), 2)  # with ties
    found, predicted = binary_metrics(scores, labels), scores > 0.5
    assert found["auc"] == approx(roc_auc_score(labels, scores), abs=1e-12)
    assert found["sensitivity"] == approx(recall_score(labels, predicted), abs=1e-12)
    assert found["specificity"] == approx(recall_score(labels, predicted, pos_label=0), abs=1e-12)
    assert found["f1"] == approx(f1_score(labels, predicted), abs=1e-12)


@cases("labels, defined", "[[1, 1], [f1, sensitivity]], [[0, 0], [f1, specificity]], [[], []]")
def test_what_is_not_defined_is_nan(labels: list[int], defined: list[str]) -> None:
    found = binary_metrics(np.full(len(labels), 0.9), np.array(labels, dtype=np.int64))
    assert sorted(name for name, value in found.items() if not math.isnan(value)) == defined


def box(top: int, left: int, height: int, width: int, size: int = 24) -> np.ndarray:
    mask = np.zeros((size, size), dtype=np.uint8)
    mask[top : top + height, left : left + width] = 1
    return mask


def test_empty_masks() -> None:
    nothing, something = box(0, 0, 0, 0), box(3, 3, 4, 4)
    pairs = [(nothing, nothing), (nothing, something), (something, nothing)]
    dice = [float(dice_coefficient(a[None, None], b[None, None])[0, 0]) for a, b in pairs]
    assert dice == [1.0, 0.0, 0.0]
    distances = [float(hausdorff_distance(a, b)[0]) for a, b in pairs]
    assert np.isnan(distances[0]) and distances[1:] == [np.inf, np.inf]


def masks(generator: np.random.Generator) -> np.ndarray:
    """Return boxes at the image's rim and inside, some with scattered pixels, one empty."""
    draws = [(*generator.integers(0, 12, 2), *generator.integers(1, 13, 2)) for _ in range(12)]
    made = np.stack([box(*one) for one in draws])
    made[:6] |= generator.random(made[:6].shape) < 0.02
    made[11] = 0
    return made.reshape(6, 2, 24, 24)


def test_equals_monai() -> None:
    with warnings.catch_warnings(action="ignore"):
        from monai.metrics import compute_dice, compute_hausdorff_distance

        generator = np.random.default_rng(5)
        predicted, truth = masks(generator), masks(generator)[::-1].copy()
        p, t = torch.from_numpy(predicted).float(), torch.from_numpy(truth).float()
        dice = compute_dice(p, t, include_background=True, ignore_empty=False).numpy()
        how = ({"include_background": True, "percentile": percentile} for percentile in (None, 95))
        distances = [compute_hausdorff_distance(p, t, **one).numpy() for one in how]
    assert_allclose(dice_coefficient(predicted, truth), dice, rtol=1e-6)
    pairs = zip(predicted.reshape(12, 24, 24), truth.reshape(12, 24, 24), strict=True)
    mine = np.array([hausdorff_distance(a, b, (100.0, 95.0)) for a, b in pairs]).reshape(6, 2, 2)
    assert np.isinf(mine).sum() == 4 and np.isfinite(mine).sum() == 20
    largest, most = distances
    assert_allclose(mine[..., 0], largest, rtol=1e-5)
    # MONAI interpolates between infinities where one mask is empty, which gives NaN
    assert_allclose(np.where(np.isinf(mine[..., 1]), np.nan, mine[..., 1]), most, rtol=1e-5)


def test_the_k_largest_equal_torchs_and_are_exactly_k_where_logits_are_equal() -> None:
    """A network that says nothing is right as often as chance, and a diverged one never."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 9, generator=generator, dtype=torch.float64)
    labels = torch.randint(9, (500,), generator=generator)
    for k in range(1, 9):
        wanted = (logits.topk(k, 1).indices == labels[:, None]).any(1)
        assert torch.equal(among_largest(logits, labels, k), wanted)
    logits, labels = torch.zeros(5, 5), torch.arange(5)
    assert among_largest(logits, labels, 2).sum() == 2
    assert torch.equal(among_largest(logits, labels, 1), logits.argmax(1) == labels)
    assert not among_largest(torch.full((5, 5), math.nan), labels, 4).any()
    logits, label = torch.tensor([[math.nan, 1.0, 0.0]]), torch.tensor([1])
    assert not among_largest(logits, label, 1).any() and among_largest(logits, label, 2).all()


def test_what_does_not_suit_classes_or_episodes_is_refused() -> None:
    for k in (3, 5):
        refused(spec_of, "fedavg", evaluation={"top_k": k})
    for task in ("segmentation", "few-shot"):
        refused(make_task, task, ("cup",), top_k=5)
    config = load({"experiment": {**GLYPHS, "algorithm": "local", "evaluation": {"pooled": True}}})
    refused(build_spec, config.experiment)


CLIENTS = gaussian_clients((5, 9, 40))
SETTINGS: dict[str, Any] = {"local": {"epochs": 1, "lr": 0.02}}


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_each_client_counts_by_its_samples(others: bool, measure: str) -> None:
    federation = run("local", CLIENTS, **SETTINGS, evaluation={"pooled": True, "others": others})
    found = federation.evaluate()
    clients = federation.spec.data.clients
    single = [found[f"personal/local/{measure}/client/{c.name}"] for c in clients]
    sizes = [len(c.test) for c in clients]
    assert sizes == [5, 9, 40]
    by_hand = sum(n * one for n, one in zip(sizes, single, strict=True)) / sum(sizes)
    assert found[f"personal/pooled/{measure}"] == pytest.approx(by_hand, rel=1e-12)
    assert found[f"personal/pooled/{measure}"] != found[f"personal/local/{measure}"]
    assert f"personal/pooled/{measure}" in available_metrics(federation.spec)
    plain = run("local", CLIENTS, **SETTINGS).spec
    assert f"personal/pooled/{measure}" not in available_metrics(plain)


def test_one_model_for_all_has_it_on_the_common_test_set() -> None:
    """Whose models are all the same need no measure of their own: that is what global/common is."""
    federation = run("fedavg", CLIENTS, **SETTINGS, evaluation={"pooled": True})
    found = federation.evaluate()
    clients = federation.spec.data.clients
    right = [len(c.test) * found[f"global/local/accuracy/client/{c.name}"] for c in clients]
    by_hand = sum(right) / len(federation.spec.data.test)
    assert found["global/common/accuracy"] == pytest.approx(by_hand, rel=1e-12)
    assert not any("pooled" in name for name in found)


def test_clean_name() -> None:
    others = {
        "/loss//x/./../y/": "loss/x/y",
        "worst 10 %": "worst 10 _",
        "accuracy@5\n": "accuracy_5_",
    }
    others |= {name: name for name in ("global/common/accuracy", "time: a.b-c d_e")}
    assert {name: clean_name(name) for name in others} == others
    one, other = clean_name("x" * 300 + "a"), clean_name("x" * 300 + "b")
    assert len(one) == len(other) == 250 and one != other, "long names stay different"


@settings(deadline=None, max_examples=50)  # the first call imports mlflow
@given(st.text(min_size=1, max_size=300))
def test_mlflows_own_check_takes_every_cleaned_name(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    try:
        cleaned = clean_name(name)
    except ValueError:
        return
    _validate_metric_name(cleaned)
    assert len(cleaned) <= 250 and clean_name(cleaned) == cleaned


@pytest.mark.parametrize(
    ("one", "other"), [("hospital(1)", "hospital[1]"), ("a\nb", "a_b"), ("x/./y", "x/y")]
)
def test_clients_that_mlflow_takes_for_one_are_named(one: str, other: str) -> None:
    refused(check_clients, ["fine", one, "fine too", other])
    check_clients([one, "fine"])


PLUGIN = """
import numpy as np
from flray.data import DataSet, Domain
from flray.registry import register_dataset

@register_dataset("hospitals")
def hospitals(root, *, seed: int = 0, names: str):
    x = np.random.default_rng(0).random((40, 6)).astype(np.float32)
    y = np.arange(40) % 2
    domains = tuple(Domain(name, "real", x, y, x[:10], y[:10]) for name in names.split(";"))
    return DataSet("hospitals", domains, ("a", "b"), (), ())
"""


def hospitals(names: str, algorithm: str = "fedavg") -> dict[str, Any]:
    """Write the plug-in, and return an experiment on hospitals of these names."""
    Path("plugin.py").write_text(PLUGIN)
    data = {"name": "hospitals", "names": names}
    return small(data=data, plugins=["plugin.py"], algorithm=algorithm)


def test_such_a_run_is_refused_before_the_first_round_and_odd_names_are_shown_in_one_line(
    tmp_cwd: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written(hospitals("hospital(1);hospital[1]"), "two.yaml")
    written(hospitals("[/x] hospital;a\nb\x85;=1+1"), "odd.yaml")
    mistyped("run", "two.yaml")
    assert not (tmp_cwd / "runs").exists()
    assert invoke(["run", "odd.yaml"]) == 0
    assert invoke(["data", "show", "odd.yaml"]) == 0
    out, _ = capfd.readouterr()
    for shown in ("[/x] hospital", "a\\nb\\x85", "=1+1"):
        assert sum(shown in line for line in out.splitlines()) == 1  # the rows of who holds what


def test_clients_whose_names_differ_in_signs_have_a_file_each(tmp_cwd: Path) -> None:
    ran = flray.run({"experiment": hospitals("a b;a:b;c", "local")})
    files = {path.name for path in export(ran.folder, every=True) if path.suffix == ".safetensors"}
    assert files == {"client-a_b.safetensors", "client-a_b-1.safetensors", "client-c.safetensors"}
    assert export(ran.folder, client="a:b")[1].name == "client-a_b-1.safetensors"


@cases(
    "metric, measure, lower",
    """[global/common/accuracy, accuracy, false],
    [personal/local/hausdorff95_cup/worst, hausdorff95_cup, true],
    [train/loss/client/loss, loss, true], [train/seconds, seconds, true],
    [own/hausdorff, hausdorff, true], [others/accuracy, accuracy, false], [auc, auc, false],
    [own/train/loss, loss, true], [personal/local/accuracy/std, accuracy, true],
    [personal/local/accuracy/client/std, accuracy, false]""",
)
def test_measure_and_direction(metric: str, measure: str, lower: bool) -> None:
    assert measure_name(metric) == measure and lower_is_better(metric) is lower


@cases(
    "metric, share",
    """[global/common/accuracy, true], [personal/local/own_measure, true],
    [own/accuracy | pooled/accuracy, true],
    [global/common/accuracy or personal/local/accuracy, true], [top5, true],
    [personal/local/accuracy/std, true], [personal/local/loss/std, false],
    [global/common/loss, false], [own/train/loss, false], [train/lgmix/lambda, false],
    [train/seconds, false], [time/samples_per_second, false], [fedskc/e_k, false],
    [global/common/accuracy >= 60, false], [others, true]""",
)
def test_only_shares_are_shown_in_percent(metric: str, share: bool) -> None:
    assert is_share(metric) is share


HISTORY = pd.DataFrame({"round": [1, 2, 3, 4, 5], "a": [0.1, 0.5, math.nan, 0.5, 0.3]})
COURSE = HISTORY.set_index("round")["a"].dropna()


def test_course() -> None:
    targets = {target: metrics.rounds_to_target(COURSE, target) for target in (0.1, 0.4, 0.51)}
    assert targets == {0.1: 1, 0.4: 2, 0.51: math.inf}


NAN = math.nan
ACCURACY, LOSS, CLIENT = (f"personal/local/{n}" for n in ("accuracy", "loss", "accuracy/client/a"))
EVERY_SECOND = {ACCURACY: [0.5, 0.9, 0.7], CLIENT: [1, 2, 3], LOSS: [0.3, 0.2, 0.1]}
EVERY_SECOND |= {"personal/validation/accuracy": [0.8, 0.6, 0.8]}
EVERY_SECOND |= {"personal/validation/loss": [3, 1, 2]}
VALIDATED = pd.DataFrame({"round": range(1, 7), "time/round": np.arange(1.0, 7.0)})
for _name, _values in EVERY_SECOND.items():
    VALIDATED[_name] = np.stack([[NAN] * 3, _values], 1).ravel()


@cases(
    "metric, which, count, text, values",
    f"""[{ACCURACY}, last, 2, after 6 rounds, {{{ACCURACY}: 0.7, time/round: 6}}],
    [{ACCURACY}, best, 2, 'round 2 of 6, best on validation', {{{ACCURACY}: 0.5, {CLIENT}: 1, {LOSS}: 0.3}}],
    [{LOSS}, best, 2, 'round 4 of 6, best on validation', {{{LOSS}: 0.2}}],
    [{ACCURACY}, mean-last, 2, mean of the last 2 evaluations, {{{ACCURACY}: 0.8, {CLIENT}: 2.5}}],
    [{ACCURACY}, mean-last, 9, mean of the last 3 evaluations, {{{ACCURACY}: 0.7}}],
    [time/round, best, 2, after 6 rounds, {{time/round: 6}}]""",
)
def test_which_rounds_count(metric: str, which: Any, count: int, text: str, values: Any) -> None:
    """The best are of validation, not of the test, and the first of two equals; the time is never validated."""
    reported = metrics.summarise_history(VALIDATED, metric, which, count)
    assert reported.text == text
    assert {name: reported.values[name] for name in values} == pytest.approx(values)


@pytest.mark.parametrize(("metric", "worst"), [(ACCURACY, -math.inf), (LOSS, math.inf)])
def test_nan_is_not_best_beside_infinities_alone(metric: str, worst: float) -> None:
    held = metrics.validation_metric(metric)
    history = pd.DataFrame({"round": [1, 2, 3], metric: [1.0, 2.0, 3.0], held: [NAN, worst, worst]})
    assert metrics.summarise_history(history, metric, "best", 1).values[metric] == 2.0


def test_what_was_never_measured_is_left_out() -> None:
    first = metrics.summarise_history(VALIDATED.iloc[:1], ACCURACY, "best", 2)
    assert first.values == {"time/round": 1.0}
    nothing = pd.DataFrame({"round": pd.Series(dtype="int64")})
    assert metrics.summarise_history(nothing, "a", "mean-last", 2).values == {}


@cases(
    "metric, validation",
    """[global/common/accuracy, global/validation/accuracy],
    [personal/others/loss, personal/validation/loss],
    [global/common/accuracy/model/a, global/validation/accuracy], [time/round, null],
    [score, null]""",
)
def test_validation_metric(metric: str, validation: str | None) -> None:
    assert metrics.validation_metric(metric) == validation


def test_a_distance_is_best_where_it_is_lowest() -> None:
    history = pd.DataFrame({"round": [1, 2, 3], "global/common/hausdorff95": [9.0, 2.0, 4.0]})
    values = history.set_index("round")["global/common/hausdorff95"]
    assert metrics.rounds_to_target(values, 5.0, lower=True) == 2
    held = metrics.validation_metric("global/common/gap")
    rounds = [{"global/common/gap": value, held: value} for value in (0.3, 0.1, 0.2)]
    during = metrics.RunningReport("global/common/gap", "best", 1, lower=True)
    assert [during.add(one) for one in rounds] == [0.3, 0.1, 0.1], "an own metric, as it is told"
