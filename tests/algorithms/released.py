"""What the tests of whole loops of released code share: a network, the order of batches, the comparison.

The loops themselves are written in each test in plain PyTorch. They take from flray what is no
part of a method: initial values, data, and in which order samples come.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flray import registry, rng
from flray.federation.federation import Federation
from flray.models import SplitModel
from tests.algorithms import helpers as tiny


@registry.register_model("two-norms")
def two_norms(shape: tuple[int, ...], num_classes: int, *, width: int = 6) -> nn.Module:
    """No bias beside a norm or a correlation: its gradient would be rounding noise, which Adam makes large."""
    layers: list[nn.Module] = []
    for inputs in (shape[0], width):
        layers += [nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
    return SplitModel(nn.Sequential(*layers), nn.Linear(width, num_classes, bias=False))


ROUNDS = 3
CLIENTS = tiny.gaussian_clients((11, 10, 14), classes=4)


def fresh(options: dict[str, Any], **settings: Any) -> Federation:
    """Return a federation of the released variant of a method, of networks with two norms and four classes."""
    made = {"clients": CLIENTS, "model": "two-norms", **settings}
    return tiny.fresh({"variant": "released", **options}, classes=4, **made)


def side_by_side(
    method: str, loop: Any, options: Mapping[str, Any], other: Any, **settings: Any
) -> Iterator[tuple[Federation, Any, Mapping[str, float]]]:
    """Yield a federation, a loop and what is measured after each round; `other` are options of flray's alone.

    The loop is given the federation and the options with the values that follow from the variant.
    """
    options = {"variant": "released", **options}
    hp = registry.algorithms.params(method)(**options).resolved()
    federation = fresh({"name": method, **options, **(other or {})}, **settings)
    made = loop(federation, hp)
    for number in range(ROUNDS):
        metrics = federation.step().metrics
        made.run(number)
        yield federation, made, metrics


def networks(federation: Federation) -> list[nn.Module]:
    """Return each client's freshly initialised network."""
    return [federation.spec.build(key) for key in federation.spec.architecture_of]


def private(federation: Federation, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's training data."""
    data = federation.spec.data
    rows = data.clients[client].train
    return tiny.as_tensors([(data.x[rows], data.y[rows])])[0]


def private_batches(
    federation: Federation, client: int, round: int, size: int, epochs: int, stream: str = "train/0"
) -> list[list[Tensor]]:
    """Return, by epoch, which samples make up each batch of a client in a round."""
    seed, key = federation.spec.config.seed, {"round": round, "client": client}
    generator = rng.torch_generator(seed, "batches", **key, extra=stream)
    count = len(federation.spec.data.clients[client].train)
    return [list(torch.randperm(count, generator=generator).split(size)) for _ in range(epochs)]


def assert_same(found: Any, model: nn.Module, counters: bool = True, atol: float = 1e-12) -> None:
    """Compare all parameters and buffers."""
    wanted = model.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if value.is_floating_point() or counters:
            said = partial("{}: {}".format, name)
            torch.testing.assert_close(found[name], value, rtol=0, atol=atol, msg=said)
