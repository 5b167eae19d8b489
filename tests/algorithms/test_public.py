"""Public batches are the same images, augmented alike, for every participant; private ones are augmented apart."""

from __future__ import annotations

import typing

import pytest
import torch
from torch import Tensor

from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch, Samples
from flray.config.experiment import Local
from flray.config.loader import load
from flray.data.augment import augment_batch
from flray.errors import ConfigError, FlrayError
from flray.federation.building import build_spec
from flray.federation.executor import InlineExecutor
from flray.federation.federation import Federation
from flray.federation.spec import FederationSpec


def names(annotation: typing.Any) -> list[str]:
    """Return the words that an annotation allows, however deep."""
    return [
        word
        for part in typing.get_args(annotation)
        for word in ([part] if isinstance(part, str) else names(part))
    ]


AUGMENTATIONS = names(Local.model_fields["augment"].annotation)


def spec_with(
    algorithm: str, local: dict[str, typing.Any], **options: typing.Any
) -> FederationSpec:
    return build_spec(
        load(
            {
                "experiment": {
                    "data": {"name": "digits-sklearn", "samples": 16},
                    "model": "lenet",
                    "models": {"rotated": "simple-cnn"},
                    "algorithm": {"name": algorithm, "public_size": 30, **options},
                    "rounds": 1,
                    "local": local,
                    "tracking": {"uri": None},
                }
            }
        ).experiment
    )


