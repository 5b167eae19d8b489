"""Batch norm: no model is tested with the statistics that it began with; clients of one sample are refused or run."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flray import registry, trees
from flray.data.types import DataSet, Domain
from flray.federation.evaluation import available_metrics, check_metric
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from flray.results.load import load_folder
from flray.runs import runner
from flray.runs.export import export
from flray.runs.models import TrainedModels
from tests.algorithms.helpers import OTHER, federation_of, gaussian_clients, spec_of
from tests.helpers import Settings, built, cases, small
from tests.messages import refused

LOCAL = {"aggregation": {"buffers": "local"}}


def by_hand(federation: Federation, client: int) -> float:
    """Accuracy of the global weights with the client's own buffers, on its test part."""
    spec, state = federation.spec, federation.states[client]
    ((key, weights),) = federation.server.models.items()
    model = spec.build(key)
    own = trees.unpack(federation.executor.fetch(state))["personal"]
    model.load_state_dict({**weights, **own})
    rows = spec.data.clients[client].test
    with torch.no_grad():
        outputs = model.eval()(torch.from_numpy(spec.data.x[rows]))
    return float((outputs.argmax(1).numpy() == spec.data.y[rows]).mean())


@pytest.mark.parametrize("method", ["moon", "fedskc"])
def test_the_global_model_has_each_clients_own_statistics(method: str) -> None:
    federation = federation_of(spec_of(method, **LOCAL))
    for _ in range(3):
        metrics = federation.step().metrics
    assert not [name for name in metrics if name.startswith("global/common")]
    found = [metrics[f"global/local/accuracy/client/client{i}"] for i in range(3)]
    assert found == pytest.approx([by_hand(federation, i) for i in range(3)])
    assert metrics["global/local/accuracy"] == pytest.approx(sum(found) / 3)


def test_metrics_are_named_accordingly() -> None:
    average = spec_of("fedavg", gaussian_clients())
    assert average.has_common and not average.with_statistics
    assert not spec_of("fedbn").has_common and spec_of("fedbn").with_statistics
    plain = spec_of("fedavg", model={"name": "two-layer", "norm": False}, **LOCAL)
    assert plain.primary_metric == "global/common/accuracy"
    assert "global/common/accuracy" in federation_of(plain).step().metrics
    spec = spec_of("fedavg", **LOCAL)
    assert spec.primary_metric == "global/local/accuracy"
    assert available_metrics(spec) == ["global/local/accuracy", "global/local/loss"]
    refused(check_metric, spec, "global/common/accuracy", "experiment.stop.metric")
    both = spec_of("fedhkd", **LOCAL)
    views = {name.rpartition("/")[0] for name in available_metrics(both)}
    assert views == {"personal/local", "global/local"}
    assert set(federation_of(both).step().metrics) >= set(available_metrics(both))


def test_further_models_of_a_method_are_listed() -> None:
    spec = spec_of("fedco2")
    measured = set(federation_of(spec).step().metrics)
    means = {name for name in measured if name.split("/")[1:] in (["local", "accuracy"],)}
    assert means == {f"{model}/local/accuracy" for model in ("personal", "online", "offline")}
    assert means <= set(available_metrics(spec)) <= measured


@pytest.mark.parametrize("more", [{}, LOCAL])
def test_several_networks_are_measured_over_all_clients_too(more: dict[str, Any]) -> None:
    """Each client tests the global model of its network: the primary metric, which a run without it could not end."""
    spec = spec_of("fedavg", models=OTHER, evaluation={"validation": 0.25}, **more)
    metrics = federation_of(spec).step().metrics
    assert spec.primary_metric == "global/local/accuracy"
    for scope in ("local", "validation"):
        values = [metrics[f"global/{scope}/accuracy/client/client{i}"] for i in range(3)]
        assert metrics[f"global/{scope}/accuracy"] == pytest.approx(sum(values) / 3)
        assert metrics[f"global/{scope}/accuracy/worst"] == min(values)
    own, other = (f"global/local/accuracy/model/two-layer{end}" for end in ("", "-2"))
    assert {f"{own}/std", f"{other}/std"} <= set(metrics)
    assert set(metrics) >= set(available_metrics(spec))
    refused(check_metric, spec, "global/common/accuracy", "experiment.stop.metric")
    common = "global/common/accuracy/model/two-layer"
    assert (common in metrics) == spec.has_common
    if spec.has_common:
        check_metric(spec, common, "experiment.stop.metric")


def test_clients_that_have_not_trained_are_left_out_and_said() -> None:
    said: list[str] = []
    spec = spec_of("fedavg", participation={"clients": 1}, **LOCAL)
    federation = Federation(spec, federation_of(spec).executor, said.append)
    assert sum("/accuracy/client/" in name for name in federation.step().metrics) == 1
    assert [line for line in said if "2 of 3 clients have not trained yet" in line]
    bn = spec_of("fedbn", participation={"clients": 1})
    federation = Federation(bn, federation_of(bn).executor, said.append)
    assert sum("/accuracy/client/" in name for name in federation.step().metrics) == 3
    assert said[-1].endswith("they are tested with these")


