"""FedFomo: rounds by hand, who is sent to whom, when it is local training, broken peers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from flray import trees
from flray.algorithms.types import Stage
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V as W

VAL: dict[str, Any] = {"evaluation": {"validation": 0.25}}
FULL = {**tiny.full(), **VAL}
FIVE = tiny.gaussian_clients((8,) * 5)
GAINS = torch.tensor([[0, 1, 3, 2, -1]] * 5, dtype=torch.float64)


def parts(federation: Federation, i: int) -> list[tuple[Tensor, Tensor]]:
    """Return a client's training and validation data."""
    data, client = federation.spec.data, federation.spec.data.clients[i]
    return tiny.as_tensors([(data.x[rows], data.y[rows]) for rows in (client.train, client.val)])


def scaled(model: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
    return {n: w * factor if w.is_floating_point() else w for n, w in model.items()}


def test_four_rounds_by_hand() -> None:
    federation = tiny.fresh("fedfomo", **FULL)
    data = [parts(federation, i) for i in range(3)]
    initial = federation.server.model[W].clone()
    now, reference = [initial] * 3, [initial] * 3
    total = torch.zeros(3, 3, dtype=torch.float64)
    mixed = 0
    for number in range(4):
        federation.step()
        pool, started = list(now), []
        for i in range(3):
            (_, (x, y)), start = data[i], now[i]
            if number:

                def loss(w: Tensor, x: Tensor = x, y: Tensor = y) -> float:
                    return float(torch.nn.functional.cross_entropy(x @ w.T, y))

                gains = {
                    j: (loss(reference[i]) - loss(pool[j])) / float((pool[j] - reference[i]).norm())
                    for j in range(3)
                }
                for j in set(range(3)) - {i}:
                    total[i, j] += gains[j]
                positive = {j: max(g, 0.0) for j, g in gains.items()}
                whole, start = sum(positive.values()), reference[i]
                if whole > 0:
                    mixed += 1
                    shares = [g / whole * pool[j] for j, g in positive.items()]
                    start = torch.stack(shares).sum(0)
            started.append(start)
        reference = started
        now = [w - 0.1 * tiny.softmax_gradient(w, *data[i][0]) for i, w in enumerate(started)]
        for i in range(3):
            state = tiny.state_of(federation, i)
            tiny.close(state["personal"][W], now[i])
            tiny.close(state["reference"][W], reference[i])
        tiny.close(federation.server.state["gains"], total, rtol=1e-7, atol=1e-9)
    assert mixed >= 6


@pytest.mark.parametrize("poison", [1e3, float("nan")])
def test_with_harmful_peers_and_no_progress_of_its_own_a_client_trains_alone(poison: float) -> None:
    """The reference is put at the own model, which then gains nothing; the peers are made useless."""
    federation, alone = (tiny.fresh(name, **VAL) for name in ("fedfomo", "local"))
    for number in range(3):
        for i, state in enumerate(tiny.state_of(federation, i) for i in range(3)):
            if number:
                federation.states[i] = trees.pack({**state, "reference": state["personal"]})
        models = federation.server.state["models"]
        federation.server.state["models"] = {i: scaled(m, poison) for i, m in models.items()}
        federation.step()
        alone.step()
    assert tiny.personal_sha(federation) == tiny.personal_sha(alone)


def test_training_that_only_harms_is_undone() -> None:
    """Eq. 4: without a positive gain, the client's own included, what is left is the reference."""
    federation = tiny.run("fedfomo", rounds=2, **VAL)
    before = tiny.state_of(federation, 0)
    far = scaled(before["personal"], 1e3)
    federation.server.state["models"] = dict.fromkeys(federation.server.state["models"], far)
    federation.states[0] = trees.pack({**before, "personal": far})
    assert federation.step().metrics["train/fedfomo/own_weight/client/client0"] == 0
    found = trees.sha256(tiny.state_of(federation, 0)["reference"])
    assert found == trees.sha256(before["reference"]) != trees.sha256(far)


def test_a_broken_peer_has_no_influence() -> None:
    digests = []
    for poison in (1e6, float("nan"), float("inf"), 1.0):
        federation = tiny.run("fedfomo", **FULL)
        models = federation.server.state["models"]
        federation.server.state["models"] = {**models, "2": {W: models["2"][W] * poison}}
        assert federation.step().metrics["train/fedfomo/own_weight/client/client0"] > 0
        digests.append(trees.sha256(*(tiny.kept(federation, i) for i in (0, 1))))
    assert len(set(digests[:3])) == 1 and digests[3] != digests[0]


def test_the_peers_that_gained_most_are_sent() -> None:
    federation = tiny.fresh({"name": "fedfomo", "peers": 2, "epsilon": 0}, FIVE, **FULL)
    algorithm, server = federation.spec.algorithm, federation.server
    assert algorithm.send_private(server, 0, Stage("train")) == {}
    federation.step()
    server.state["gains"] = GAINS.clone()
    assert algorithm.choose(server, 0) == [2, 3] and algorithm.choose(server, 2) == [3, 1]
    assert list(algorithm.send_private(server, 2, Stage("train"))["models"]) == ["3", "1"]
    assert algorithm.send_private(server, 2, Stage("evaluate")) == {}
    federation.step()
    assert int((server.state["gains"][2] != GAINS[2]).sum()) <= 2


def test_chance_explores_and_fades() -> None:
    options = {"name": "fedfomo", "peers": 1, "epsilon": 0.3, "epsilon_decay": 0.05}
    federation = tiny.run(options, FIVE, **FULL)
    algorithm, server = federation.spec.algorithm, federation.server
    server.state["gains"], others = GAINS.clone(), 0
    for seed in range(400):
        server.config = server.config.model_copy(update={"seed": seed})
        server.round = 2
        others += algorithm.choose(server, 0) != [2]
        server.round = 6
        assert algorithm.choose(server, 0) == [2]
    assert 0.1 < others / 400 < 0.2  # 0.2 explore, of which a quarter finds the best one anyway
