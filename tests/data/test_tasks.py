"""What each task minimises and measures; what episodes hold, and that an evaluation tells embeddings apart."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flray import registry, rng
from flray.config.sections import Shift
from flray.data import load_dataset
from flray.data.federated import federate
from flray.functional import dice_loss, prototypical_loss
from flray.models import build, layer_taps
from flray.tasks import make_task
from flray.tasks.classification import FewShot, summarise_parts
from tests.helpers import cases
from tests.messages import refused

BUILT_IN = sorted(set(registry.tasks.names()) - registry.tasks.added().keys())


def measured(name: str, outputs: Tensor, targets: Tensor, classes: tuple = ()) -> dict[str, float]:
    kind = make_task(name, classes)
    return kind.summarise({k: v.numpy() for k, v in kind.predictions(outputs, targets).items()})


def test_binary_has_two_logits_and_their_difference_as_score() -> None:
    logits = torch.tensor([[0.0, 2.0], [1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    labels = torch.tensor([1, 0, 0, 1])
    found = measured("binary", logits, labels)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-6)
    halves = ("accuracy", "auc", "sensitivity", "specificity", "f1")
    assert [found[name] for name in halves] == [0.5] * 5
    score = make_task("binary").predictions(logits, labels)["score"]
    torch.testing.assert_close(score, torch.softmax(logits.double(), 1)[:, 1])


def test_segmentation_measures_each_structure() -> None:
    masks = torch.zeros(2, 2, 16, 16, dtype=torch.uint8)
    masks[:, 0, 4:12, 4:12], masks[:, 1, 6:10, 6:10] = 1, 1
    predicted = masks.clone()
    predicted[:, 1] = 0
    predicted[:, 1, 6:10, 8:12] = 1  # moved by two columns: half of it overlaps
    logits = predicted.float() * 20 - 10
    found = measured("segmentation", logits, masks, ("disc", "cup"))
    assert (found["dice_disc"], found["dice_cup"], found["dice"]) == (1.0, 0.5, 0.75)
    assert (found["hausdorff_disc"], found["hausdorff_cup"], found["hausdorff"]) == (0.0, 2.0, 1.0)
    assert found["hausdorff95_cup"] == 2.0
    assert found["loss"] == pytest.approx(float(dice_loss(logits, masks)), rel=1e-6)
    assert "dice_disc" not in measured("segmentation", logits[:, :1], masks[:, :1], ("disc",))


def test_a_missing_structure_counts_as_the_diagonal() -> None:
    masks = torch.zeros(2, 1, 3, 4, dtype=torch.uint8)
    masks[0, 0, 1, 1] = 1
    found = measured("segmentation", torch.full((2, 1, 3, 4), -9.0), masks, ("disc",))
    assert found["hausdorff"] == 5.0  # of the first image; the second has nothing on either side
    assert found["dice"] == 0.5


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_samples_give_nan(name: str) -> None:
    assert make_task(name).name == name
    outputs, targets = torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)
    if name == "segmentation":
        outputs = targets = torch.zeros(0, 2, 4, 4)
    assert all(math.isnan(v) for v in measured(name, outputs, targets, ("a", "b")).values())


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_diverged_network_has_an_infinite_loss_that_no_mean_leaves_out(name: str) -> None:
    outputs, targets = torch.zeros(12, 2), torch.arange(12) % 2
    if name == "segmentation":
        outputs = torch.zeros(12, 2, 4, 4)
        targets = torch.ones_like(outputs, dtype=torch.uint8)
    elif make_task(name).target in ("numbers", "flags"):
        targets = torch.stack([targets, 1 - targets], 1).to(torch.uint8)
    outputs[4:] = math.nan
    task = make_task(name, ("a", "b"), {"shot": 1, "queries": 3, "way": 2, "test": 2})
    found = {k: v.numpy() for k, v in task.predictions(outputs, targets).items()}
    measures = task.summarise(found)
    assert measures["loss"] == math.inf and not math.isnan(measures[task.measures[0]])
    apart = summarise_parts(task, found, [4, 0, 8])
    assert apart["loss"][0] < math.inf and apart["loss"][2] == math.inf
    assert math.isnan(apart["loss"][1])


def test_data_of_another_kind_are_refused() -> None:
    options = {"fundus-synthetic": {"samples": 5, "size": 16}, "digits-sklearn": {"samples": 20}}
    sets = (load_dataset(name, given) for name, given in options.items())
    masks, digits = (federate(one, "domains", {}, 0) for one in sets)
    for name in ("classification", "binary", "few-shot"):
        refused(make_task(name).check, masks)
    refused(make_task("binary").check, digits)
    refused(make_task("segmentation", digits.classes).check, digits)
    refused(make_task("segmentation", ("disc",)).check, masks)
    refused(make_task("segmentation", masks.classes).check, replace(masks, y=masks.y * 255))
    refused(make_task, "regresion")
    make_task("segmentation", masks.classes).check(masks)
    make_task("classification").check(digits)


def test_masks_are_partitioned_without_classes() -> None:
    dataset = load_dataset("fundus-synthetic", {"samples": 10, "size": 16})
    data = federate(dataset, "domains", {"clients_per_domain": 2}, 0)
    assert [c.name for c in data.clients[:3]] == ["A0", "A1", "B0"]
    assert all((len(c.train), len(c.test)) == (4, 1) for c in data.clients)
    assert data.y.dtype == np.uint8 and data.y.shape == (60, 2, 16, 16)
    first = data.clients[2].train[0]  # of B: rows 8 to 15
    assert 8 <= first < 16 and np.array_equal(data.y[first], dataset.domains[1].train_y[first - 8])
    assert len(federate(dataset, "iid", {"clients": 3}, 0).clients) == 3
    for partition in ("dirichlet", "dirichlet-equal", "pathological"):
        refused(federate, dataset, partition, {}, 0)
    refused(data.class_counts)
    classes, counts = data.class_table()
    assert classes == ("with masks of disc, cup",) and counts.tolist() == [[4]] * 12
    refused(federate, dataset, "domains", {}, 0, shift=Shift(long_tail=10))


TASK = FewShot(way=3, shot=2, queries=4, test=40)


def labels(*sizes: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


@cases("sizes, shape", "[[9, 9, 9, 9], [3, 6]], [[9, 9, 5, 2], [3, 5]], [[9, 9, 2, 1], [2, 6]]")
def test_an_episode_is_of_distinct_classes(sizes: list[int], shape: list[int]) -> None:
    """Where only two classes are large enough the third leaves three queries; or there are fewer than the way."""
    known = labels(*sizes)
    drawn = list(TASK.episodes(known, np.random.default_rng(1), 50))
    assert len(drawn) == 50
    for episode in drawn:
        assert [*episode.shape] == shape and len(np.unique(episode)) == episode.size
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
    streams = (TASK.batches(known, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    first, again, other = ([next(stream).tolist() for _ in range(3)] for stream in streams)
    assert first == again != other


def test_an_evaluation_equals_the_loss_and_tells_embeddings_apart() -> None:
    known = labels(12, 12, 12, 12, 12)
    noise = np.random.default_rng(3).standard_normal((60, 4)).astype(np.float32)
    apart = noise * 0.1 + np.eye(5, 4, dtype=np.float32)[known] * 5
    apart[known == 4] -= 5
    sets = (apart, noise, noise)
    good, bad, again = (TASK.summarise({"label": known, "embedding": x}) for x in sets)
    assert good["accuracy"] == 1 and bad["accuracy"] == pytest.approx(1 / 3, abs=0.06)
    assert bad == again
    # one episode of everything: the mean loss is the training loss of the same episode
    one = FewShot(way=3, shot=2, queries=4, test=1, seed=5)
    (episode,) = one.episodes(known, rng.numpy_generator(5, "batches", extra="test episodes"), 1)
    rows = episode.reshape(-1)
    embeddings, classes = torch.from_numpy(noise[rows]).double(), torch.from_numpy(known[rows])
    loss = float(prototypical_loss(embeddings, classes, 2))
    assert one.summarise({"label": known, "embedding": noise})["loss"] == pytest.approx(loss, 1e-12)


def test_the_classifier_is_left_out() -> None:
    model = TASK.network(build("digit-cnn", (1, 32, 32), 7, {"width": 0.05}, 0))
    x = torch.rand(2, 1, 32, 32)
    assert isinstance(model.classifier, nn.Identity)
    assert torch.equal(model.eval()(x), model.features(x))
    assert all(name.startswith("features.") for name, _ in layer_taps(model))


def test_a_client_without_two_classes_is_named() -> None:
    dataset = load_dataset("glyphs", {"classes": 8, "unseen": 4, "samples": 12})
    data = federate(dataset, "pathological", {"clients": 4, "classes_per_client": 1}, 0)
    refused(FewShot().check, data)
    FewShot().check(federate(dataset, "iid", {"clients": 1}, 0))
