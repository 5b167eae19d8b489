"""What clients of one process compute and keep: raw samples, diagnostics, measures, memory, and tests in common."""

import gc
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flray import registry
from flray.devices import resident_bytes
from flray.federation import evaluation, partition_summary
from flray.federation.evaluation import available_metrics, check_metric, collect_diagnostics
from flray.federation.federation import Federation, inline_federation
from flray.federation.messages import TaskInput
from flray.federation.worker import resources
from flray.federation.worker.client_runner import ClientRunner, InlineExecutor
from flray.federation.worker.diagnostics import encode, evenly_spaced, save_encoded
from flray.federation.worker.resources import EvaluationCache
from flray.models import SplitModel
from flray.tasks import make_task
from flray.tasks.classification import summarise_parts
from flray.trees import Packed
from tests.algorithms.helpers import federation_of, gaussian_clients, run, settings_for, spec_of
from tests.algorithms.test_every_algorithm import BUILT_IN
from tests.end_to_end.test_tasks import EEG, FUNDUS, GLYPHS
from tests.helpers import Settings, built, cases, python, steady
from tests.messages import refused


@pytest.mark.parametrize("model", ["lenet", "linear"])
@pytest.mark.parametrize("layout", ["channels_last", "contiguous"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_normalised_per_channel(digits: Settings, layout: str, precision: str, model: str) -> None:
    digits["model"] = model
    digits["local"] |= {"memory_format": layout, "precision": precision}
    runner = ClientRunner(built(digits), torch.device("cpu"))
    data, dtype = runner.spec.data, getattr(torch, precision)
    rows = data.clients[1].train[:7]
    x, y = runner._resources.samples(rows).take(torch.arange(7))
    raw = torch.from_numpy(data.x[rows]).to(torch.float64)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (data.mean, data.std))
    torch.testing.assert_close(x, ((raw / 255 - mean) / std).to(dtype))
    layouts = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
    # A network that has no use for another layout would copy each batch.
    wanted = layouts[layout if model == "lenet" else "contiguous"]
    assert x.is_contiguous(memory_format=wanted)
    assert y.tolist() == data.y[rows].tolist()
    # Public samples may have another size than private ones.
    small = runner._resources._prepare(torch.from_numpy(data.x[rows][:, :, :5, :9]))
    assert torch.equal(small, x[:, :, :5, :9])


@pytest.mark.parametrize("layout", ["channels_last", "contiguous"])
@pytest.mark.parametrize("shape", [[3, 8, 8], [1, 8, 8], [3, 1, 8], [5]])
def test_few_samples_are_prepared_at_once_and_give_the_same_batches(
    digits: Settings, layout: str, shape: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    digits["local"] |= {"memory_format": layout}
    digits |= {"data": {"name": "random", "samples": 40, "shape": shape}, "model": "linear"}
    found = []
    for limit in (0, 2**20):
        monkeypatch.setattr(resources, "FEW_BYTES", limit)
        runner = ClientRunner(built(digits), torch.device("cpu"))
        samples = runner._resources.samples(runner.spec.data.clients[0].train)
        assert (samples._ready is None) == (limit == 0)
        found.append([samples.take(torch.tensor(one)) for one in ([3, 1, 4], [5], [0, 0])])
    for (x, y), (a, b) in zip(*found, strict=True):
        assert torch.equal(x, a) and torch.equal(y, b) and x.stride() == a.stride()


@pytest.mark.parametrize("limit", [0, 2**24])
def test_samples_stay_ready(digits: Settings, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "KEPT_BYTES", limit)
    monkeypatch.setattr(resources, "FEW_BYTES", 2**22)
    runner = ClientRunner(built(digits), torch.device("cpu"))
    rows = runner.spec.data.clients
    for client in (0, 1, 0):
        (train, validation), again = (runner._resources.samples_of(client) for _ in range(2))
        assert (again[0] is train and again[1] is validation) == (limit > 0)
        assert train.rows.tolist() == rows[client].train.tolist()
        assert validation.rows.tolist() == rows[client].val.tolist()
    monkeypatch.setattr(resources, "FEW_BYTES", 0)  # large clients
    assert runner._resources.samples_of(2)[0] is not runner._resources.samples_of(2)[0]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_portrait_of_every_method_changes_nothing(name: str) -> None:
    federation = federation_of(spec_of(name, gaussian_clients(), **settings_for(name)))
    federation.step()
    before = federation.sha256()
    found = collect_diagnostics(federation)
    assert federation.sha256() == before
    assert found["correlation"].shape == (3, 3, 3) and np.isfinite(found["correlation"]).all()
    assert np.abs(found["correlation"]).max() <= 1.01
    assert len({len(found[name]) for name in ("labels", "predicted", "features", "client")}) == 1
    assert found["distance"].shape == (3, len(found["layers"]))
    assert set(collect_diagnostics(federation, final=False)) == {"correlation"}
    known = federation.server.state.get("prototypes", {}).get("vectors")
    assert known is not None if name in ("fedproc", "fedproto") else known is None
    assert np.array_equal(found.get("prototypes", ()), () if known is None else known.float())


def test_a_global_model_is_nowhere_away_from_itself_and_a_local_one_is() -> None:
    for name, away in (("fedavg", False), ("local", True), ("lgmix", True)):
        federation = federation_of(spec_of(name, gaussian_clients()))
        federation.step()
        found = collect_diagnostics(federation)
        assert (found["distance"].max() > 1e-3) == away
        assert found["personal"].all() == (name == "local")


def test_a_portrait_travels_as_text(tmp_path: Path) -> None:
    save_encoded(encode({"a": np.arange(4.0), "names": np.array(["x", "yy"])}), tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as found:
        assert found["a"].tolist() == [0, 1, 2, 3] and found["names"].tolist() == ["x", "yy"]


def test_chosen_rows_are_spread_evenly_and_who_holds_what() -> None:
    assert evenly_spaced(np.arange(10), 4).tolist() == [0, 3, 6, 9]
    assert evenly_spaced(np.arange(3), 4).tolist() == [0, 1, 2]
    data = spec_of("fedavg", gaussian_clients()).data
    held = [sum(client["train"]) for client in partition_summary(data)["clients"]]
    assert held == [len(client.train) for client in data.clients]


@cases(
    "task, changes",
    """[digits, {}], [digits, {algorithm: lgmix, evaluation: {validation: 0.2, others: true}}],
    [digits, {algorithm: fednh}], [fundus, {}], [eeg, {}], [glyphs, {}]""",
)
def test_names_of_an_evaluation(digits: Settings, task: str, changes: dict[str, Any]) -> None:
    tasks = {"digits": digits, "fundus": FUNDUS, "eeg": EEG, "glyphs": GLYPHS}
    spec = built(tasks[task], **changes)
    found = Federation(spec, InlineExecutor(spec)).evaluate()
    assert {name for name in found if name.count("/") == 2} == set(available_metrics(spec))
    for name in found:
        check_metric(spec, name, "sweep.metric")


def test_a_metric_that_will_never_be_measured_is_refused(digits: Settings) -> None:
    spec = built(digits)
    for name in ("global/common/acuracy", "validation/accuracy", "personal/local/accuracy"):
        refused(check_metric, spec, name, "sweep.metric")
    refused(check_metric, spec, "acc\nuracy", "sweep.metric")
    check_metric(spec, "train/loss", "sweep.metric")


SIZE = 200 * 2**20


def in_a_process(program: str, content: object = None) -> list[float]:
    return [float(word) for word in python(program, input=json.dumps(content)).stdout.split()[-2:]]


@pytest.mark.slow
def test_the_peak_is_the_process_s_own_and_kept_after_memory_is_given_back() -> None:
    held = bytearray(b"1") * (3 * SIZE)  # of the parent
    peak, resident = in_a_process(
        "from flray.devices import peak_bytes, resident_bytes\n"
        f"held = bytearray(b'1') * {SIZE}\n"
        "del held\n"
        "print(peak_bytes(), resident_bytes())"
    )
    assert resident + SIZE // 2 < peak < resident_bytes() - SIZE
    assert len(held) == 3 * SIZE


@pytest.mark.parametrize("algorithm", ["fedskc", "lgmix", "scaffold"])
@pytest.mark.parametrize("block", [None, 2])
def test_a_round_leaves_no_cycles(digits: Settings, algorithm: str, block: int | None) -> None:
    """Replies and states of large networks would fill the memory before Python looks for them."""
    content = {**digits, "algorithm": algorithm, "aggregation": {"block": block}}
    federation = inline_federation(built(content))
    federation.step()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        federation.step()
        gc.collect()
        assert not [one for one in gc.garbage if isinstance(one, Packed | Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.slow
def test_the_peak_of_a_round_includes_its_evaluation(digits: Settings) -> None:
    """A round trains on a batch of 16 and is tested on 400 samples at once, which takes far more memory."""
    content = {**digits, "rounds": 1, "model": "resnet8", "evaluation": {"batch_size": 2048}}
    content["data"] = {"name": "digits-sklearn", "samples": 400}
    content["local"] = {"lr": 0.05, "batch_size": 16, "steps": 2}
    told, peak = in_a_process(
        "import json, sys\n"
        "from flray.config.loader import load\n"
        "from flray.federation.building import build_spec\n"
        "from flray.federation.federation import inline_federation\n"
        "from flray.devices import peak_bytes\n"
        "spec = build_spec(load({'experiment': json.load(sys.stdin)}).experiment)\n"
        "metrics = inline_federation(spec).step().metrics\n"
        "print(metrics['memory/peak/actor'], peak_bytes())",
        content,
    )
    assert told > 0.97 * peak


class Counting(nn.Linear):
    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x)


@pytest.fixture
def runner(digits: Settings) -> ClientRunner:
    return ClientRunner(built(digits), torch.device("cpu"))


@pytest.fixture
def model() -> SplitModel:
    body = nn.Sequential(nn.Flatten(), Counting(3 * 32 * 32, 5))
    return SplitModel(body, nn.Linear(5, 10)).eval()


def outputs(cache: EvaluationCache, runner: ClientRunner, model: nn.Module) -> list[Tensor]:
    rows = runner.spec.data.test[:10]
    with torch.no_grad(), cache.sharing([("net", model)]):
        samples = runner._resources.samples(rows, once=True)
        return [model(x) for x, _ in cache.batches(rows, samples, 6)]


def test_a_body_of_the_same_bits_is_passed_once(runner: ClientRunner, model: SplitModel) -> None:
    cache, body = EvaluationCache(), model.features[1]
    first = outputs(cache, runner, model)
    assert body.passes == 2
    with torch.no_grad():
        model.classifier.weight.mul_(2)  # another head
    second = outputs(cache, runner, model)
    assert body.passes == 2 and not torch.equal(first[0], second[0])
    assert torch.equal(second[0], outputs(EvaluationCache(), runner, model)[0])


@pytest.mark.parametrize("change", ["weight", "sign of zero", "training", "hook", "batch"])
def test_all_else_is_computed_anew(runner: ClientRunner, model: SplitModel, change: str) -> None:
    cache, body = EvaluationCache(), model.features[1]
    body.bias.data.zero_()
    outputs(cache, runner, model)
    if change == "weight":
        body.weight.data[0, 0] += 1  # which raises no version of the tensor
    elif change == "sign of zero":
        body.bias.data.neg_()
    elif change == "training":
        body.train()
    elif change == "hook":
        body.register_forward_hook(lambda *_: None)
    else:
        cache._batch = None
        with torch.no_grad(), cache.sharing([("net", model)]):
            model(torch.zeros(6, 3, 32, 32))
    assert outputs(cache, runner, model) and body.passes == (3 if change == "batch" else 4)


def test_a_network_may_write_to_input_and_features(runner: ClientRunner, model: SplitModel) -> None:
    """Also where the features are a view of the input."""
    for writes in (
        SplitModel(nn.Sequential(nn.ReLU(inplace=True), nn.Flatten()), model.classifier),
        SplitModel(model.features, nn.Sequential(nn.ReLU(inplace=True), model.classifier)),
    ):
        network = writes if writes.features is model.features else writes.features
        cache = EvaluationCache()
        wanted = outputs(EvaluationCache(), runner, network.eval())
        for _ in range(3):
            assert all(map(torch.equal, outputs(cache, runner, network), wanted))


def test_a_client_without_test_samples_has_one_empty_batch(runner: ClientRunner) -> None:
    rows = runner.spec.data.test[:0]
    for cache in (EvaluationCache(), runner._resources._tests):
        ((x, y),) = cache.batches(rows, runner._resources.samples(rows, once=True), 6)
        assert (len(x), len(y)) == (0, 0)


@pytest.mark.parametrize("others", [False, True])
def test_few_test_samples_leave_some_clients_without(others: bool) -> None:
    data = {"name": "random", "samples": 60, "shape": [3, 8, 8], "classes": 3}
    content = {"data": data, "partition": {"name": "iid", "clients": 20}, "model": "linear"}
    content |= {"algorithm": "fedper", "evaluation": {"others": others, "pooled": True}}
    federation = inline_federation(built({"rounds": 1, **content}), print)
    found = federation.step().metrics
    assert sum(not len(client.test) for client in federation.spec.data.clients) > 0
    assert 0 <= found["personal/local/accuracy"] <= 1
    federation.close()


class Dropping(nn.Linear):
    """A layer that draws when it is tested, too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), training=True)


@registry.register_model("draws-when-tested")
def draws_when_tested(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Logistic regression that drops outputs."""
    return SplitModel(nn.Flatten(), Dropping(math.prod(shape), num_classes))


@pytest.mark.parametrize(
    ("method", "others", "tasks"),
    [
        *(("local", False, [4, 1, 1]), ("local", True, [4] * 3), ("fedper", False, [4] * 3)),
        ("own network", False, [4] * 3),
    ],
)
def test_models_that_have_not_changed_are_not_tested_again(
    digits: Settings, method: str, others: bool, tasks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = digits | {"algorithm": method, "evaluation": {"others": others}}
    if method == "own network":
        content |= {"algorithm": "local", "model": "draws-when-tested"}
    spec = built(content | {"participation": {"clients": 1}})
    learnt, every, predict = inline_federation(spec), inline_federation(spec), evaluation.predict
    given: list[int] = []

    def counted(of: Federation, jobs: list[TaskInput]) -> Any:
        given.append(len(jobs))
        return predict(of, jobs)

    monkeypatch.setattr(evaluation, "predict", counted)
    for count in tasks:
        every.tested.clear()
        assert steady(learnt.step().metrics) == steady(every.step().metrics)
        assert given[-2:] == [count, 4]
    assert learnt.sha256() == every.sha256()


def test_no_more_is_kept_than_there_is_room_for(
    runner: ClientRunner, model: SplitModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "CACHE_BYTES", 80_000)
    cache = EvaluationCache()
    wanted = outputs(EvaluationCache(), runner, model)
    for _ in range(2):
        assert all(map(torch.equal, outputs(cache, runner, model), wanted))
    assert sum(x.nbytes for x, _ in cache._inputs.values()) <= 80_000
    assert all(body.bytes <= 80_000 or not body.features for body in cache._bodies)


@pytest.mark.parametrize("method", ["fedper", "fedrod", "fedproto", "fedbabu", "fedco2"])
def test_methods_measure_the_same_without_it(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"rounds": 1, "local": {"epochs": 1}, "evaluation": {"others": True, "pooled": True}}
    found = run(method, gaussian_clients((12, 9, 15)), **settings).evaluate()
    monkeypatch.setattr(resources, "CACHE_BYTES", 0)
    assert run(method, gaussian_clients((12, 9, 15)), **settings).evaluate() == found


@pytest.mark.parametrize("top_k", [None, 3])
def test_parts_are_measured_to_the_bits_of_each_alone(top_k: int | None) -> None:
    task = make_task("classification", tuple("abcdefg"), top_k=top_k)
    draws = np.random.default_rng(1)
    sizes = [*draws.integers(0, 20, 30), *draws.integers(0, 1000, 10), 0, 8, 8, 9000]
    found = {"correct": draws.random(sum(sizes)) < 0.5, "loss": draws.gamma(1.0, 2.0, sum(sizes))}
    if top_k is not None:
        found["top3"] = draws.random(sum(sizes)) < 0.8
    parts = summarise_parts(task, found, sizes)
    ends = np.cumsum([0, *sizes])
    for i in range(len(sizes)):
        alone = task.summarise({n: v[ends[i] : ends[i + 1]] for n, v in found.items()})
        np.testing.assert_array_equal([parts[name][i] for name in alone], list(alone.values()))
    assert list(parts) == list(alone)


def test_a_body_may_have_values_of_any_kind(runner: ClientRunner, model: SplitModel) -> None:
    cache, body = EvaluationCache(), model.features[1]
    model.features.register_buffer("phase", torch.ones((), dtype=torch.complex128))
    model.features.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    for _ in range(2):
        outputs(cache, runner, model)
    assert body.passes == 2
    model.features.phase.imag.add_(1)
    outputs(cache, runner, model)
    assert body.passes == 4
