"""Tasks: regression and multi-label on tables, a user's in a file, refusals, identity."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.metrics import f1_score, mean_absolute_error, r2_score, roc_auc_score
from torch import Tensor

from flray import register_task, registry
from flray.config.loader import load
from flray.data import load_dataset
from flray.data.federated import federate
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from flray.runs import identity, runner
from flray.tasks import Task, make_task
from tests.algorithms import test_tasks  # noqa: F401  (two-numbers)
from tests.algorithms.helpers import close
from tests.end_to_end.pool import Pools
from tests.helpers import built, printed, small, written
from tests.messages import mistyped, refused

OWN = '''
import numpy as np
import torch.nn.functional as F
from flray import register_task
from flray.tasks import Task

@register_task("counts")
class Counts(Task):
    """Counts by Poisson regression: share of the deviance that is explained, and mean error."""

    target = "numbers"
    measures = ("explained", "mean-error", "loss")

    def loss(self, outputs, targets):
        return F.poisson_nll_loss(outputs, targets.to(outputs.dtype))

    def measure(self, targets, outputs):
        def deviance(rates):
            ratio = np.where(targets > 0, targets / rates, 1.0)
            return (targets * np.log(ratio) - targets + rates).sum()

        rates = np.exp(outputs.astype(float))
        share = 1 - deviance(rates) / deviance(np.full_like(rates, targets.mean()))
        return {"explained": share, "mean-error": abs(rates - targets).mean()}
'''


def diabetes() -> None:
    """Write 442 real patients, with invented wards: a number, a count and three labels."""
    frame = load_diabetes(as_frame=True, scaled=False).frame
    frame["ward"] = ["abcd"[i % 4] for i in range(len(frame))]
    frame["visits"] = (frame["target"] // 60).astype(int)
    for name, of in (("heavy", "bmi"), ("high", "bp"), ("fat", "s5")):
        frame[name] = (frame[of] > frame[of].quantile(0.7)).astype(int)
    frame.to_csv("patients.csv", index=False)


COLUMNS = ["age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"]


def table(task: str, label: Any, **options: Any) -> dict[str, Any]:
    named = {"name": "table", "path": "patients.csv", "label": label, "task": task, "by": "ward"}
    return {**named, "columns": COLUMNS, **options}


REGRESSION = table("regression", "target")
LABELS = table("multi-label", ["heavy", "high", "fat"], columns=["age", "s1", "s2", "s3", "s4"])


def numbers(method: str, model: Any = "two-layer", **settings: Any) -> Any:
    local = {"precision": "float64", "lr": 0.05, "batch_size": 4, **settings.pop("local", {})}
    named = {"data": "two-numbers", "model": model, "algorithm": method, "local": local}
    return built(small(**named, rounds=2), **settings)


def predicted(spec: Any, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    tensors = spec.predictions(outputs, targets).items()
    return dict(spec.summarise({name: value.numpy() for name, value in tensors}))


def test_measures_are_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, targets = (torch.randn(50, 2, generator=generator) for _ in range(2))
    found = predicted(make_task("regression"), outputs, targets)
    assert found["r2"] == pytest.approx(r2_score(targets, outputs), rel=1e-6)
    assert found["mae"] == pytest.approx(mean_absolute_error(targets, outputs), rel=1e-6)
    assert found["rmse"] ** 2 == pytest.approx(found["loss"], rel=1e-6)
    same = predicted(make_task("regression"), outputs, torch.ones(50, 2))
    assert np.isnan(same["r2"]) and same["rmse"] > 0
    flags = (targets > 0).to(torch.uint8)
    found = predicted(make_task("multi-label"), outputs, flags)
    assert found["auc"] == pytest.approx(roc_auc_score(flags, outputs, average="macro"), rel=1e-9)
    assert found["f1"] == pytest.approx(f1_score(flags, outputs > 0, average="macro"), rel=1e-9)
    assert found["accuracy"] == float(((outputs > 0) == (flags == 1)).double().mean())
    flags[:, 1] = 0  # no AUC of a label that nobody has
    alone = predicted(make_task("multi-label"), outputs, flags)
    assert alone["auc"] == pytest.approx(roc_auc_score(flags[:, 0], outputs[:, 0]), rel=1e-9)
    for name in ("regression", "multi-label"):
        nothing = predicted(make_task(name), outputs[:0], flags[:0])
        assert all(np.isnan(value) for value in nothing.values())


def test_a_round_is_gradient_descent_on_least_squares() -> None:
    spec = numbers("fedavg", "one-layer", local={"batch_size": 100})
    federation = Federation(spec, InlineExecutor(spec))
    start = federation.server.model["classifier.weight"].clone()
    federation.step()
    steps = []
    for domain in load_dataset("two-numbers").domains:
        x, y = torch.from_numpy(domain.train_x), torch.from_numpy(domain.train_y)
        steps.append(start - 0.05 * (x @ start.T - y).T @ x / len(x))
    close(federation.server.model["classifier.weight"], sum(steps) / 3)


def test_partitions_divide_by_tenths_and_by_the_rarest_label(tmp_cwd: Path) -> None:
    diabetes()
    alone = {"clients": 5, "classes_per_client": 2}
    for data, parts in ((REGRESSION, 10), (LABELS, 4)):
        options = {k: v for k, v in data.items() if k not in ("name", "by")}
        dataset = load_dataset("table", options)
        y = np.concatenate([dataset.domains[0].train_y, dataset.domains[0].test_y])
        labels = make_task(dataset.task).partition_labels(y)
        assert {*labels} == {*range(parts)}
        made = federate(dataset, "pathological", alone, 0)
        for client in made.clients:
            assert len({*labels[client.train]}) == 2
            assert {*labels[client.test]} <= {*labels[client.train]}
        assert made.class_table()[1].shape == (5, 1)


@pytest.mark.slow
def test_three_methods_learn_a_table_of_real_patients(tmp_cwd: Path) -> None:
    diabetes()
    local = {"lr": 0.05, "loss": {"name": "huber", "delta": 1.5}}
    model = {"name": "mlp", "hidden": [16], "norm": "none"}
    for method in ("fedavg", "fedprox", "local"):
        file = written(small(data=REGRESSION, model=model, algorithm=method, rounds=8, local=local))
        shown = printed("run", file)
        assert "rmse 0." in shown and "mae 0." in shown
    result = runner.run({"experiment": small(data=LABELS, rounds=8, local={"lr": 0.1})})
    assert result.metric == "global/common/auc" and result.metrics["global/common/auc"] > 0.55
    shown = printed("data", "show", written(small(data=REGRESSION)))
    assert "ward" not in shown and "a" in shown
    printed("report", "runs/experiment/001")
    printed("export", "runs/experiment/001")


def test_a_run_ends_well_if_its_test_samples_do_not_define_a_measure(tmp_cwd: Path) -> None:
    rows = np.arange(40)
    columns = {"x": rows % 7, "part": np.where(rows < 30, "train", "test")}
    pd.DataFrame({**columns, "y": np.where(rows < 30, rows % 5, 5.5)}).to_csv("same.csv")
    data = table("regression", "y", path="same.csv", columns=["x"], part="part", by=None)
    for method, view in (("fedavg", "global/common"), ("local", "personal/local")):
        shown = printed("run", written(small(data=data, algorithm=method)))
        assert f"{view}/r2: never measured" in shown and "SHA-256" in shown


def test_the_label_is_scaled_as_the_columns_or_left(tmp_cwd: Path) -> None:
    diabetes()
    deviation = float(pd.read_csv("patients.csv")["target"].std())
    options = {k: v for k, v in REGRESSION.items() if k != "name"}
    for scale, wanted in (("standard", 1.0), ("columns", deviation), ("none", None)):
        domains = load_dataset("table", {**options, "scale": scale}).domains
        y, x = (np.concatenate([getattr(d, f"train_{p}") for d in domains]) for p in "yx")
        assert y.dtype == np.float32 and y.shape[1] == 1
        assert wanted is None or y.std() == pytest.approx(wanted, rel=0.1)
        assert (abs(x.mean()) < 1e-5) == (scale != "none")


WRONG = [
    *(table("regresion", "target"), table("few-shot", "target"), table("regression", [])),
    *(table("regression", ["target", "target"]), table("classification", ["heavy", "high"])),
    *(table("regression", "bmi"), table("regression", "ward", by=None)),
    *(table("multi-label", ["heavy", "visits"]), table("regression", "hole")),
    table("regression", "target", positive=1),
    table("regression", "target", columns=["bmi", "doubled"]),
    table("regression", 7),
]


def test_a_table_that_does_not_fit_is_refused_in_one_line(tmp_cwd: Path) -> None:
    diabetes()
    frame = pd.read_csv("patients.csv")
    frame["doubled"] = 3 - 2 * frame["target"]
    frame["hole"] = frame["target"].where(frame["target"] > 50)
    frame.to_csv("patients.csv", index=False)
    for data in WRONG:
        mistyped("run", written(small(data=data)))
    assert not Path("runs").exists()


def test_targets_of_another_kind_and_what_needs_classes_are_refused() -> None:
    for kind in ("line", "flags", "nan", "names", "twos"):
        task = "multi-label" if kind == "twos" else "regression"
        refused(numbers, "fedavg", data={"name": "two-numbers", "kind": kind, "task": task})
    refused(numbers, "fedavg", evaluation={"top_k": 2})
    refused(numbers, "fedavg", evaluation={"metrics": ["macro-f1"]})
    refused(numbers, "fedavg", local={"loss": "focal"})
    refused(numbers, "fedavg", shift={"long_tail": 10})
    refused(numbers, "fedavg", model={"name": "mlp-of-three"})


def test_clients_are_not_chosen_by_a_loss_that_nobody_measures() -> None:
    data = {"name": "two-numbers", "task": "without-loss"}
    sampler = {"clients": 2, "sampler": "power-of-choice"}
    refused(numbers, "fedavg", data=data, participation=sampler)


@registry.register_model("mlp-of-three")
def of_three(shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
    return torch.nn.Linear(shape[0], 3)


class Half(Task):
    target = "numbers"
    measures = ("r2", "loss")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean()


@register_task("halves")
class Halves(Half):
    def measure(self, targets: Any, outputs: Any) -> dict[str, float]:
        return {"r2": 1 - float(np.square(outputs - targets).mean() / np.var(targets))}


@register_task("without-loss")
class WithoutLoss(Halves):
    measures = ("r2",)


def unlucky(*_: Any) -> Any:
    raise ValueError("no such luck")


NO_TASKS: dict[str, tuple[type, dict[str, Any]]] = {
    "no-measure": (Half, {}),
    "no-names": (Halves, {"measures": ()}),
    "less-is-better": (Halves, {"measures": ("half-error",)}),
    "raises-at-once": (Halves, {"__init__": unlucky}),
    "odd-labels": (Halves, {"partition_labels": staticmethod(lambda targets: targets[:, 0])}),
    "forgets": (Half, {"measure": lambda self, targets, outputs: {"rr": 1.0}}),
    "cannot-sum-up": (Halves, {"summarise": unlucky}),
}
for _name, (_base, _members) in NO_TASKS.items():
    register_task(_name)(type("Made", (_base,), _members))
register_task("a-function")(lambda: Halves())


def test_a_class_that_is_no_task_or_does_not_measure_is_named() -> None:
    for task in ("no-measure", "no-names", "less-is-better", "raises-at-once", "odd-labels"):
        refused(numbers, "fedavg", data={"name": "two-numbers", "task": task})
    refused(numbers, "fedavg", data={"name": "two-numbers", "task": "a-function"})
    for task in ("forgets", "cannot-sum-up"):
        spec = numbers("fedavg", data={"name": "two-numbers", "task": task})
        refused(Federation(spec, InlineExecutor(spec)).step)


def test_a_task_in_a_file_is_short_listed_and_part_of_the_identity(tmp_cwd: Path) -> None:
    assert len(OWN.strip().splitlines()) <= 30
    Path("counts.py").write_text(OWN)
    diabetes()
    assert "counts (own)" in printed("list", "tasks", "--plugins", "counts.py")
    data = table("counts", "visits", scale="columns")
    settings = small(data=data, plugins=["counts.py"])
    config = load({"experiment": settings}).experiment
    assert [Path(file).name for file in identity.code_of(config)["files"]] == ["counts.py"]
    other = load({"experiment": {**settings, "data": table("regression", "visits")}}).experiment
    one, two = (identity.run_identity(each, "auto", "x")["settings"] for each in (config, other))
    assert one != two
    prints = {load_dataset("table", each.data.options).fingerprint for each in (config, other)}
    assert len(prints) == 2
    learnt = runner.run({"experiment": settings}, ["rounds=6", "local.lr=0.1"]).metrics
    assert learnt["global/common/explained"] > 0.2


def test_both_executors_give_the_same_bits_and_numbers(pools: Pools) -> None:
    data = {"name": "two-numbers", "task": "halves"}
    spec = numbers("fedavg", data=data, local={"loss": "huber"})
    assert "global/common/r2" in pools[2].same_as_inline(spec)[1]


def test_a_measure_that_works_in_place_changes_nothing_that_is_measured_later() -> None:
    class InPlace(Task):
        name = "regression"  # an error would name it
        measures = ("near", "loss")

        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs - targets).square().mean()

        def measure(self, targets: Any, outputs: Any) -> dict[str, float]:
            outputs -= targets
            return {"near": -abs(outputs).mean()}

    predictions = {"outputs": np.full((3, 1), 5.0, np.float32), "targets": np.ones((3, 1))}
    for _ in range(2):
        assert InPlace().summarise(predictions) == {"near": -4.0, "loss": 16.0}
