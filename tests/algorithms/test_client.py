"""What a client offers to hooks: augmentation by setting, a phase's own settings."""

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flray import registry, rng, trees
from flray.algorithms.base import Algorithm
from flray.algorithms.client import Client
from flray.algorithms.common.client_parts import gradient_at
from flray.algorithms.types import Phase
from flray.data.types import DataSet, Domain
from tests.algorithms import helpers as tiny

SEEN: list[torch.Tensor] = []
EPOCHS: list[int] = []


@registry.register_dataset("small-images")
def small_images(root: Any) -> DataSet:
    x = np.random.default_rng(1).integers(0, 256, (16, 1, 8, 8), dtype=np.uint8)
    y = np.arange(16, dtype=np.int64) % 2
    domains = tuple(Domain(name, "random", x, y, x, y) for name in ("one", "two"))
    return DataSet("small-images", domains, ("a", "b"), (0.5,), (0.25,))


@registry.register_algorithm("watching")
class Watching(Algorithm):
    """FedAvg that notes its batches."""

    def loss(self, client: Client, batch: Any) -> torch.Tensor:
        SEEN.append(batch.x.clone())
        EPOCHS.append(batch.epoch)
        return super().loss(client, batch)


IMAGES: dict[str, Any] = {"model": "linear", "data": {"name": "small-images"}, "rounds": 2}


def batches(algorithm: str = "watching", **local: Any) -> list[torch.Tensor]:
    SEEN.clear()
    tiny.run(algorithm, local={"batch_size": 8, **local}, **IMAGES)
    return list(SEEN)


def test_augmentation_is_keyed_and_moves_no_other_stream() -> None:
    plain, flipped, again = batches(), batches(augment="flip"), batches(augment="flip")
    assert len(plain) == len(flipped) == 2 * 2 * 2
    changed = 0
    for before, after, repeated in zip(plain, flipped, again, strict=True):
        assert torch.equal(after, repeated)
        # The same samples in the same order, mirrored or not.
        for image, other in zip(before, after, strict=True):
            assert torch.equal(image, other) or torch.equal(image.flip(-1), other)
            changed += not torch.equal(image, other)
    assert 0 < changed < 64
    assert not torch.equal(flipped[0] == plain[0], flipped[4] == plain[4]), "every round draws anew"


@pytest.mark.parametrize(
    ("size", "cut", "sizes"),
    [
        (5, False, [5, 5, 5, 1]),
        (5, True, [5, 5, 5]),
        (8, True, [8, 8]),
        (20, True, [16]),  # an only batch is never left out
    ],
)
def test_a_last_batch_that_is_smaller_may_be_left_out(
    size: int, cut: bool, sizes: list[int]
) -> None:
    assert [len(batch) for batch in batches(batch_size=size, drop_last=cut)] == sizes * 4


def test_without_the_last_batch_the_others_are_the_same() -> None:
    """Of both epochs: which samples make up a batch does not depend on the setting."""
    whole, cut = batches(batch_size=5, epochs=2), batches(batch_size=5, epochs=2, drop_last=True)
    assert [len(batch) for batch in whole] == [5, 5, 5, 1] * 8
    full = [batch for batch in whole if len(batch) == 5]
    assert all(torch.equal(one, other) for one, other in zip(full, cut, strict=True))


def test_a_batch_knows_its_epoch() -> None:
    EPOCHS.clear()
    tiny.run("watching", local={"epochs": 3, "batch_size": 8})
    # 12, 9 and 15 samples; the single last one of the second client is left out
    assert EPOCHS == [0, 0, 1, 1, 2, 2, 0, 1, 2, 0, 0, 1, 1, 2, 2]


@registry.register_algorithm("clipping")
class Clipping(Algorithm):
    """FedAvg with a phase of its own settings."""

    def phases(self, client: Client) -> tuple[Phase, ...]:
        return (Phase(local={"clip_norm": 0.01, "lr": 0.5}),)


def test_a_phase_s_own_settings_hold_in_it() -> None:
    direct = tiny.run("fedavg", local={"clip_norm": 0.01, "lr": 0.5})
    assert tiny.digest("clipping") == tiny.models_sha(direct)
    assert tiny.digest("fedavg", local={"lr": 0.5}) != tiny.models_sha(direct)


@registry.register_algorithm("brief")
class Brief(Watching):
    """FedAvg with three steps a round of the batches of two epochs."""

    def phases(self, client: Client) -> tuple[Phase, ...]:
        return (Phase(epochs=2, steps=3),)


def test_a_phase_of_so_many_steps_takes_the_first_batches_of_its_passes() -> None:
    whole, found = batches(epochs=2), batches("brief")
    expected = [whole[client_task * 4 + step] for client_task in range(4) for step in range(3)]
    assert len(found) == 12 and all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


ASIDE: list[dict[str, Any]] = []


@registry.register_algorithm("looking-aside")
class LookingAside(Algorithm):
    """FedAvg that looks at the gradient at twice its parameters before each step."""

    def loss(self, client: Client, batch: Any) -> torch.Tensor:
        double = {name: 2 * w.detach() for name, w in client.parameters.items()}
        buffers = client.snapshot(frozenset(client.resident.entries) - client.parameters.keys())
        seen = {"x": batch.x, "y": batch.y, "double": double, "before": trees.clone(buffers)}
        gradient, loss = gradient_at(client, batch, double, buffers)
        ASIDE.append({**seen, "gradient": gradient, "loss": loss, "buffers": buffers})
        return super().loss(client, batch)


def test_the_gradient_is_that_at_the_given_parameters() -> None:
    ASIDE.clear()
    tiny.run("looking-aside", model={"name": "two-layer", "norm": False})
    for seen in ASIDE:
        leaves = {name: w.clone().requires_grad_() for name, w in seen["double"].items()}
        hidden = nn.functional.relu(seen["x"] @ leaves[tiny.W].T + leaves["features.first.bias"])
        logits = hidden @ leaves[tiny.V].T + leaves["classifier.bias"]
        loss = nn.functional.cross_entropy(logits, seen["y"])
        gradient = torch.autograd.grad(loss, list(leaves.values()))
        tiny.close(seen["gradient"], dict(zip(leaves, gradient, strict=True)))
        tiny.close(seen["loss"], loss.detach())
    assert len(ASIDE) == 10


def test_looking_aside_moves_the_given_buffers_and_nothing_else() -> None:
    """Neither the model's statistics nor the units that dropout leaves out in the pass that follows."""
    ASIDE.clear()
    settings: dict[str, Any] = {"model": {"name": "two-layer", "dropout": 0.5}, "rounds": 2}
    assert tiny.digest("looking-aside", **settings) == tiny.digest("fedavg", **settings)
    for seen in ASIDE:
        mean = (seen["x"] @ seen["double"][tiny.W].T).mean(0)
        expected = 0.9 * seen["before"]["features.middle.running_mean"] + 0.1 * mean
        tiny.close(seen["buffers"], {"features.middle.running_mean": expected})


def test_default_generators_are_as_before_even_after_an_error() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    with contextlib.suppress(ZeroDivisionError), rng.default_generators_kept(torch.device("cpu")):
        rng.seed_default_generators(7, torch.device("cpu"))
        torch.rand(5)
        1 / 0  # noqa: B018
    assert torch.equal(torch.rand(2), wanted)
