"""Public batches are the same images, augmented alike, for every participant; private ones are augmented apart."""

from typing import Any

import pytest
import torch
from torch import Tensor

from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch, Samples
from flray.data.augment import augment_batch
from flray.federation.federation import Federation
from flray.federation.spec import FederationSpec
from tests.algorithms import helpers as tiny

Seen = dict[tuple[int, int], list[Tensor]]
AUGMENTATIONS = ("none", "crop", "weak", "strong")


def spec_with(algorithm: str, local: dict[str, Any], **options: Any) -> FederationSpec:
    data, networks = {"name": "digits-sklearn", "samples": 16}, {"rotated": "simple-cnn"}
    settings = {"data": data, "model": "lenet", "models": networks, "rounds": 1}
    local = {"precision": "float32", "lr": 0.01, "batch_size": 32, **local}
    return tiny.spec_of({"name": algorithm, "public_size": 30, **options}, local=local, **settings)


def after_a_round(spec: FederationSpec) -> Federation:
    federation = tiny.federation_of(spec)
    federation.step()
    return federation


def seen(augment: str, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Return the public batches of one round by client and number, each time a client looked at one."""
    spec, batches = spec_with("fcclplus", {"augment": augment}, public_batch_size=15), Seen()
    kind = type(spec.algorithm)
    original = kind.public_batch

    def watched(self: Any, client: Client, index: int) -> Tensor:
        batch = original(self, client, index)
        batches.setdefault((client.id, index), []).append(batch.clone())
        return batch

    with monkeypatch.context() as patch:
        patch.setattr(kind, "public_batch", watched)
        after_a_round(spec)
    return batches


def test_public_batches_are_the_same_for_all_participants(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Seen = {}
    for augment in AUGMENTATIONS:
        batches = seen(augment, monkeypatch)
        plain = plain or batches
        assert sorted(batches) == [(client, index) for client in range(4) for index in range(2)]
        for (_, index), found in batches.items():
            assert len(found) == 2, "once for the outputs, once for the step"
            assert all(torch.equal(batch, batches[0, index][0]) for batch in found)
        assert not torch.equal(batches[0, 0][0], batches[0, 1][0])
        assert torch.equal(batches[0, 0][0], plain[0, 0][0]) is (augment == "none")


# --- private and public images apart --------------------------------------------------------------


def changed(spec: FederationSpec, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool]:
    """Tell whether a round trains on private and on public images that are not those stored."""
    found = {"private": False, "public": False}

    def stored(samples: Samples, x: Tensor) -> bool:
        known, _ = samples.take(torch.arange(len(samples)))
        rows = {one.contiguous().numpy().tobytes() for one in known}
        return all(one.contiguous().numpy().tobytes() in rows for one in x)

    kind = type(spec.algorithm)
    loss = kind.loss

    def watched_loss(self: Any, client: Client, batch: Batch) -> Tensor:
        labelled = bool((batch.y >= 0).all()) and batch.phase.tag != "digest"
        found["private"] |= labelled and not stored(client.train, batch.x)
        return loss(self, client, batch)

    def watched(images: Tensor, how: Any, *rest: Any) -> Tensor:
        augmented = augment_batch(images, how, *rest)
        found["public"] |= not torch.equal(images, augmented)
        return augmented

    with monkeypatch.context() as patch:
        patch.setattr(kind, "loss", watched_loss)
        for place in ("common.public_exchange", "fedmatch"):
            patch.setattr(f"flray.algorithms.{place}.augment_batch", watched)
        after_a_round(spec)
    return found["private"], found["public"]


BATCHES: dict[str, Any] = {"public_batch_size": 15}
RELEASED = {**BATCHES, "variant": "released", "pretrain_epochs": 1}
ROTATION = [{"name": "rotation", "degrees": 30}]
MATCH = {"average": False, "strong": "none"}


@pytest.mark.parametrize(
    ("name", "options", "local", "wanted"),
    [
        ("fcclplus", BATCHES, {}, (False, False)),
        ("fcclplus", BATCHES, {"augment": "flip"}, (True, True)),
        ("fcclplus", BATCHES, {"public_augment": "weak"}, (False, True)),
        ("fcclplus", BATCHES, {"public_augment": ROTATION}, (False, True)),
        *(
            (name, options, {"augment": "flip", "public_augment": "none"}, (True, False))
            for name, options in (
                ("fcclplus", BATCHES),
                ("fccl", {**BATCHES, "pretrain_epochs": 1}),
                ("rhfl", BATCHES),
                ("feddf", {**BATCHES, "mode": "peer"}),
                ("fedmatch", MATCH),
            )
        ),
        ("fedmatch", MATCH, {"public_augment": "weak"}, (False, True)),  # its weak view
        ("fcclplus", RELEASED, {}, (False, True)),
        ("fccl", RELEASED, {}, (False, True)),
    ],
)
def test_private_and_public_images_are_augmented_apart(
    name: str,
    options: dict[str, Any],
    local: dict[str, Any],
    wanted: tuple[bool, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert changed(spec_with(name, local, **options), monkeypatch) == wanted


def test_fedmd_compares_scores_of_images_as_they_are() -> None:
    plain, strong = (spec_with("fedmd", local) for local in ({}, {"public_augment": "strong"}))
    assert after_a_round(plain).sha256() == after_a_round(strong).sha256()


def test_a_methods_own_augmentation_comes_before_the_experiments() -> None:
    """In the order: the method's own of public images, the experiment's, that of private images."""
    settings: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"public_augment": "flip"}, {"augment": "none"}),
        ({}, {"public_augment": "flip"}),
        ({"public_augment": "flip"}, {"public_augment": "flip"}),
        ({"augment": "flip"}, {}),
        ({}, {"augment": "flip"}),
        ({}, {}),
    ]
    digests = [
        after_a_round(spec_with("fcclplus", local, **BATCHES, **options)).sha256()
        for options, local in settings
    ]
    assert digests[0] == digests[1] == digests[2]
    assert digests[3] == digests[4]
    assert len(set(digests)) == 3