def seen(augment: str, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], list[Tensor]]:
    """Return the public batches of one round by client and number, each time a client looked at one."""
    spec = spec_with("fcclplus", {"augment": augment}, public_batch_size=15)
    batches: dict[tuple[int, int], list[Tensor]] = {}
    kind = type(spec.algorithm)
    original = kind.public_batch

    def watched(self: typing.Any, client: Client, index: int) -> Tensor:
        batch = original(self, client, index)
        batches.setdefault((client.id, index), []).append(batch.clone())
        return batch

    monkeypatch.setattr(kind, "public_batch", watched)
    Federation(spec, InlineExecutor(spec)).step()
    return batches


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_public_batches_are_the_same_for_all_participants(
    augment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = seen(augment, monkeypatch)
    assert sorted(batches) == [(client, index) for client in range(4) for index in range(2)]
    for (_, index), found in batches.items():
        assert len(found) == 2, "once for the outputs, once for the step"
        assert all(torch.equal(batch, batches[0, index][0]) for batch in found)
    assert not torch.equal(batches[0, 0][0], batches[0, 1][0])


def test_augmentation_changes_the_public_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {
        index: batch
        for (client, index), (batch, _) in seen("none", monkeypatch).items()
        if client == 0
    }
    for augment in AUGMENTATIONS:
        monkeypatch.undo()
        other = seen(augment, monkeypatch)
        assert torch.equal(other[0, 0][0], plain[0]) is (augment == "none")


# --- private and public images apart --------------------------------------------------------------


def changed(
    spec: FederationSpec, monkeypatch: pytest.MonkeyPatch
) -> dict[typing.Literal["private", "public"], bool]:
    """Tell whether a round trains on private and on public images that are not those stored."""
    found = {"private": False, "public": False}

    def stored(samples: Samples, x: Tensor) -> bool:
        known, _ = samples.take(torch.arange(len(samples)))
        rows = {one.contiguous().numpy().tobytes() for one in known}
        return all(one.contiguous().numpy().tobytes() in rows for one in x)

    kind = type(spec.algorithm)
    loss = kind.loss

    def watched_loss(self: typing.Any, client: Client, batch: Batch) -> Tensor:
        labelled = bool((batch.y >= 0).all()) and batch.phase.tag != "digest"
        if labelled and not stored(client.train, batch.x):
            found["private"] = True
        return loss(self, client, batch)

    def watched(images: Tensor, how: typing.Any, *rest: typing.Any) -> Tensor:
        augmented = augment_batch(images, how, *rest)
        found["public"] |= not torch.equal(images, augmented)
        return augmented

    monkeypatch.setattr(kind, "loss", watched_loss)
    for place in ("common.public_exchange", "fedmatch"):
        monkeypatch.setattr(f"flray.algorithms.{place}.augment_batch", watched)
    Federation(spec, InlineExecutor(spec)).step()
    monkeypatch.undo()
    return typing.cast(typing.Any, found)


@pytest.mark.parametrize(
    ("local", "private", "public"),
    [
        ({}, False, False),
        ({"augment": "flip"}, True, True),
        ({"augment": "flip", "public_augment": "none"}, True, False),
        ({"public_augment": "weak"}, False, True),
        ({"public_augment": [{"name": "rotation", "degrees": 30}]}, False, True),
    ],
)
@pytest.mark.parametrize("name", ["fcclplus", "fccl", "rhfl", "feddf"])
def test_private_and_public_images_are_augmented_apart(
    name: str,
    local: dict[str, typing.Any],
    private: bool,
    public: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"fccl": {"pretrain_epochs": 1}, "feddf": {"mode": "peer"}}.get(name, {})
    found = changed(spec_with(name, local, public_batch_size=15, **options), monkeypatch)
    assert found == {"private": private, "public": public}


@pytest.mark.parametrize(
    ("local", "private", "public"),
    [
        ({"augment": "flip", "public_augment": "none"}, True, False),
        ({"public_augment": "weak"}, False, True),
    ],
)
def test_fedmatch_takes_the_public_one_for_its_weak_view(
    local: dict[str, typing.Any], private: bool, public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_with("fedmatch", local, average=False, strong="none")
    assert changed(spec, monkeypatch) == {"private": private, "public": public}


def test_fedmd_compares_scores_of_images_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for local in ({}, {"public_augment": "strong"}):
        federation = Federation(spec := spec_with("fedmd", local), InlineExecutor(spec))
        federation.step()
        digests.append(federation.sha256())
    assert digests[0] == digests[1]


def test_the_released_code_augments_public_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fcclplus", "fccl"):
        options = {"variant": "released", "public_batch_size": 15, "pretrain_epochs": 1}
        found = changed(spec_with(name, {}, **options), monkeypatch)
        assert found == {"private": False, "public": True}


def test_a_methods_own_augmentation_comes_before_the_experiments() -> None:
    """In the order: the method's own of public images, the experiment's, that of private images."""
    public = {"public_size": 30, "public_batch_size": 15}
    settings: list[tuple[dict[str, typing.Any], dict[str, typing.Any]]] = [
        ({"public_augment": "flip"}, {"augment": "none"}),
        ({}, {"public_augment": "flip"}),
        ({"public_augment": "flip"}, {"public_augment": "flip"}),
        ({"augment": "flip"}, {}),
        ({}, {"augment": "flip"}),
        ({}, {}),
    ]
    digests = []
    for options, local in settings:
        federation = Federation(
            spec := spec_with("fcclplus", local, **public, **options), InlineExecutor(spec)
        )
        federation.step()
        digests.append(federation.sha256())
    assert digests[0] == digests[1] == digests[2]
    assert digests[3] == digests[4]
    assert len(set(digests)) == 3


def test_what_would_be_ignored_or_cannot_be_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"local\.public_augment.*algorithm\.public_augment: weak"
    ):
        spec_with("fcclplus", {"public_augment": "weak"}, variant="released")
    with pytest.raises(FlrayError, match=r"local\.public_augment: found 'blur'; input should be"):
        spec_with("fcclplus", {"public_augment": "blur"})
    with pytest.raises(FlrayError, match=r"algorithm\.public_augment"):
        spec_with("fcclplus", {}, public_augment="blur")
    with pytest.raises(
        ConfigError, match=r"local\.public_augment: found jitter; it changes colours"
    ):
        load_and_build = {"name": "random", "shape": [2, 12, 12], "samples": 40}
        build_spec(
            load(
                {
                    "experiment": {
                        "data": load_and_build,
                        "model": "simple-cnn",
                        "algorithm": "fedavg",
                        "local": {"public_augment": "strong"},
                    }
                }
            ).experiment
        )
