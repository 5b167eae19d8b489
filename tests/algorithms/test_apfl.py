import pytest
import torch

from tests.algorithms import helpers as tiny


def fixed(alpha: float) -> dict[str, object]:
    return {"name": "apfl", "alpha": alpha, "adaptive": False}


def test_two_rounds_by_hand() -> None:
    """Full-batch steps on softmax regression; alpha moves once v and w differ, so in the second round."""
    one, two = (tiny.run({"name": "apfl", "alpha": 0.3}, rounds=n, **tiny.full()) for n in (1, 2))
    start, data = tiny.start(one)[tiny.V], tiny.tensors()
    gradients = [tiny.softmax_gradient(start, x, y) for x, y in data]
    own = [start - 0.1 * 0.3 * g for g in gradients]
    w = tiny.mean_of([{tiny.V: start - 0.1 * g} for g in gradients], tiny.SIZES)[tiny.V]
    tiny.close(one.server.model, {tiny.V: w})
    for i, (x, y) in enumerate(data):
        tiny.close(tiny.state_of(one, i)["v"], {tiny.V: own[i]})
        assert tiny.state_of(one, i)["alpha"] == 0.3
        gradient = tiny.softmax_gradient(0.3 * own[i] + 0.7 * w, x, y)
        tiny.close(tiny.state_of(two, i)["v"], {tiny.V: own[i] - 0.1 * 0.3 * gradient})
        alpha = 0.3 - 0.1 * float(((own[i] - w) * gradient).sum())
        assert tiny.state_of(two, i)["alpha"] == pytest.approx(alpha, rel=1e-12)
        assert abs(alpha - 0.3) > 1e-4
    moved = [{tiny.V: w - 0.1 * tiny.softmax_gradient(w, x, y)} for x, y in data]
    tiny.close(two.server.model, tiny.mean_of(moved, tiny.SIZES))


def test_alpha_moves_once_a_round_and_stays_a_share() -> None:
    several = tiny.run("apfl", rounds=3, local={"epochs": 3})
    metrics = several.step().metrics
    learned = [tiny.state_of(several, i)["alpha"] for i in range(3)]
    assert [metrics[f"train/apfl/alpha/client/client{i}"] for i in range(3)] == learned
    assert len(set(learned)) == 3 and all(0 < alpha < 1 for alpha in learned)
    wild, still = tiny.run("apfl", rounds=6, local={"lr": 50.0}), tiny.run(fixed(0.7), rounds=3)
    assert {tiny.state_of(wild, i)["alpha"] for i in range(3)} & {0.0, 1.0}
    assert {tiny.state_of(still, i)["alpha"] for i in range(3)} == {0.7}


def test_a_linear_mixture_is_the_mixture_of_the_outputs() -> None:
    federation = tiny.run("apfl", rounds=3, model="one-layer")
    for i, (x, _) in enumerate(tiny.tensors()):
        state = tiny.state_of(federation, i)
        own, common = (x @ w.T for w in (state["v"][tiny.V], federation.server.model[tiny.V]))
        tiny.has_loss(federation, i, state["alpha"] * own + (1 - state["alpha"]) * common)


def test_the_mixture_s_statistics_are_mixed_like_parameters() -> None:
    """alpha = 0.5: v's running mean follows the forward passes at the mixture, from a common start."""
    federation = tiny.run(fixed(0.5), local={"batch_size": 99})
    start = tiny.start(federation)
    for i, (x, _) in enumerate(tiny.tensors()):
        v = tiny.state_of(federation, i)["v"]
        mean = 0.9 * start["features.middle.running_mean"] + 0.1 * (x @ start[tiny.W].T).mean(0)
        tiny.close(v, {"features.middle.running_mean": mean})
        assert torch.equal(v["features.middle.num_batches_tracked"], torch.tensor(1))
