"""Federations from hand-made arrays on tiny networks, in float64 and in this process."""

import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flray import registry, trees
from flray.config.experiment import Config
from flray.data.types import DataSet, Domain
from flray.federation import FederationSpec, checkpoint
from flray.federation.building import build_spec
from flray.federation.federation import Federation
from flray.federation.messages import TaskBlock
from flray.federation.worker.client_runner import InlineExecutor
from flray.models import SplitModel, select

Bytes = Callable[[Federation], tuple[float, float]]
Arrays = tuple[NDArray[Any], NDArray[np.int64]]
Clients = Sequence[Arrays] | None
Named = str | Mapping[str, Any]
QUICK: dict[str, dict[str, Any]] = {"feddf": {"steps": 20}}
"""Options of methods that by their defaults would take long; what is measured by name alone runs with these."""
W, V = "features.first.weight", "classifier.weight"
DROPOUT = {"name": "two-layer", "dropout": 0.2}
OTHER = {"client1": {"name": "two-layer", "width": 7, "norm": False}}
"""Settings of another network for one client."""
SIZES = [12, 9, 15]
"""Samples of each of the `gaussian_clients`."""
_clients: dict[str, tuple[list[Arrays], int]] = {}


@registry.register_dataset("hand-made")
def hand_made(root: Path, *, key: str) -> DataSet:
    clients, classes = _clients[key]
    domains = tuple(Domain(f"client{i}", "random", x, y, x, y) for i, (x, y) in enumerate(clients))
    names, samples = tuple(map(str, range(classes))), np.concatenate([x for x, _ in clients])[:24]
    public = samples * np.asarray(0.7, dtype=samples.dtype)
    return DataSet(f"hand-made {key}", domains, names, (0.0,), (1.0,), public=public)


@registry.register_dataset("small-images")
def small_images(root: Path) -> DataSet:
    """Two clients of the same images."""
    x = np.random.default_rng(1).integers(0, 256, (16, 1, 8, 8), dtype=np.uint8)
    y = np.arange(16, dtype=np.int64) % 2
    domains = tuple(Domain(name, "random", x, y, x, y) for name in ("one", "two"))
    return DataSet("small-images", domains, ("a", "b"), (0.5,), (0.25,))


@registry.register_model("one-layer")
def one_layer(shape: tuple[int, ...], num_classes: int, *, more: int = 0) -> nn.Module:
    """No bias, so that a closed form is short."""
    return SplitModel(nn.Flatten(), nn.Linear(shape[0], num_classes + more, bias=False))


@registry.register_model("two-layer")
def two_layer(
    shape: tuple[int, ...], classes: int, *, norm: bool = True, dropout: float = 0.0, width: int = 5
) -> nn.Module:
    """No bias before the norm, whose gradient would be rounding noise that Adam makes large."""
    layers = OrderedDict[str, nn.Module](first=nn.Linear(shape[0], width, bias=not norm))
    if norm:
        layers["middle"] = nn.BatchNorm1d(width)
    layers["active"] = nn.ReLU()
    if dropout:
        layers["drop"] = nn.Dropout(dropout)
    return SplitModel(nn.Sequential(layers), nn.Linear(width, classes), ["features.first"])


@registry.register_model("linear-body")
def linear_body(shape: tuple[int, ...], num_classes: int, *, layers: int = 1) -> nn.Module:
    """No bias and no activation, so that a closed form is short."""
    body: OrderedDict[str, nn.Module] = OrderedDict(first=nn.Linear(shape[0], 5, bias=False))
    if layers == 2:
        body["second"] = nn.Linear(5, 5, bias=False)
    return SplitModel(nn.Sequential(body), nn.Linear(5, num_classes, bias=False))


