"""Steps: optimisers are torch's to the bit; precision, compiling and training together change what they may."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import nn

from flray import registry
from flray.algorithms.base import Algorithm
from flray.algorithms.client import make_optimizer
from flray.algorithms.common.batched_clients import BatchNormWithoutCuDNN
from flray.algorithms.common.optimizers import SGD, Adam
from flray.config.experiment import Local
from flray.federation import checkpoint
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from flray.models import SplitModel
from flray.tasks import Classification
from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN, Permuted
from tests.helpers import cases, python
from tests.messages import refused


def named(name: str, **settings: Any) -> Any:
    """Return what makes an optimiser by its name in the settings."""
    local = Local.model_validate({"optimizer": name, "lr": 0.1, **settings})
    return lambda parameters: make_optimizer(parameters, local, 0, 1)


OWN = ("sgd", "momentum", "adam", "adamw")
DECAY = {"lr": 0.01, "weight_decay": 1e-2}
NESTEROV = partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)
KINDS: dict[str, Any] = {
    name: (partial(own, **options), partial(theirs, **options))
    for name, own, theirs, options in (
        ("sgd", SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}),
        ("momentum", SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
        ("adam", Adam, torch.optim.Adam, {**DECAY, "betas": (0.8, 0.99)}),
        ("adamw", partial(Adam, decoupled=True), torch.optim.AdamW, DECAY),
    )
}
KINDS["nesterov"] = named("nesterov", momentum=0.9), NESTEROV
BETAS = {"betas": [0.8, 0.9]}
for _kind, _options in (
    *((torch.optim.RMSprop, {"weight_decay": 0.1}), (torch.optim.ASGD, {"weight_decay": 0.2})),
    *((kind, BETAS) for kind in (torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam)),
    *((kind, {}) for kind in (torch.optim.Adadelta, torch.optim.Adafactor, torch.optim.Adagrad)),
):
    _name = _kind.__name__.lower()
    KINDS[_name] = named(_name, **_options), partial(_kind, lr=0.1, **_options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_memory_are_torchs(kind: str, dtype: torch.dtype) -> None:
    """Seven steps with a schedule; one parameter has no gradient, one has none at first, gradients may be zeros."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(7, 5, generator=generator, dtype=dtype) for _ in range(3)]
    draws = (torch.randn(7, 5, generator=generator, dtype=dtype) for _ in range(14))
    gradients = list(zip(draws, draws, strict=True))
    runs = []
    for make in KINDS[kind]:
        optimizer = make(parameters := [nn.Parameter(one.clone()) for one in start])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)
        for number, pair in enumerate(gradients):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            parameters[0].grad = pair[0].clone()
            if number > 1:
                parameters[1].grad = pair[1].clone()
            optimizer.step()
            schedule.step()
        states = [optimizer.state.get(p, {}) for p in parameters]
        memory = [{k: v for k, v in state.items() if v is not None} for state in states]
        runs.append((parameters, memory, optimizer.param_groups[0]["lr"]))
    (own, own_memory, rate), (wanted, memory, wanted_rate) = runs
    assert rate == wanted_rate and all(map(torch.equal, own, wanted))
    for one, other in zip(own_memory, memory, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", OWN)
def test_a_plug_in_can_use_it_as_torchs(kind: str) -> None:
    """Further groups, hooks, and a state that goes out and comes back."""
    make, _ = KINDS[kind]
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer, seen = make(weights[:1]), []
    optimizer.add_param_group({"params": weights[1:], "lr": 0.0})
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    for weight in weights:
        weight.grad = torch.ones(2)
    optimizer.step()
    assert seen == [1] and bool((weights[0] < 1).all()) and weights[1].tolist() == [1.0, 1.0]
    other = make(weights[:1])
    other.add_param_group({"params": weights[1:]})
    other.load_state_dict(optimizer.state_dict())
    assert str(other.state_dict()) == str(optimizer.state_dict())


def test_a_closure_is_called_with_gradients() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = SGD([weight], lr=0.5, momentum=0.0, weight_decay=0.0)

    def closure() -> float:
        loss = weight.sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 2.0 and weight.tolist() == [0.5, 0.5]


COMPILER_IS_IMPORTED = """
import sys
from tests.accelerator.cases import experiment
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation

for name in sys.argv[1:]:
    federation = inline_federation(build_spec(load({"experiment": experiment(name)}).experiment), lambda line: None)
    federation.step()
    federation.evaluate()
    assert "torch._dynamo" not in sys.modules, name
"""


@pytest.mark.slow
def test_no_method_imports_torchs_compiler() -> None:
    python(COMPILER_IS_IMPORTED, *BUILT_IN, cwd=Path(__file__).parents[2])


@registry.register_optimizer("plain-steps")
def plain_steps(parameters: Any, lr: float, *, times: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=times * lr)


@registry.register_optimizer("a-text")
def a_text(parameters: Any, lr: float) -> Any:
    return "sgd"


@registry.register_optimizer("raises-on-use")
def raises_on_use(parameters: Any, lr: float) -> Any:
    raise ValueError("no such luck")


def test_an_own_optimiser_takes_its_option_and_is_part_of_the_settings() -> None:
    named = {"optimizer": {"name": "plain-steps", "times": 2.0}, "lr": 0.05}
    runs = [tiny.run("fedavg", rounds=2, local=local) for local in (named, {"lr": 0.1})]
    assert runs[0].sha256() == runs[1].sha256()
    assert Local().model_dump(mode="json")["optimizer"] == "sgd"
    dumped = Local.model_validate(named).model_dump(mode="json")["optimizer"]
    assert dumped == {"name": "plain-steps", "times": 2.0}
    assert Local.model_validate({"optimizer": dumped}).optimizer == Local(**named).optimizer


def test_each_optimiser_of_torch_is_taken_or_refused_with_the_reason() -> None:
    unfit = ("LBFGS", "Muon", "Rprop", "SparseAdam")
    kinds = {n for n, kind in vars(torch.optim).items() if isinstance(kind, type)}
    taken = {name.lower() for name in kinds - {"Optimizer", *unfit}}
    assert taken == {*KINDS} - {"momentum", "nesterov"}
    for name in (*unfit, "AdamW", "RMSprop"):
        refused(tiny.spec_of, "fedavg", local={"optimizer": name})


def test_what_is_no_optimiser_or_does_not_fit_is_refused() -> None:
    options = {"name": "rmsprop", "alpha": 1}, {"name": "adam", "eps": 1}
    for optimizer in ("rmspro", *options, 7, "a-text", "raises-on-use"):
        refused(tiny.spec_of, "fedavg", local={"optimizer": optimizer})
    refused(tiny.spec_of, "fedavg", local={"optimizer": "adagrad", "momentum": 0.9})
    block = {"aggregation": {"block": 3}, "local": {"optimizer": "nadam", "clients_per_step": 3}}
    refused(tiny.spec_of, "fedavg", model={"name": "two-layer", "norm": False}, **block)


@pytest.mark.parametrize("name", BUILT_IN)
def test_weights_and_outputs_stay_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, loss = set[torch.dtype](), Classification.loss

    def watched(self: Classification, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.add(outputs.dtype)
        value = loss(self, outputs, targets)
        seen.add(value.dtype)
        return value

    monkeypatch.setattr(Classification, "loss", watched)
    digests, settings = [], tiny.settings_for(name)
    for precision in ("float32", "bfloat16"):
        federation = tiny.run(name, rounds=2, local={"precision": precision}, **settings)
        values = [v for weights in federation.server.models.values() for v in weights.values()]
        assert {v.dtype for v in values} <= {torch.float32, torch.int64}
        assert all(bool(torch.isfinite(v).all()) for v in values)
        digests.append(federation.sha256())
    assert seen <= {torch.float32}
    assert digests[0] != digests[1], "it did not reach the network"


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("ATEN_CPU_CAPABILITY") == "default",
    reason="torch 2.13's compiler writes C++ that does not compile where vectors are turned off",
)
@pytest.mark.parametrize("name", ["fedavg", "fedrep", "perfedavg", "fedrcl"])
def test_compiled_runs_repeat_resume_and_stay_near(name: str, tmp_path: Path) -> None:
    """Steps of FedAvg, of one half and then the other, of gradients elsewhere, and of a hook into the network."""

    def federation(compile: bool, executor: Any = InlineExecutor) -> Federation:
        spec = tiny.spec_of(name, local={"compile": compile, "momentum": 0.9})
        return tiny.federation_of(spec, executor(spec))

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain, permuted = federation(False), federation(True, Permuted)
    fast, resumed = federation(True), federation(True)
    for number in range(3):
        for each in (plain, fast, permuted):
            each.step()
        if number == 0:
            checkpoint.save(fast, tmp_path)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    # FedRCL's hooks are in the features: the classifier alone
    assert graphs == 1 if name == "fedrcl" else graphs >= 2
    assert checkpoint.restore(resumed, tmp_path) == 1
    resumed.step()
    resumed.step()
    assert fast.sha256() == permuted.sha256() == resumed.sha256()
    for entry, value in fast.server.model.items():
        tiny.close(value, plain.server.model[entry])


# Batches of 4: other numbers of steps, other last batches; one of a single sample.
SIZES = (12, 9, 15, 7, 10)


def run(name: Any, together: int, block: int = 5, done: int = 2, **changes: Any) -> Federation:
    local = {"momentum": 0.9, "weight_decay": 0.01, "epochs": 2, **changes.pop("local", {})}
    aggregation = {"block": block, **changes.pop("aggregation", {})}
    settings = {"aggregation": aggregation, "local": {**local, "clients_per_step": together}}
    federation = tiny.fresh(name, tiny.gaussian_clients(SIZES), **settings, **changes)
    for _ in range(done):
        federation.step()
    return federation


def assert_near(ours: Federation, theirs: Federation) -> None:
    near = partial(tiny.close, rtol=1e-10, atol=1e-10)
    for key, model in theirs.server.models.items():
        near(ours.server.models[key], model)
    for client in range(len(SIZES)):
        mine, other = (tiny.state_of(one, client).get("personal", {}) for one in (ours, theirs))
        assert mine.keys() == other.keys()
        near(mine, other)


@cases(
    "name, together, changes",
    """[fedavg, 2, {}], [fedavg, 5, {}], [{name: fedprox, mu: 0.5}, 2, {}],
    [{name: fedprox, mu: 0.5}, 5, {}], [fedbn, 2, {}], [fedbn, 5, {}], [local, 2, {}],
    [local, 5, {}], [fedavg, 3, {model: {name: two-layer, norm: false}}],
    [fedavg, 3, {local: {optimizer: adam, lr: 0.01}}], [fedavg, 3, {local: {clip_norm: 0.1}}],
    [fedavg, 3, {participation: {fraction: 0.8, stragglers: 0.5, straggler_work: 0.4}}],
    [fedavg, 3, {aggregation: {buffers: local}}],
    [fedavg, 3, {local: {lr_decay: 0.5, batch_size: 20}}], [fedavg, 3, {local: {epochs: 0}}],
    [fedavg, 3, {models: {client1: {name: two-layer, width: 7}}}]""",
)
def test_it_is_the_same_training(name: Any, together: int, changes: dict[str, Any]) -> None:
    assert_near(run(name, together, **changes), run(name, 1, **changes))


def test_what_is_tracked_of_each_client_is_the_same() -> None:
    ours, theirs = (run("fedavg", together, done=0).step().metrics for together in (5, 1))
    tracked = {n: v for n, v in theirs.items() if n.startswith("train/") and "seconds" not in n}
    clients = {f"train/loss/client/client{i}" for i in range(5)}
    assert {"train/loss", "train/steps", *clients} <= set(tracked)
    assert {name: ours[name] for name in tracked} == pytest.approx(tracked, rel=1e-10)


def test_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    changes = {"participation": {"fraction": 0.8}, "block": 3}
    whole = run("fedbn", 2, **changes, rounds=2)
    assert tiny.resumed_from_any_round(whole.spec, tmp_path) == whole.sha256()
    assert_near(whole, run("fedbn", 1, **changes, rounds=2))


def test_the_step_is_really_shared() -> None:
    """One forward pass for clients of a size, not one each."""
    counts = []
    for together in (1, 5):
        federation, calls = run("fedavg", together, done=0), list[int]()
        resident = federation.executor._runner._resources.resident("two-layer")  # type: ignore[attr-defined]
        resident.model.features.first.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        federation.step()
        counts.append(len(calls))
    assert counts[1] < counts[0]


@registry.register_algorithm("own-loss-under-fedprox")
class OwnLoss(registry.algorithms.get("fedprox")):  # type: ignore[misc]
    """A subclass's own loss is not vouched for by its parent's word."""

    def loss(self, client: Any, batch: Any) -> torch.Tensor:
        return super().loss(client, batch) * client.num_samples


@registry.register_model("branching")
def branching(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    return SplitModel(Branch(), nn.Linear(shape[0], num_classes))


@registry.register_model("silent")
def silent(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    class Silent(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.is_meta:
                raise NotImplementedError
            return x

    return SplitModel(Silent(), nn.Linear(shape[0], num_classes))


@cases(
    "name, changes",
    """[moon, {}], [own-loss-under-fedprox, {}], [fedavg, {block: 2}],
    [fedavg, {local: {compile: true}}], [fedavg, {model: {name: two-layer, dropout: 0.2}}],
    [fedavg, {model: branching}], [fedavg, {model: silent}]""",
)
def test_what_cannot_be_is_refused_before_a_round(name: str, changes: dict[str, Any]) -> None:
    refused(run, name, 3, done=0, **changes)


def test_batch_norm_of_clients_together_is_without_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H100, torch 2.11: cuDNN's asks for the memory format, and `vmap` knows the plain one alone."""
    asked, native = [], torch.batch_norm

    def batch_norm(*args: Any) -> torch.Tensor:
        asked.append((torch.backends.cudnn.enabled, args[-1]))
        return native(*args)

    monkeypatch.setattr(torch, "batch_norm", batch_norm)
    layer, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    with BatchNormWithoutCuDNN():
        layer(x)
    layer(x)
    assert asked == [(False, False), (True, True)]


def test_methods_vouch_for_their_own_loss_alone() -> None:
    assert not Algorithm.vectorised
    methods = {name: registry.algorithms.get(name) for name in registry.algorithms.names()}
    assert [name for name, kind in methods.items() if "vectorised" in vars(kind)] == ["fedprox"]
