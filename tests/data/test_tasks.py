"""What each task minimises and measures."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray.config.sections import Shift
from flray.data import FederatedData, load_dataset
from flray.data.federated import federate
from flray.functional import dice_loss
from flray.models import build
from flray.tasks import NAMES, make_task
from flray.tasks.classification import summarise_parts
from tests.messages import refused


def measured(
    name: str, outputs: Tensor, targets: Tensor, classes: tuple[str, ...] = ()
) -> dict[str, float]:
    kind = make_task(name, classes)
    return kind.summarise({k: v.numpy() for k, v in kind.predictions(outputs, targets).items()})


def of_masks() -> FederatedData:
    return federate(load_dataset("fundus-synthetic", {"samples": 5, "size": 16}), "domains", {}, 0)


def test_names_and_unknown_ones() -> None:
    assert [make_task(name).name for name in NAMES] == list(NAMES)
    refused(make_task, "regresion")


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


@pytest.mark.parametrize("name", NAMES)
def test_no_samples_give_nan(name: str) -> None:
    outputs, targets = torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)
    if name == "segmentation":
        outputs = targets = torch.zeros(0, 2, 4, 4)
    assert all(math.isnan(v) for v in measured(name, outputs, targets, ("a", "b")).values())


@pytest.mark.parametrize("name", NAMES)
def test_a_diverged_network_has_an_infinite_loss_that_no_mean_leaves_out(name: str) -> None:
    outputs, targets = torch.zeros(12, 2), torch.arange(12) % 2
    if name == "segmentation":
        outputs, targets = torch.zeros(12, 2, 4, 4), torch.ones(12, 2, 4, 4, dtype=torch.uint8)
    elif make_task(name).target in ("numbers", "flags"):
        targets = torch.stack([targets, 1 - targets], 1).to(torch.uint8)
    outputs[4:] = math.nan
    task = make_task(name, ("a", "b"), {"shot": 1, "queries": 3, "way": 2, "test": 2})
    found = {k: v.numpy() for k, v in task.predictions(outputs, targets).items()}
    measures = task.summarise(found)
    assert measures["loss"] == math.inf
    assert not math.isnan(measures[task.measures[0]])
    apart = summarise_parts(task, found, [4, 0, 8])
    assert apart["loss"][0] < math.inf and apart["loss"][2] == math.inf
    assert math.isnan(apart["loss"][1])


def test_a_network_for_classes_is_refused_in_segmentation() -> None:
    data = of_masks()
    kind = make_task("segmentation", data.classes)
    options = {"width": 1, "depth": 2}
    kind.check_network("unet", build("unet", data.shape, 2, options, 0, torch.float64), data)
    refused(kind.check_network, "lenet", build("lenet", data.shape, 2, {}, 0), data)


def test_data_of_another_kind_are_refused() -> None:
    masks = of_masks()
    digits = federate(load_dataset("digits-sklearn", {"samples": 20}), "domains", {}, 0)
    for name, classes, data in (
        ("classification", (), masks),
        ("binary", (), masks),
        ("few-shot", (), masks),
        ("binary", (), digits),
        ("segmentation", digits.classes, digits),
        ("segmentation", ("disc",), masks),
        ("segmentation", masks.classes, replace(masks, y=masks.y * 255)),
    ):
        refused(make_task(name, classes).check, data)
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