@registry.register_model("deep-classifier")
def deep_classifier(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A classifier of several layers, with batch norm and dropout."""
    middle = nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2)
    head = nn.Sequential(nn.Linear(5, 6), *middle, nn.Linear(6, num_classes))
    return SplitModel(nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU()), head)


def gaussian_clients(
    sizes: Sequence[int] = (12, 9, 15), classes: int = 3, features: int = 4, skew: bool = False
) -> list[Arrays]:
    """Return each client's samples: Gaussian around its classes' centres; skewed, client i has no class i."""
    generator = np.random.default_rng(7)
    centres = generator.normal(size=(classes, features)) * 2
    clients = []
    for i, size in enumerate(sizes):
        held = [c for c in range(classes) if not (skew and c == i % classes)]
        y = np.array([held[j % len(held)] for j in range(size)], dtype=np.int64)
        x = centres[y] + generator.normal(size=(size, features)) + 0.3 * i
        clients.append((x.astype(np.float64), y))
    return clients


def spec_of(
    algorithm: Named, clients: Clients = None, *, model: Named = "two-layer", **experiment: Any
) -> FederationSpec:
    """Return the specification of a federation of hand-made clients; `experiment` holds further sections."""
    if isinstance(algorithm, str):
        algorithm = {"name": algorithm, **QUICK.get(algorithm, {})}
    classes = experiment.pop("classes", 3)
    clients = list(gaussian_clients() if clients is None else clients)
    key = str(hash((classes, *(a.tobytes() for client in clients for a in client))))
    _clients[key] = (clients, classes)
    settings = {"precision": "float64", "lr": 0.1, "batch_size": 4, **experiment.pop("local", {})}
    content: dict[str, Any] = {"data": {"name": "hand-made", "key": key}, "rounds": 3}
    content |= {"model": model, "algorithm": algorithm, "local": settings}
    content |= {"resources": {"gpus_per_actor": 0}, **experiment}
    return build_spec(Config.model_validate({"experiment": content}).experiment)


class Noting(InlineExecutor):
    """Notes the blocks of each call."""

    def __init__(self, spec: FederationSpec) -> None:
        super().__init__(spec)
        self.calls: list[Sequence[TaskBlock]] = []

    def run_blocks(self, blocks: Sequence[TaskBlock], *rest: Any, **named: Any) -> Iterator[Any]:
        self.calls.append(blocks)
        return super().run_blocks(blocks, *rest, **named)


def federation_of(spec: FederationSpec, executor: Any = None) -> Federation:
    executor = InlineExecutor(spec) if executor is None else executor
    return Federation(spec, executor, warn=lambda line: None)


def fresh(*arguments: Any, **settings: Any) -> Federation:
    """Return a federation before its first round, of the arguments of `spec_of`."""
    return federation_of(spec_of(*arguments, **settings))


def start(federation: Federation) -> dict[str, Tensor]:
    """Return the global model that a federation began with."""
    return dict(federation_of(federation.spec).server.model)


def run(algorithm: Named, clients: Clients = None, rounds: int = 1, **settings: Any) -> Federation:
    """Return a federation after some rounds."""
    federation = fresh(algorithm, clients, **settings)
    for _ in range(rounds):
        federation.step()
    return federation


def resumed_from_any_round(spec: FederationSpec, folder: Path) -> str:
    """Return the digest after all rounds, which is that of federations that go on from each round's checkpoint."""
    whole, rounds = federation_of(spec), spec.config.rounds
    for done in range(rounds):
        checkpoint.save(whole, folder / str(done))
        whole.step()
    for done in range(rounds):
        resumed = federation_of(spec)
        assert checkpoint.restore(resumed, folder / str(done)) == done
        while resumed.rounds_done < rounds:
            resumed.step()
        assert resumed.sha256() == whole.sha256(), f"resumed after round {done}"
    return whole.sha256()


def full(model: str | dict[str, Any] = "one-layer", **local: Any) -> dict[str, Any]:
    """Return settings of a network and of batches that hold all of a client's samples."""
    return {"model": model, "local": {"batch_size": 100, **local}}


def state_of(federation: Federation, client: int) -> dict[str, Any]:
    """Return what a client remembers; empty where it has never taken part."""
    handle = federation.states[client]
    return trees.unpack(federation.executor.fetch(handle)) if handle is not None else {}


def kept(federation: Federation, client: int) -> dict[str, Tensor]:
    """Return what a client keeps of the model."""
    return state_of(federation, client)["personal"]  # type: ignore[no-any-return]


def personal_sha(federation: Federation) -> str:
    """Return the digest of each client's own model, or of the part of the model that it keeps."""
    states = [state_of(federation, client) for client in range(len(federation.states))]
    keys = ("v", "own", "personal")
    return trees.sha256(*(next(state[key] for key in keys if key in state) for state in states))


def settings_for(name: str) -> dict[str, Any]:
    """Return settings under which any registered method runs on `gaussian_clients`, from what it declares to need."""
    algorithm = registry.algorithms.get(name)
    return {"evaluation": {"validation": 0.25}} if "validation" in algorithm.needs else {}


def partial_participation(name: str) -> dict[str, Any]:
    """Return settings for partial participation, or none where a method needs all clients."""
    everybody = "all_clients" in registry.algorithms.get(name).needs
    return {} if everybody else {"participation": {"clients": 2}}


def size(federation: Federation, group: str) -> int:
    """Return the bytes of one group of the network."""
    (model,) = [federation.spec.build(key) for key in federation.spec.architectures]
    return trees.tensor_bytes({n: model.state_dict()[n] for n in select(model, group)})


def parameters(federation: Federation) -> int:
    """Return the bytes of the network's parameters."""
    return size(federation, "all") - size(federation, "buffers")


def same(group: str) -> Bytes:
    """Return the traffic of a method that sends one group down and up."""
    return lambda federation: (size(federation, group), size(federation, group))


def own_row(method: str, name: str) -> Any:
    """Return a row that a method's own test holds: ``TRAFFIC`` or ``DIFFERENT``."""
    return getattr(importlib.import_module(f"tests.algorithms.test_{method}"), name)


def softmax_gradient(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the mean cross-entropy of logits ``x w^T`` in w, by hand: (p - onehot)^T x / n."""
    p = torch.softmax(x @ w.T, dim=1)
    p[torch.arange(len(y)), y] -= 1
    return p.T @ x / len(y)


def softmax_steps(w: Tensor, x: Tensor, y: Tensor, steps: int, lr: float = 0.1) -> Tensor:
    """Return w after some steps down that gradient."""
    for _ in range(steps):
        w = w - lr * softmax_gradient(w, x, y)
    return w


def gradient_step(
    weights: Mapping[str, Tensor], loss: Callable[[Mapping[str, Tensor]], Tensor], lr: float = 0.1
) -> dict[str, Tensor]:
    """Return the weights after one step of gradient descent on a loss that a test writes out."""
    leaves = {name: w.detach().clone().requires_grad_() for name, w in weights.items()}
    gradients = torch.autograd.grad(loss(leaves), list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), gradients, strict=True)
    return {name: w.detach() - (0 if g is None else lr * g) for (name, w), g in pairs}


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def linear_loss(weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of `linear-body` with one layer."""
    return nn.functional.cross_entropy(x @ weights[W].T @ weights[V].T, y)


def each_step(
    weights: Any, data: Sequence[tuple[Tensor, Tensor]], loss: Callable[..., Tensor] = linear_loss
) -> list[dict[str, Tensor]]:
    """Return each client's weights after one step on all its samples, from common weights or its own."""
    starts = [weights] * len(data) if isinstance(weights, Mapping) else weights
    return [
        gradient_step(start, lambda w, x=x, y=y: loss(w, x, y))  # type: ignore[misc]
        for start, (x, y) in zip(starts, data, strict=True)
    ]


def mean_of(weights: Sequence[Mapping[str, Tensor]], sizes: Sequence[int]) -> dict[str, Tensor]:
    """Return the weighted mean, in the plainest way."""
    parts = [(n / sum(sizes), w) for n, w in zip(sizes, weights, strict=True)]
    return {name: torch.stack([s * w[name] for s, w in parts]).sum(0) for name in weights[0]}


def close(actual: Any, expected: Any, rtol: float = 1e-12, atol: float = 1e-12) -> None:
    """Compare tensors, or the expected entries of a mapping, as closely as float64 allows after some steps."""
    if isinstance(expected, Mapping):
        actual, expected = {name: actual[name] for name in expected}, dict(expected)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def has_loss(federation: Federation, client: int, logits: Tensor, view: str = "personal") -> None:
    """Compare a client's measured loss with that of logits for its samples."""
    found = federation.evaluate()[f"{view}/local/loss/client/client{client}"]
    data = federation.spec.data
    y = torch.from_numpy(data.y[data.clients[client].test])
    close(torch.tensor(found, dtype=torch.float64), nn.functional.cross_entropy(logits, y))


def as_tensors(clients: Sequence[Arrays]) -> list[tuple[Tensor, Tensor]]:
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in clients]


def tensors(*arguments: Any, **options: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the samples of `gaussian_clients` as tensors."""
    return as_tensors(gaussian_clients(*arguments, **options))


def digest(*arguments: Any, **settings: Any) -> str:
    """Return the digest of the global models after the rounds of `run`."""
    return models_sha(run(*arguments, **settings))


def models_sha(federation: Federation) -> str:
    """Return the digest of the global models alone, comparable between methods with different memories."""
    return trees.sha256(federation.server.models)
