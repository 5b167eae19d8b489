"""Running statistics (BatchNorm) of clients: no model is tested with those that it began with."""

from pathlib import Path
from typing import Any

import pytest
import torch

from flray import trees
from flray.federation.evaluation import available_metrics, check_metric
from flray.federation.federation import Federation
from flray.runs import runner
from flray.runs.models import TrainedModels
from tests.algorithms.helpers import federation_of, gaussian_clients, spec_of
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
    assert average.has_common and not average.keeps_statistics
    assert not spec_of("fedbn").has_common and spec_of("fedbn").keeps_statistics
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


def test_clients_that_have_not_trained_are_left_out_and_said() -> None:
    said: list[str] = []
    spec = spec_of("fedavg", participation={"clients": 1}, **LOCAL)
    federation = Federation(spec, federation_of(spec).executor, said.append)
    first = federation.step().metrics
    assert sum("/accuracy/client/" in name for name in first) == 1
    assert [line for line in said if "2 of 3 clients have not trained yet" in line]
    bn = spec_of("fedbn", participation={"clients": 1})
    federation = Federation(bn, federation_of(bn).executor, said.append)
    assert sum("/accuracy/client/" in name for name in federation.step().metrics) == 3
    assert said[-1].endswith("they are tested with these")


@pytest.mark.parametrize(
    ("method", "settings"), [("fedavg", {"participation": {"unseen": 1}}), ("pooled", {})]
)
def test_what_needs_one_model_is_refused(method: str, settings: dict[str, Any]) -> None:
    refused(spec_of, method, **settings, **LOCAL)


def test_an_unseen_client_is_tested_after_steps_of_its_own() -> None:
    settings = {"participation": {"unseen": 1}, "evaluation": {"adapt_steps": 2}}
    metrics = federation_of(spec_of("fedavg", **settings, **LOCAL)).step().metrics
    assert "adapted/unseen/accuracy" in metrics
    assert "global/unseen/accuracy" not in metrics


def test_a_run_is_reported_and_exported_by_its_clients(tmp_cwd: Path) -> None:
    from flray.results.load import load_folder
    from flray.runs.export import export

    experiment = {
        "rounds": 2,
        "data": {"name": "random", "shape": [1, 16, 16], "samples": 24},
        "partition": {"name": "iid", "clients": 2},
        "model": {"name": "lenet", "norm": "batch"},
        "algorithm": "fedavg",
        **LOCAL,
        "resources": {"executor": "inline"},
        "tracking": {"uri": None},
    }
    result = runner.run({"experiment": experiment})
    assert result.metric == "global/local/accuracy"
    assert load_folder(result.folder).trials[0].metric == "global/local/accuracy"
    refused(export, result.folder, Path("models"))
    models = TrainedModels(result.folder)
    first, second = (models.client_model(name).state_dict() for name in models.clients)
    differ = {name for name in first if not torch.equal(first[name], second[name])}
    assert differ and all("running" in name for name in differ)
    assert [path.name for path in export(result.folder, Path("all"), every=True)]
