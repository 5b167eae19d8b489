"""Knowledge of classes that travels: FedProc, FedProto, FedHKD and FedNH."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import flray.functional as fn
from flray import trees
from flray.algorithms.client import Client
from flray.algorithms.fedhkd import FedHKD
from flray.algorithms.fednh import spread
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W
from tests.algorithms.test_tasks import FEW_SHOT, world_of

SKEWED = tiny.gaussian_clients(skew=True)  # client i lacks class i


def means(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x[y == c].mean(0) for c in range(3)])


def test_fedproc_prototypes_are_means_over_all_samples_of_a_class_and_stay_if_unsent() -> None:
    """The features of a network whose body has no parameters are its inputs; client i lacks class i."""
    clients, settings = tiny.tensors(skew=True), {"clients": SKEWED, "model": "one-layer"}
    state = tiny.run("fedproc", **settings).server.state["prototypes"]
    x, y = (torch.cat(parts) for parts in zip(*clients, strict=True))
    tiny.close(state["vectors"], means(x, y))
    assert state["present"].all()
    federation = tiny.fresh("fedproc", classes=4, participation={"clients": 1}, **settings)
    expected, known = torch.zeros(4, 4, dtype=torch.float64), set()
    for _ in range(5):
        federation.step()
        x, y = clients[federation.server.cohort[0]]
        for c in y.unique().tolist():
            expected[c] = x[y == c].mean(0)
            known.add(c)
        state = federation.server.state["prototypes"]
        tiny.close(state["vectors"], expected)
        assert set(state["present"].nonzero().flatten().tolist()) == known
    assert known == {0, 1, 2}


def test_fedproc_the_weight_of_ce_grows_over_the_rounds() -> None:
    """The contrast has no gradient where the body has no parameters, so alpha scales the steps: 1, 1/4, 2/4."""
    federation = tiny.run({"name": "fedproc", "ramp": 4}, rounds=3, **tiny.full())
    w = tiny.start(federation)[V]
    for alpha in (1.0, 0.25, 0.5):
        steps = [{V: w - 0.1 * alpha * tiny.softmax_gradient(w, *data)} for data in tiny.tensors()]
        w = tiny.mean_of(steps, tiny.SIZES)[V]
    tiny.close(federation.server.model, {V: w})


def test_fedproc_two_rounds_by_hand() -> None:
    federation = tiny.run({"name": "fedproc", "alpha": 0.3}, rounds=2, **tiny.full("linear-body"))
    clients = tiny.tensors()
    trained = tiny.each_step(tiny.start(federation), clients)
    features = torch.cat([x @ p[W].T for (x, _), p in zip(clients, trained, strict=True)])
    prototypes = F.normalize(means(features, torch.cat([y for _, y in clients])))

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        r = x @ p[W].T
        return 0.3 * F.cross_entropy(r @ p[V].T, y) + 0.7 * F.cross_entropy(r @ prototypes.T, y)

    trained = tiny.each_step(tiny.mean_of(trained, tiny.SIZES), clients, loss)
    tiny.close(federation.server.model, tiny.mean_of(trained, tiny.SIZES))


# Inputs are the features of a network whose body has no parameters; nobody has class 3.
FOUR = {"clients": SKEWED, "classes": 4, "model": "one-layer"}


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_fedproto_prototypes_are_means_over_the_clients_that_hold_the_class(weighting: str) -> None:
    federation = tiny.run({"name": "fedproto", "weighting": weighting}, **FOUR)
    state = federation.server.state["prototypes"]
    for c in range(3):
        held = [x[y == c] for x, y in tiny.tensors(skew=True) if (y == c).any()]
        assert len(held) == 2
        parts = [h.mean(0, keepdim=True) for h in held] if weighting == "uniform" else held
        tiny.close(state["vectors"][c], torch.cat(parts).mean(0))
    assert state["present"].tolist() == [True, True, True, False]


@pytest.mark.parametrize("own", [False, True])
def test_fedproto_the_nearest_known_prototype_predicts(own: bool) -> None:
    federation = tiny.run({"name": "fedproto", "own_classes": own}, **FOUR)
    prototypes = federation.server.state["prototypes"]["vectors"]
    metrics = federation.evaluate()
    for i, (x, y) in enumerate(tiny.tensors(skew=True)):
        distances = (x[:, None] - prototypes[None]).norm(dim=2)
        # Nobody holds it; its row of zeros would be a point like any other.
        distances[:, [3, i] if own else [3]] = torch.inf
        right = (distances.argmin(1) == y).double().mean()
        assert metrics[f"personal/local/accuracy/client/client{i}"] == right
        tiny.has_loss(federation, i, -distances)


def test_fedproto_the_classifier_predicts_where_asked_and_before_there_are_prototypes() -> None:
    by_classifier = {"name": "fedproto", "predict": "classifier"}
    federation = tiny.fresh("fedproto")
    assert federation.evaluate() == tiny.fresh(by_classifier).evaluate()
    federation.step()
    assert federation.evaluate() != tiny.run(by_classifier).evaluate()
    assert tiny.run(by_classifier).evaluate() == tiny.run("local").evaluate()


def test_fedproto_networks_may_differ() -> None:
    models = {"client0": {"name": "two-layer", "norm": False}}
    server = tiny.run("fedproto", rounds=2, models=models).server
    assert len(server.models) == 2 and server.state["prototypes"]["vectors"].shape == (3, 5)


@pytest.mark.parametrize("per_feature", [False, True])
def test_fedproto_two_rounds_by_hand(per_feature: bool) -> None:
    options = {"name": "fedproto", "lam": 0.5, "per_feature": per_feature}
    federation = tiny.run(options, rounds=2, **tiny.full("linear-body"))
    clients = tiny.tensors()
    trained = tiny.each_step(tiny.start(federation), clients)
    pairs = zip(clients, trained, strict=True)
    prototypes = torch.stack([means(x @ p[W].T, y) for (x, y), p in pairs]).mean(0)

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        f = x @ p[W].T
        distance = (f - prototypes[y]).square().sum(1).mean() / (5 if per_feature else 1)
        return F.cross_entropy(f @ p[V].T, y) + 0.5 * distance

    for i, expected in enumerate(tiny.each_step(trained, clients, loss)):
        tiny.close(tiny.kept(federation, i), expected)


def test_fedproto_in_few_shot_learning_the_distance_is_added_to_the_episodes_loss() -> None:
    """Unseen classes have no shared prototype: the tested model is the embedding, and lam = 0 is FedAvg."""

    def digests(**algorithm: object) -> list[str]:
        federation, found = tiny.federation_of(world_of(algorithm, FEW_SHOT)), []
        for _ in range(2):
            assert 0 <= federation.step().metrics["global/common/accuracy"] <= 1
            found.append(trees.sha256(federation.server.model))
        return found

    paper = {"name": "fedproto", "preset": "fedskc"}
    plain, first, off = digests(name="fedavg"), digests(**paper), digests(**paper, lam=0.0)
    assert off == plain and first[0] == plain[0] and first[1] != plain[1]


EXACT = {"name": "fedhkd", "noise": 0.0, "clip": 1e6, "threshold": 0.0}


def test_fedhkd_without_noise_the_knowledge_is_the_mean_over_all_samples() -> None:
    known = tiny.run(EXACT, **FOUR).server.state["knowledge"]
    x, y = (torch.cat(parts) for parts in zip(*tiny.tensors(skew=True), strict=True))
    tiny.close(known["features"][:3], means(x, y))
    tiny.close(known["predictions"].sum(1), torch.tensor([1, 1, 1, 0.0]).double())
    assert known["present"].tolist() == [True, True, True, False]


def test_fedhkd_features_are_clipped_to_the_norm_and_averaged_by_class() -> None:
    clients = tiny.gaussian_clients((12,))
    known = tiny.run({**EXACT, "clip": 0.5}, clients, model="one-layer").server.state["knowledge"]
    ((x, y),) = tiny.as_tensors(clients)
    tiny.close(known["features"], means(x * (0.5 / x.norm(dim=1, keepdim=True)).clamp(max=1), y))
    # A class of one sample is sent, and one without is zero.
    held, counts = torch.tensor([[9.0, 9.0], [1.0, 2.0]]), torch.tensor([0, 1])
    sent = fn.noisy_class_means(held, counts, 1.0, 0.0, torch.Generator())
    assert sent.tolist() == [[0.0, 0.0], [1.0, 2.0]]


def test_fedhkd_the_noise_has_deviation_sigma_2_clip_over_n_and_is_drawn_for_each_class() -> None:
    y = np.repeat(np.arange(3), (5, 10, 20)).astype(np.int64)
    noise, client = {**EXACT, "noise": 0.7, "clip": 2.0}, (np.zeros((35, 4000)), y)
    runs = (tiny.run(noise, [client], model="one-layer", seed=seed) for seed in (0, 1))
    first, other = (run.server.state["knowledge"] for run in runs)
    # The mean of zeros is zero, so all of it is noise; the estimate deviates by 1.1 % (one sigma).
    wanted = 0.7 * 2 * 2.0 / torch.tensor([5.0, 10, 20]).double()
    tiny.close(first["features"].std(1), wanted, rtol=0.05)
    vectors = F.normalize(torch.cat([first["features"], other["features"]]))
    assert (vectors @ vectors.T).fill_diagonal_(0).abs().max() < 0.08  # five sigma


def test_fedhkd_a_class_below_the_threshold_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, knowledge = list[dict[str, Tensor]](), FedHKD.knowledge

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


def test_fedhkd_two_rounds_by_hand() -> None:
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


def test_fedhkd_the_first_round_is_fedavg_s_and_the_personal_model_the_client_s_last_one() -> None:
    """The first round has nothing but CE, so what it leaves at a client is the model of local training."""
    federation, loss = tiny.run("fedhkd"), "/local/loss"
    assert tiny.models_sha(federation) == tiny.digest("fedavg")
    metrics, fresh = federation.evaluate(), tiny.federation_of(federation.spec).evaluate()
    assert metrics["personal" + loss] == tiny.run("local").evaluate()["personal" + loss]
    assert fresh["personal" + loss] == fresh["global" + loss]


S = "classifier.scale"


def random(classes: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(classes, size, dtype=torch.float64, generator=generator)


def largest_cosine(vectors: Tensor) -> float:
    return float((F.normalize(vectors) @ F.normalize(vectors).T).fill_diagonal_(-1).max())


SPREAD = {(3, 5): 0.0, (7, 4): 0.0, (8, 4): 0.0}
SPREAD |= {(7, 2): math.cos(2 * math.pi / 7), (8, 3): 0.2612, (12, 3): 1 / math.sqrt(5)}


@pytest.mark.parametrize(("classes", "size"), SPREAD)
def test_fednh_the_class_vectors_start_far_apart(classes: int, size: int) -> None:
    """Best known: the square antiprism for 8 in three dimensions, the icosahedron for 12."""
    vectors, cosine = spread(random(classes, size)), SPREAD[classes, size]
    tiny.close(vectors.norm(dim=1), torch.ones(classes, dtype=torch.float64))
    assert largest_cosine(vectors) == pytest.approx(cosine, abs=5e-3 if size == 3 else 1e-12)
    assert largest_cosine(random(classes, size)) > cosine + 0.1
    if classes <= size:
        tiny.close(vectors @ vectors.T, torch.eye(classes, dtype=torch.float64))


def test_fednh_with_full_momentum_w_keeps_its_bits_whatever_the_optimiser_does() -> None:
    local = {"momentum": 0.9, "weight_decay": 0.1}
    federation = tiny.run({"name": "fednh", "rho": 1.0}, rounds=3, local=local)
    before, after = tiny.start(federation), federation.server.model
    assert torch.equal(before[V], after[V])
    assert not any(torch.equal(before[name], after[name]) for name in (S, tiny.W))


def test_fednh_rows_of_w_have_length_1_after_every_round() -> None:
    federation = tiny.fresh("fednh", SKEWED, participation={"clients": 1})
    for _ in range(4):
        before = federation.server.model[V]
        federation.step()
        after = federation.server.model[V]
        tiny.close(after.norm(dim=1), torch.ones(3, dtype=torch.float64))
        # a client lacks the class of its own number, whose vector then stays
        stayed = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
        assert stayed == [c == federation.server.cohort[0] for c in range(3)]


def test_fednh_a_round_by_hand() -> None:
    """The body has no parameters: two full-batch steps on s alone, and W from the directions of the inputs."""
    options = {"name": "fednh", "rho": 0.7, "scale": 2.0}
    federation = tiny.run(options, SKEWED, **tiny.full(epochs=2))
    w, scales = tiny.start(federation)[V], []
    pull = torch.zeros(3, 4, dtype=torch.float64)
    for x, y in tiny.as_tensors(SKEWED):
        directions = x / x.norm(dim=1, keepdim=True)
        cosines = directions @ w.T
        s = torch.tensor(2.0, dtype=torch.float64)
        for _ in range(2):
            p = torch.softmax(s * cosines, dim=1)
            p[torch.arange(len(y)), y] -= 1
            s = s - 0.1 * (p * cosines).sum() / len(y)
        scales.append(s)
        for c in y.unique():
            u = directions[y == c].mean(0)
            pull[c] += (y == c).sum() * u / u.norm()
    moved = 0.7 * w + 0.3 * pull / pull.norm(dim=1, keepdim=True)
    expected = {S: torch.stack(scales).mean(), V: moved / moved.norm(dim=1, keepdim=True)}
    tiny.close(federation.server.model, expected)


def test_fednh_a_fixed_scale_is_no_part_of_the_state_and_bounds_the_logits() -> None:
    federation = tiny.run({"name": "fednh", "scale": 30.0, "train_scale": False}, rounds=2)
    assert S not in federation.server.model
    model = federation.spec.build("two-layer")
    model.load_state_dict(federation.server.model)
    assert 20 < model(random(50, 4)).abs().max() <= 30


def test_fednh_personal_models_are_the_clients_last_ones_and_change_no_training() -> None:
    on, off = (tiny.run({"name": "fednh", "personal": on}, rounds=2) for on in (True, False))
    assert tiny.models_sha(on) == tiny.models_sha(off)
    assert all(handle is None for handle in off.states)
    metrics, fresh = on.evaluate(), tiny.federation_of(on.spec).evaluate()
    assert metrics["personal/local/loss"] < metrics["global/local/loss"]
    assert fresh["personal/local/loss"] == fresh["global/local/loss"]
