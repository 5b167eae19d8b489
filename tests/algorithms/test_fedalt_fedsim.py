from __future__ import annotations

import pytest
import torch

from flray import trees
from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch
from flray.algorithms.fedalt import FedAlt
from flray.errors import FlrayError
from flray.models import groups
from tests.algorithms import helpers as tiny

BODY, HEAD = "features.first.weight", "classifier.weight"
FULL = {"model": "linear-body", "local": {"batch_size": 99}}
SIZES = [12, 9, 15]


def test_the_shared_part_is_trained_under_the_new_personal_one() -> None:
    """One full-batch step each on logits x W^T V^T: V <- V - lr g x W^T, then W <- W - lr V'^T g'."""
    federation = tiny.run("fedalt", rounds=1, **FULL)
    initial = tiny.start(federation)
    bodies = []
    for i, (x, y) in enumerate(tiny.tensors()):
        head = initial[HEAD] - 0.1 * tiny.softmax_gradient(initial[HEAD], x @ initial[BODY].T, y)
        bodies.append(
            {BODY: initial[BODY] - 0.1 * head.T @ tiny.softmax_gradient(head @ initial[BODY], x, y)}
        )
        tiny.assert_weights(tiny.state_of(federation, i)["personal"], {HEAD: head})
    tiny.assert_weights(federation.server.model, tiny.mean_of(bodies, SIZES))


def test_fedsim_trains_both_from_where_they_were() -> None:
    federation = tiny.run("fedsim", rounds=1, **FULL)
    initial = tiny.start(federation)
    bodies = []
    for i, (x, y) in enumerate(tiny.tensors()):
        bodies.append(
            {
                BODY: initial[BODY]
                - 0.1 * initial[HEAD].T @ tiny.softmax_gradient(initial[HEAD] @ initial[BODY], x, y)
            }
        )
        head = initial[HEAD] - 0.1 * tiny.softmax_gradient(initial[HEAD], x @ initial[BODY].T, y)
        tiny.assert_weights(tiny.state_of(federation, i)["personal"], {HEAD: head})
    tiny.assert_weights(federation.server.model, tiny.mean_of(bodies, SIZES))


@pytest.mark.parametrize("group", ["classifier", "features", "batch_norm", "classifier+batch_norm"])
def test_each_phase_leaves_the_other_part_as_it_is(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics included, and with the momentum and weight decay that move weights of zero gradient."""
    seen: list[tuple[str, str, str]] = []
    step = FedAlt.step

    def watched(
        self: FedAlt, client: Client, batch: Batch, optimizer: torch.optim.Optimizer
    ) -> None:
        step(self, client, batch, optimizer)
        personal = groups.select(client.model, group)
        seen.append(
            (
                batch.phase.tag,
                trees.sha256(client.weights(personal)),
                trees.sha256(client.weights(frozenset(client.resident.entries) - personal)),
            )
        )

    monkeypatch.setattr(FedAlt, "step", watched)
    tiny.fresh(
        {"name": "fedalt", "personal": group, "personal_epochs": 2},
        tiny.gaussian_clients((12,)),
        local={"momentum": 0.9, "weight_decay": 0.1},
    ).step()
    own, common = [s for s in seen if s[0] == "personal"], [s for s in seen if s[0] == "train"]
    assert (len(own), len(common)) == (6, 3) and seen == own + common
    assert len({s[2] for s in own}) == 1 and len({s[1] for s in own}) == 6
    assert len({s[2] for s in common}) == 3 and {s[1] for s in common} == {own[-1][1]}


def test_one_after_the_other_is_not_both_together() -> None:
    settings = {"rounds": 3, "model": {"name": "two-layer", "dropout": 0.2}}
    assert tiny.digest("fedalt", **settings) != tiny.digest("fedsim", **settings)


@pytest.mark.parametrize("name", ["fedalt", "fedsim"])
def test_only_the_shared_part_travels_and_groups_are_checked(name: str) -> None:
    metrics = tiny.run({"name": name, "personal": "features"}).step().metrics
    assert metrics["bytes/up"] == metrics["bytes/down"] == 3 * 8 * (5 * 3 + 3)
    with pytest.raises(FlrayError, match="unknown parameter group 'head'"):
        tiny.spec_of({"name": name, "personal": "head"})
