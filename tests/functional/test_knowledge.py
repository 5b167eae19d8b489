import numpy as np
import pytest
import torch

from flray.functional import class_means, global_structural_knowledge, structural_knowledge
from tests.functional.helpers import F64, POISONS, normal


def test_class_means_by_hand() -> None:
    outputs = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 0.0]], dtype=F64)
    means, counts = class_means(outputs, torch.tensor([2, 2, 0]), 4)
    assert means.tolist() == [[10.0, 0.0], [0.0, 0.0], [2.0, 3.0], [0.0, 0.0]]
    assert counts.tolist() == [1, 0, 2, 0] and counts.dtype == torch.int64


def test_structural_knowledge_is_c_sigmoid_c() -> None:
    outputs, labels = normal(30, 5), torch.arange(30) % 3
    knowledge, counts = structural_knowledge(outputs, labels, 5)
    for j in range(3):
        mean = outputs.numpy()[j::3].mean(0)
        np.testing.assert_allclose(knowledge[j].numpy(), mean / (1 + np.exp(-mean)), rtol=1e-13)
    assert counts.tolist() == [10, 10, 10, 0, 0] and not knowledge[3:].any()
    plain, _ = structural_knowledge(outputs, labels, 5, gate=False)
    np.testing.assert_allclose(plain[1].numpy(), outputs.numpy()[1::3].mean(0), rtol=1e-13)
    assert torch.autograd.gradcheck(
        lambda x: structural_knowledge(x, labels, 5)[0], outputs.requires_grad_()
    )


def test_gate_saturates_without_nan() -> None:
    knowledge, _ = structural_knowledge(
        torch.tensor([[-1e5, 1e5, 0.0]], dtype=F64), torch.tensor([0]), 1
    )
    assert knowledge.tolist() == [[0.0, 1e5, 0.0]]


def test_class_means_do_not_mix_classes_dtypes_or_large_sums() -> None:
    means, _ = class_means(torch.tensor([[float("nan")], [2.0]]), torch.tensor([0, 1]), 2)
    assert means[1].item() == 2.0 and means.dtype == torch.float32
    many = torch.full((20_000, 1), 0.1)
    assert class_means(many, torch.zeros(20_000, dtype=torch.long), 1)[0].item() == pytest.approx(
        0.1, rel=1e-7
    )
    empty, counts = class_means(torch.empty(0, 3), torch.empty(0, dtype=torch.long), 2)
    assert not empty.any() and counts.tolist() == [0, 0]


def loop_global(knowledge: np.ndarray, present: np.ndarray, neighbours: int) -> np.ndarray:
    clients, classes, entries = knowledge.shape
    result = np.zeros((classes, entries))
    for j in range(classes):
        holders = [k for k in range(clients) if present[k, j]]
        merged = []
        for k in holders:
            others = sorted(
                (i for i in holders if i != k),
                key=lambda i: (np.linalg.norm(knowledge[k, j] - knowledge[i, j]), i),
            )[:neighbours]
            merged.append(
                (knowledge[k, j] + sum(knowledge[i, j] for i in others)) / (len(others) + 1)
            )
        if merged:
            result[j] = sum(merged) / len(merged)
    return result


@pytest.mark.parametrize("neighbours", [0, 1, 2, 10])
@pytest.mark.parametrize("poison", POISONS)
def test_global_knowledge_equals_loops(neighbours: int, poison: float) -> None:
    knowledge = normal(6, 5, 4)
    present = torch.from_numpy(np.random.default_rng(1).random((6, 5)) < 0.6)
    present[:, 0], present[:, 1] = False, False
    present[3, 1] = True
    expected = loop_global(knowledge.numpy(), present.numpy(), neighbours)
    merged, held = global_structural_knowledge(
        torch.where(present.unsqueeze(-1), knowledge, poison), present, neighbours
    )
    np.testing.assert_allclose(merged.numpy(), expected, rtol=1e-13, atol=1e-15)
    assert held.tolist() == present.any(0).tolist() and not held[0]
    assert torch.equal(merged[1], knowledge[3, 1])


def test_global_knowledge_by_hand_with_ties() -> None:
    # Points 0, 1, 2 on a line: the middle one is equally near to both and takes the first client.
    knowledge = torch.tensor([[[0.0]], [[1.0]], [[2.0]]], dtype=F64)
    merged, _ = global_structural_knowledge(knowledge, torch.ones(3, 1, dtype=torch.bool))
    assert merged.item() == pytest.approx((0.5 + 0.5 + 1.5) / 3, rel=1e-15)
    single, held = global_structural_knowledge(knowledge[:1], torch.ones(1, 1, dtype=torch.bool), 3)
    assert single.item() == 0.0 and held.item()
