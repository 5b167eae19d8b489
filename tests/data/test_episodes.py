"""Episodes: what they hold, that they are keyed, and that an evaluation can tell a good embedding from a bad one."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from flray import rng
from flray.data import load_dataset
from flray.data.federated import federate
from flray.functional import prototypical_loss
from flray.models import build, layer_taps
from flray.tasks.classification import FewShot
from tests.messages import refused

TASK = FewShot(way=3, shot=2, queries=4, test=40)


def labels(*sizes: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((9, 9, 9, 9), (3, 6)),
        ((9, 9, 5, 2), (3, 5)),  # only two classes are large enough: the third leaves three queries
        ((9, 9, 2, 1), (2, 6)),  # fewer classes than the way
    ],
)
def test_an_episode_has_support_and_queries_of_distinct_classes(
    sizes: tuple[int, ...], shape: tuple[int, int]
) -> None:
    known = labels(*sizes)
    drawn = list(TASK.episodes(known, np.random.default_rng(1), 50))
    assert len(drawn) == 50
    for episode in drawn:
        assert episode.shape == shape and len(np.unique(episode)) == episode.size
        assert all(len(np.unique(row)) == 1 for row in known[episode])
        assert len(np.unique(known[episode][:, 0])) == shape[0]
    assert len({tuple(known[episode][:, 0]) for episode in drawn}) > 1


def test_no_episode_without_two_classes() -> None:
    assert list(TASK.episodes(labels(9, 2), np.random.default_rng(0), 3)) == []
    assert TASK.episodes_per_epoch(torch.from_numpy(labels(9, 2))) == 0
    # an epoch shows as many samples as there are: 60 / (3 * 6), rounded up
    assert TASK.episodes_per_epoch(torch.from_numpy(labels(20, 20, 20))) == 4
    embedding = np.zeros((11, 2), dtype=np.float32)
    found = TASK.summarise({"label": labels(9, 2), "embedding": embedding})
    assert math.isnan(found["accuracy"]) and math.isnan(found["loss"])


def test_batches_are_keyed_by_their_generator() -> None:
    known = torch.from_numpy(labels(9, 9, 9, 9))
    first, again, other = (
        [next(stream).tolist() for _ in range(3) for stream in [batches]]
        for batches in (
            TASK.batches(known, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
        )
    )
    assert first == again != other


def test_an_evaluation_equals_the_loss_and_tells_embeddings_apart() -> None:
    known = labels(12, 12, 12, 12, 12)
    generator = np.random.default_rng(3)
    noise = generator.standard_normal((60, 4)).astype(np.float32)
    apart = noise * 0.1 + np.eye(5, 4, dtype=np.float32)[known] * 5
    apart[known == 4] -= 5
    found = {
        name: TASK.summarise({"label": known, "embedding": x})
        for name, x in (("good", apart), ("noise", noise))
    }
    assert found["good"]["accuracy"] == 1
    assert found["noise"]["accuracy"] == pytest.approx(1 / 3, abs=0.06)
    again = TASK.summarise({"label": known, "embedding": noise})
    assert again == found["noise"]
    # one episode of everything: the mean loss is the training loss of the same episode
    one = FewShot(way=3, shot=2, queries=4, test=1, seed=5)
    (episode,) = one.episodes(known, rng.numpy_generator(5, "batches", extra="test episodes"), 1)
    rows = torch.from_numpy(episode.reshape(-1))
    embeddings = torch.from_numpy(noise)[rows].double()
    loss = float(prototypical_loss(embeddings, torch.from_numpy(known)[rows], 2))
    measured = one.summarise({"label": known, "embedding": noise})
    assert measured["loss"] == pytest.approx(loss, rel=1e-12)


def test_the_classifier_is_left_out() -> None:
    model = TASK.network(build("digit-cnn", (1, 32, 32), 7, {"width": 0.05}, 0))
    assert isinstance(model.classifier, nn.Identity)
    x = torch.rand(2, 1, 32, 32)
    assert torch.equal(model.eval()(x), model.features(x))
    assert all(name.startswith("features.") for name, _ in layer_taps(model))


def test_a_client_without_two_classes_is_named() -> None:
    dataset = load_dataset("glyphs", {"classes": 8, "unseen": 4, "samples": 12})
    data = federate(dataset, "pathological", {"clients": 4, "classes_per_client": 1}, 0)
    refused(FewShot().check, data)
    FewShot().check(federate(dataset, "iid", {"clients": 1}, 0))
