from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import flray.functional as fn
from flray.algorithms.client import Client
from flray.algorithms.fedhkd import FedHKD
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W

EXACT = {"name": "fedhkd", "noise": 0.0, "clip": 1e6, "threshold": 0.0}


def means(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x[y == c].mean(0) for c in range(3)])


def test_without_noise_the_knowledge_is_the_mean_over_all_samples() -> None:
    skewed = tiny.gaussian_clients(skew=True)
    known = tiny.run(EXACT, skewed, classes=4, model="one-layer").server.state["knowledge"]
    x, y = (torch.cat(parts) for parts in zip(*tiny.as_tensors(skewed), strict=True))
    tiny.close(known["features"][:3], means(x, y))
    tiny.close(known["predictions"].sum(1), torch.tensor([1, 1, 1, 0.0]).double())
    assert known["present"].tolist() == [True, True, True, False]


def test_features_are_clipped_to_the_norm() -> None:
    clients = tiny.gaussian_clients((12,))
    known = tiny.run({**EXACT, "clip": 0.5}, clients, model="one-layer").server.state["knowledge"]
    ((x, y),) = tiny.as_tensors(clients)
    tiny.close(known["features"], means(x * (0.5 / x.norm(dim=1, keepdim=True)).clamp(max=1), y))


def test_the_noise_has_deviation_sigma_2_clip_over_n_and_is_drawn_for_each_class() -> None:
    y = np.repeat(np.arange(3), (5, 10, 20)).astype(np.int64)
    noise, client = {**EXACT, "noise": 0.7, "clip": 2.0}, (np.zeros((35, 4000)), y)
    first, other = (
        tiny.run(noise, [client], model="one-layer", seed=seed).server.state["knowledge"]
        for seed in (0, 1)
    )
    # the mean of zeros is zero, so what is there is the noise; the estimate deviates by 1.1 % (one
    # sigma)
    wanted = 0.7 * 2 * 2.0 / torch.tensor([5.0, 10, 20]).double()
    tiny.close(first["features"].std(1), wanted, rtol=0.05)
    vectors = F.normalize(torch.cat([first["features"], other["features"]]))
    assert (vectors @ vectors.T).fill_diagonal_(0).abs().max() < 0.08  # five sigma


def test_a_class_of_one_sample_is_sent_and_one_without_is_zero() -> None:
    held, counts = torch.tensor([[9.0, 9.0], [1.0, 2.0]]), torch.tensor([0, 1])
    sent = fn.noisy_class_means(held, counts, 1.0, 0.0, torch.Generator())
    assert sent.tolist() == [[0.0, 0.0], [1.0, 2.0]]


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
    assert federation.step().metrics["train/fedhkd/classes_sent"] == 2
    present = federation.server.state["knowledge"]["present"]
    assert present.tolist() == [True, True, False]  # 3 of 12 is a quarter
    assert sent[0]["counts"].tolist() == [7, 3, 0]
    assert not sent[0]["features"][2].any() and not sent[0]["predictions"][2].any()


def test_two_rounds_by_hand() -> None:
    """Full-batch steps on a linear body; nobody has class 3, which counts as 0 in the mean over classes."""
    clients = tiny.tensors()
    options = {**EXACT, "lam": 0.4, "gamma": 0.3}
    federation = tiny.run(options, classes=4, rounds=2, **tiny.full("linear-body"))
    trained = tiny.each_step(tiny.start(federation), clients)
    features = [x @ p[W].T for (x, _), p in zip(clients, trained, strict=True)]
    soft = [torch.softmax(f @ p[V].T / 0.5, 1) for f, p in zip(features, trained, strict=True)]
    labels = torch.cat([y for _, y in clients])
    H, Q = (means(torch.cat(rows), labels) for rows in (features, soft))

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        f = x @ p[W].T
        predictions = (torch.softmax(H @ p[V].T / 0.5, 1) - Q).square().sum(1).sqrt().sum() / 4
        distance = (f - H[y]).square().sum(1).sqrt().mean()
        return F.cross_entropy(f @ p[V].T, y) + 0.4 * predictions + 0.3 * distance

    trained = tiny.each_step(tiny.mean_of(trained, tiny.SIZES), clients, loss)
    tiny.close(federation.server.model, tiny.mean_of(trained, tiny.SIZES))


def test_the_first_round_is_fedavg_s_and_the_personal_model_the_client_s_last_one() -> None:
    """The first round has nothing but CE, so what it leaves at a client is the model of local training."""
    federation, loss = tiny.run("fedhkd"), "/local/loss"
    assert tiny.models_sha(federation) == tiny.digest("fedavg")
    metrics, fresh = federation.evaluate(), tiny.federation_of(federation.spec).evaluate()
    assert metrics["personal" + loss] == tiny.run("local").evaluate()["personal" + loss]
    assert fresh["personal" + loss] == fresh["global" + loss]
