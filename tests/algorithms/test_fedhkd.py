from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray.algorithms.client import Client
from flray.algorithms.fedhkd import FedHKD
from tests.algorithms import helpers as tiny

W, V = "features.first.weight", "classifier.weight"
EXACT = {"name": "fedhkd", "noise": 0.0, "clip": 1e6, "threshold": 0.0}


@pytest.mark.parametrize(
    "model", [{"name": "two-layer", "dropout": 0.2}, {"name": "deep-classifier"}]
)
def test_without_both_terms_it_is_fedavg(model: dict[str, object]) -> None:
    """On a classifier with batch norm and dropout as well: scoring H takes no statistics and no random numbers."""
    off = {"name": "fedhkd", "lam": 0.0, "gamma": 0.0, "threshold": 0.0}
    assert tiny.digest(off, rounds=3, model=model) == tiny.digest("fedavg", rounds=3, model=model)


def test_the_first_round_is_fedavg_s_and_the_second_is_not() -> None:
    assert [tiny.digest("fedhkd", rounds=r) == tiny.digest("fedavg", rounds=r) for r in (1, 2)] == [
        True,
        False,
    ]


def test_without_noise_the_knowledge_is_the_mean_over_all_samples() -> None:
    federation = tiny.run(EXACT, tiny.gaussian_clients(skew=True), classes=4, model="one-layer")
    known, clients = federation.server.state["knowledge"], tiny.tensors(skew=True)
    x, y = torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])
    expected = torch.stack([x[y == c].mean(0) for c in range(3)])
    tiny.close(known["features"][:3], expected)
    tiny.close(known["predictions"].sum(1), torch.tensor([1, 1, 1, 0.0]).double())
    assert known["present"].tolist() == [True, True, True, False]


def test_features_are_clipped_to_the_norm() -> None:
    (client,) = tiny.gaussian_clients((12,))
    known = tiny.run({**EXACT, "clip": 0.5}, [client], model="one-layer").server.state["knowledge"]
    x, y = tiny.as_tensors([client])[0]
    short = x * (0.5 / x.norm(dim=1, keepdim=True)).clamp(max=1)
    expected = torch.stack([short[y == c].mean(0) for c in range(3)])
    tiny.close(known["features"], expected)


def test_the_noise_has_deviation_sigma_2_clip_over_n_and_is_drawn_for_each_class() -> None:
    y = np.repeat(np.arange(3), (5, 10, 20)).astype(np.int64)
    client = (np.zeros((35, 4000)), y)
    noise = {**EXACT, "noise": 0.7, "clip": 2.0}
    first, other = (
        tiny.run(noise, [client], model="one-layer", seed=seed).server.state["knowledge"][
            "features"
        ]
        for seed in (0, 1)
    )
    # the mean of zeros is zero, so what is there is the noise; the estimate deviates by 1.1 % (one
    # sigma)
    torch.testing.assert_close(
        first.std(1), 0.7 * 2 * 2.0 / torch.tensor([5.0, 10, 20]).double(), rtol=0.05, atol=0
    )
    vectors = F.normalize(torch.cat([first, other]))
    assert (vectors @ vectors.T).fill_diagonal_(0).abs().max() < 0.08  # five sigma


def test_a_class_below_the_threshold_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Tensor]] = []
    knowledge = FedHKD.knowledge

    def watched(self: FedHKD, client: Client) -> dict[str, Tensor]:
        sent.append(knowledge(self, client))
        return sent[-1]

    monkeypatch.setattr(FedHKD, "knowledge", watched)
    ((x, _),) = tiny.gaussian_clients((12,))
    y = np.array([0] * 7 + [1] * 3 + [2] * 2, dtype=np.int64)
    federation = tiny.fresh({**EXACT, "threshold": 0.25}, [(x, y)], model="one-layer")
    metrics = federation.step().metrics
    known = federation.server.state["knowledge"]
    assert known["present"].tolist() == [True, True, False]  # 3 of 12 is a quarter
    assert sent[0]["counts"].tolist() == [7, 3, 0]
    assert not sent[0]["features"][2].any() and not sent[0]["predictions"][2].any()
    assert metrics["train/fedhkd/classes_sent"] == 2


def test_two_rounds_by_hand() -> None:
    """Full-batch steps on a linear body; nobody has class 3, which counts as 0 in the mean over classes."""
    sizes, clients = [12, 9, 15], tiny.tensors()
    federation = tiny.run(
        {**EXACT, "lam": 0.4, "gamma": 0.3},
        classes=4,
        model="linear-body",
        local={"batch_size": 99},
        rounds=2,
    )
    start = tiny.start(federation)
    trained = [
        tiny.gradient_step(start, lambda p, x=x, y=y: F.cross_entropy(x @ p[W].T @ p[V].T, y))
        for x, y in clients
    ]
    features = torch.cat([x @ p[W].T for (x, _), p in zip(clients, trained, strict=True)])
    soft = torch.cat(
        [
            torch.softmax(x @ p[W].T @ p[V].T / 0.5, 1)
            for (x, _), p in zip(clients, trained, strict=True)
        ]
    )
    labels = torch.cat([y for _, y in clients])
    H, Q = (torch.stack([rows[labels == c].mean(0) for c in range(3)]) for rows in (features, soft))

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        f = x @ p[W].T
        predictions = (torch.softmax(H @ p[V].T / 0.5, 1) - Q).square().sum(1).sqrt().sum() / 4
        distance = (f - H[y]).square().sum(1).sqrt().mean()
        return F.cross_entropy(f @ p[V].T, y) + 0.4 * predictions + 0.3 * distance

    mean = tiny.mean_of(trained, sizes)
    trained = [tiny.gradient_step(mean, lambda p, x=x, y=y: loss(p, x, y)) for x, y in clients]
    tiny.assert_weights(federation.server.model, tiny.mean_of(trained, sizes))


def test_the_personal_model_is_the_client_s_last_one() -> None:
    """The first round has nothing but CE, so what it leaves at a client is the model of local training."""
    federation = tiny.run("fedhkd", rounds=1)
    metrics = federation.evaluate()
    assert (
        metrics["personal/local/loss"]
        == tiny.run("local", rounds=1).evaluate()["personal/local/loss"]
    )
    assert (
        metrics["global/local/loss"] == tiny.run("fedavg", rounds=1).evaluate()["global/local/loss"]
    )
    fresh = tiny.federation_of(federation.spec).evaluate()
    assert fresh["personal/local/loss"] == fresh["global/local/loss"]