def test_what_needs_one_model_is_refused_and_an_unseen_client_adapts() -> None:
    refused(spec_of, "fedavg", participation={"unseen": 1}, **LOCAL)
    refused(spec_of, "pooled", **LOCAL)
    settings = {"participation": {"unseen": 1}, "evaluation": {"adapt_steps": 2}}
    metrics = federation_of(spec_of("fedavg", **settings, **LOCAL)).step().metrics
    assert "adapted/unseen/accuracy" in metrics and "global/unseen/accuracy" not in metrics


def test_a_run_is_reported_and_exported_by_its_clients(tmp_cwd: Path) -> None:
    data = {"name": "random", "shape": [1, 16, 16], "samples": 24}
    world = {"data": data, "partition": {"name": "iid", "clients": 2}}
    model = {"name": "lenet", "norm": "batch"}
    result = runner.run({"experiment": small(**world, rounds=2, model=model, **LOCAL)})
    assert result.metric == "global/local/accuracy"
    assert load_folder(result.folder).trials[0].metric == "global/local/accuracy"
    refused(export, result.folder, Path("models"))
    models = TrainedModels(result.folder)
    first, second = (models.client_model(name).state_dict() for name in models.clients)
    differ = {name for name in first if not torch.equal(first[name], second[name])}
    assert differ and all("running" in name for name in differ)
    assert [path.name for path in export(result.folder, Path("all"), every=True)]


SIZES = {"lonely": 1, "pair": 2, "five": 5}


def sites(root: Path, *, masks: bool = False) -> DataSet:
    """Domains of 1, 2 and 5 training samples."""
    generator = np.random.default_rng(0)
    domains = []
    for name, count in SIZES.items():
        x = generator.integers(0, 256, (count + 2, 3, 16, 16), dtype=np.uint8)
        y: Any = (x[:, :1] > 128).astype(np.uint8) if masks else np.arange(count + 2) % 2
        domains.append(Domain(name, "random", x[2:], y[2:], x[:2], y[:2]))
    classes, task = (("a",), "segmentation") if masks else (("a", "b"), "classification")
    return DataSet("sites", tuple(domains), classes, (0.5,) * 3, (0.3,) * 3, task=task)


@pytest.fixture(autouse=True)
def _sites() -> Iterator[None]:
    registry.datasets.register("sites")(sites)
    yield
    del registry.datasets._entries["sites"]


def federation(model: Any, **settings: Any) -> Federation:
    spec = built(small(data="sites", partition="domains", model=model), **settings)
    return Federation(spec, InlineExecutor(spec), lambda line: None)


def test_a_client_of_one_sample_is_named() -> None:
    refused(federation, {"name": "mlp", "norm": "batch"})
    refused(federation, {"name": "lenet", "norm": "batch"})
    refused(federation, {"name": "digit-cnn", "width": 0.05})


@cases(
    "model, settings",
    """[{name: mlp, norm: group}, {}], [{name: mlp}, {}], [{name: resnet8, width: 4}, {}],
    [{name: digit-cnn, width: 0.05, classifier_norm: false}, {}],
    [{name: unet, width: 2, depth: 2}, {data: {name: sites, masks: true}}]""",
)
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_batches_of_one(model: dict[str, Any], settings: Settings, batch_size: int) -> None:
    metrics = federation(model, **settings, local={"batch_size": batch_size}).step().metrics
    assert metrics["cohort/left_out"] == 0 and math.isfinite(metrics["train/loss/client/lonely"])
    # a last batch of one sample is left out under batch norm, unless it is the client's only one
    single = model["name"] in ("resnet8", "unet", "digit-cnn") and batch_size > 1
    assert metrics["train/samples"] == 1 + 2 + (4 if single else 5)


def test_a_loss_that_diverged_is_infinite_in_the_mean() -> None:
    """A client of one step has none after it, and left to the others' mean its setting would be the best."""
    local = {"batch_size": 1, "lr": 1e30, "epochs": 1}
    metrics = federation("mlp", algorithm="local", local=local).step().metrics
    assert math.isfinite(metrics["train/loss/client/lonely"])
    assert metrics["train/loss/client/five"] == metrics["train/loss"] == math.inf


def test_batches_of_one_are_named() -> None:
    small = {"data": {"name": "digits-sklearn", "samples": 20}, "local": {"batch_size": 1}}
    refused(federation, {"name": "lenet", "norm": "batch"}, **small)
    federation({"name": "lenet", "norm": "group"}, **small)


def test_such_clients_are_left_out_and_reported_where_that_is_wanted() -> None:
    skip = {"faults": {"on_client_error": "skip"}}
    metrics = federation({"name": "mlp", "norm": "batch"}, **skip).step().metrics
    assert metrics["cohort/left_out"] == 1 and math.isfinite(metrics["global/common/loss"])


@pytest.mark.parametrize("size", [7, 32, 512, 700, 2048, 5000])
def test_evaluation_tasks_have_batches_of_whole_chunks(digits: Settings, size: int) -> None:
    """So that all actors evaluate, and no bit of a metric depends on where a task ends."""

    def batches(parts: list[Any]) -> list[list[int]]:
        return [part[at : at + size].tolist() for part in parts for at in range(0, len(part), size)]

    spec, rows = built(digits, evaluation={"batch_size": size}), np.arange(5000)
    parts = spec.evaluation_chunks(rows)
    assert batches(parts) == batches([rows[at : at + 2048] for at in range(0, 5000, 2048)])
    assert max(map(len, parts)) <= min(2048, max(512, size))
