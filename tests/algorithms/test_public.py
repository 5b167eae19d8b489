"""Public batches are the same images, augmented alike, for every participant, whatever its network and private data."""

from __future__ import annotations

import typing

import pytest
import torch
from torch import Tensor

from flray.algorithms.client import Client
from flray.config.experiment import Local
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.executor import InlineExecutor
from flray.federation.federation import Federation


def names(annotation: typing.Any) -> list[str]:
    """Return the words that an annotation allows, however deep."""
    return [
        word
        for part in typing.get_args(annotation)
        for word in ([part] if isinstance(part, str) else names(part))
    ]


AUGMENTATIONS = names(Local.model_fields["augment"].annotation)


def seen(augment: str, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], list[Tensor]]:
    """Return the public batches of one round by client and number, each time a client looked at one."""
    spec = build_spec(
        load(
            {
                "experiment": {
                    "data": {"name": "digits-sklearn", "samples": 16},
                    "model": "lenet",
                    "models": {"rotated": "simple-cnn"},
                    "algorithm": {"name": "fcclplus", "public_size": 30, "public_batch_size": 15},
                    "rounds": 1,
                    "local": {"augment": augment},
                    "tracking": {"uri": None},
                }
            }
        ).experiment
    )
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
