from __future__ import annotations

import pytest
import torch

from flray import trees
from flray.errors import FlrayError
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny


def personal(federation: Federation) -> list[str]:
    """Return a digest of what each client keeps of the model."""
    return [trees.sha256(tiny.state_of(federation, i)["personal"]) for i in range(3)]


def test_body_is_averaged_and_heads_are_not() -> None:
    federation = tiny.run("fedper", rounds=1)
    fedavg = tiny.run("fedavg", rounds=1)
    for name, value in federation.server.model.items():
        initial = tiny.start(federation)[name]
        assert torch.equal(
            value, initial if name.startswith("classifier") else fedavg.server.model[name]
        ), name
    heads = [tiny.state_of(federation, i)["personal"]["classifier.weight"] for i in range(3)]
    sizes = torch.tensor([12.0, 9.0, 15.0], dtype=torch.float64)
    mean = (torch.stack(heads) * (sizes / sizes.sum()).view(-1, 1, 1)).sum(0)
    tiny.close(mean, fedavg.server.model["classifier.weight"])


def test_a_head_continues_from_its_last_turn() -> None:
    """One full-batch step a round on a single layer, of which all is personal: two steps of gradient descent."""
    federation = tiny.run("fedper", rounds=2, model="one-layer", local={"batch_size": 99})
    for i, (x, y) in enumerate(tiny.tensors()):
        w = tiny.start(federation)["classifier.weight"].clone()
        for _ in range(2):
            w -= 0.1 * tiny.softmax_gradient(w, x, y)
        tiny.close(tiny.state_of(federation, i)["personal"]["classifier.weight"], w)


def test_joined_groups_stay_at_the_client_together() -> None:
    names = tiny.state_of(tiny.run({"name": "fedper", "personal": "classifier+batch_norm"}), 0)[
        "personal"
    ].keys()
    assert {name.rsplit(".", 1)[0] for name in names} == {"classifier", "features.middle"} and len(
        names
    ) == 7


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(FlrayError, match="unknown parameter group 'head'"):
        tiny.spec_of({"name": "fedper", "personal": "head"})
