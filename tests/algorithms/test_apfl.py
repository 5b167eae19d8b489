from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.algorithms import helpers as tiny

NAME = "classifier.weight"
FULL = {"model": "one-layer", "local": {"batch_size": 99}}
SIZES = [12, 9, 15]


def fixed(alpha: float) -> dict[str, object]:
    return {"name": "apfl", "alpha": alpha, "adaptive": False}


def test_two_rounds_by_hand() -> None:
    """Full-batch steps on softmax regression; alpha moves once v and w differ, so in the second round."""
    one, two = (
        tiny.run({"name": "apfl", "alpha": 0.3}, rounds=rounds, **FULL) for rounds in (1, 2)
    )
    start = tiny.run(
        {"name": "apfl"}, rounds=1, model="one-layer", local={"epochs": 0}
    ).server.model[NAME]
    data = tiny.tensors()
    gradients = [tiny.softmax_gradient(start, x, y) for x, y in data]
    own = [start - 0.1 * 0.3 * g for g in gradients]
    w = tiny.mean_of([{NAME: start - 0.1 * g} for g in gradients], SIZES)[NAME]
    for i in range(3):
        tiny.assert_weights(tiny.state_of(one, i)["v"], {NAME: own[i]})
        assert tiny.state_of(one, i)["alpha"] == 0.3
    tiny.assert_weights(one.server.model, {NAME: w})
    for i, (x, y) in enumerate(data):
        gradient = tiny.softmax_gradient(0.3 * own[i] + 0.7 * w, x, y)
        tiny.assert_weights(tiny.state_of(two, i)["v"], {NAME: own[i] - 0.1 * 0.3 * gradient})
        assert tiny.state_of(two, i)["alpha"] == pytest.approx(
            0.3 - 0.1 * float(((own[i] - w) * gradient).sum()), rel=1e-12
        )
        assert abs(tiny.state_of(two, i)["alpha"] - 0.3) > 1e-4
    tiny.assert_weights(
        two.server.model,
        tiny.mean_of([{NAME: w - 0.1 * tiny.softmax_gradient(w, x, y)} for x, y in data], SIZES),
    )


def test_alpha_moves_once_a_round_and_stays_a_share() -> None:
    several = tiny.run("apfl", rounds=3, local={"epochs": 3})
    metrics = several.step().metrics
    learned = [tiny.state_of(several, i)["alpha"] for i in range(3)]
    assert [metrics[f"train/apfl/alpha/client/client{i}"] for i in range(3)] == learned
    assert len(set(learned)) == 3 and all(0 < alpha < 1 for alpha in learned)
    wild = tiny.run("apfl", rounds=6, local={"lr": 50.0})
    assert {tiny.state_of(wild, i)["alpha"] for i in range(3)} & {0.0, 1.0}
    assert {tiny.state_of(tiny.run(fixed(0.7), rounds=3), i)["alpha"] for i in range(3)} == {0.7}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"local": {"momentum": 0.9, "weight_decay": 0.1, "epochs": 2}},
        {"local": {"optimizer": "adam", "clip_norm": 0.1}},
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_personal_models_end_at_fedavg_s_and_local_s(settings: dict[str, object]) -> None:
    settings = {"model": {"name": "two-layer", "dropout": 0.2}, "rounds": 2, **settings}
    personal, common = "personal/local/loss", "global/local/loss"
    fedavg, local, half = (
        tiny.run(name, **settings).evaluate() for name in ("fedavg", "local", "apfl")
    )
    w, v = (tiny.run(fixed(alpha), **settings).evaluate() for alpha in (0.0, 1.0))
    for client in range(3):
        assert w[f"{personal}/client/client{client}"] == fedavg[f"{common}/client/client{client}"]
        assert v[f"{personal}/client/client{client}"] == local[f"{personal}/client/client{client}"]
    assert half[personal] not in (fedavg[common], local[personal])


def test_a_linear_mixture_is_the_mixture_of_the_outputs() -> None:
    federation = tiny.run("apfl", rounds=3, model="one-layer")
    metrics = federation.evaluate()
    for i, (x, y) in enumerate(tiny.tensors()):
        state = tiny.state_of(federation, i)
        outputs = [x @ w.T for w in (state["v"][NAME], federation.server.model[NAME])]
        loss = F.cross_entropy(state["alpha"] * outputs[0] + (1 - state["alpha"]) * outputs[1], y)
        assert metrics[f"personal/local/loss/client/client{i}"] == pytest.approx(
            float(loss), rel=1e-12
        )


def test_the_mixture_s_statistics_are_mixed_like_parameters() -> None:
    """alpha = 0.5: v's running mean follows the forward passes at the mixture, from a common start."""
    federation = tiny.run(fixed(0.5), rounds=1, local={"batch_size": 99})
    for i, (x, _) in enumerate(tiny.tensors()):
        start = tiny.run("apfl", rounds=1, local={"epochs": 0}).server.model
        expected = 0.9 * start["features.middle.running_mean"] + 0.1 * (
            x @ start["features.first.weight"].T
        ).mean(0)
        tiny.assert_weights(
            tiny.state_of(federation, i)["v"], {"features.middle.running_mean": expected}
        )
        assert torch.equal(
            tiny.state_of(federation, i)["v"]["features.middle.num_batches_tracked"],
            torch.tensor(1),
        )
