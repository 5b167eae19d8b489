"""Means of parameters to the bit; arguments of another shape or type are refused by name."""

import builtins
import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.testing import assert_close

import flray.functional as fn
from flray.functional.averaging import PIECE
from flray.functional.numerics import check_shapes, map_floating
from flray.trees import total as left_to_right
from tests.functional.helpers import f64, near, normal
from tests.messages import refused

Tree = dict[str, torch.Tensor]
z = torch.zeros


def tree(**shapes: int) -> Tree:
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def trees(number: int, dtype: torch.dtype = torch.float32) -> list[Tree]:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(number):
        w, b = torch.from_numpy(rng.normal(size=(3, 5))), torch.tensor(rng.normal())
        seen = torch.tensor(int(rng.integers(100)))
        made.append({"w": w.to(dtype), "b": b.to(dtype), "seen": seen})
    return made


def same(found: Tree, expected: Tree) -> bool:
    """Return whether the entries that are expected are there to the bit."""
    return all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight", [50.0, 2.0**29 - 1, 2.0**40 + 1, 0.3])
def test_each_product_and_each_sum_is_rounded_once(weight: float, dtype: str) -> None:
    rng = np.random.default_rng(1)
    values = (rng.normal(size=(3, 4000)) * 10.0 ** rng.integers(-44, 30, (3, 4000))).astype(dtype)
    mean, total = fn.WeightedMean(), np.zeros(4000)
    for one in values:
        mean.add({"w": torch.from_numpy(one)}, weight)
        total = total + one.astype(np.float64) * weight
    assert np.array_equal(mean.partial()["sums"]["w"].numpy(), total)


def test_streaming_gives_the_same_bits_and_copies_its_inputs() -> None:
    clients, weights, mean = trees(5), f64([0.1, 0.2, 0.3, 0.15, 0.25]), fn.WeightedMean()
    for client, weight in zip(clients, weights, strict=True):
        scratch = {name: value.clone() for name, value in client.items()}
        mean.add(scratch, weight.item())
        for value in scratch.values():
            value.fill_(99)
    assert same(mean.result(), fn.weighted_mean(clients, weights))
    mean.add(clients[0], 1.0)
    assert same(mean.result(), fn.weighted_mean([*clients, clients[0]], [*weights, 1.0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_one_tree_gives_itself(dtype: torch.dtype) -> None:
    (client,) = trees(1, dtype)
    for weight in (49.0, 0.1, 1 / 3):
        mean = fn.weighted_mean([client], [weight])
        assert same(mean, client) and all(mean[n].dtype == v.dtype for n, v in client.items())
        assert mean["w"].data_ptr() != client["w"].data_ptr()


@pytest.mark.parametrize(
    "weights", [[1] * 100, [2**29 - 1] * 7, [3, 536870911, 12345, 1], list(range(1, 200))]
)
def test_identical_float32_trees_give_exactly_that_tree(weights: list[int]) -> None:
    (client,) = trees(1)
    client["extreme"] = torch.tensor([1e-42, 3.4e38, -0.1, 0.0, 1 / 3])
    assert same(fn.weighted_mean([client] * len(weights), weights), client)


def test_weight_zero_has_no_influence() -> None:
    clients, huge = trees(3), torch.tensor(10**6)
    bad = {"w": torch.full((3, 5), math.nan), "b": torch.tensor(math.nan), "seen": huge}
    with_bad = fn.weighted_mean([bad, *clients[:2], bad, clients[2]], [0, 1, 2, 0, 3])
    assert same(with_bad, fn.weighted_mean(clients, [1, 2, 3]))


def test_counters_and_flags_take_the_maximum_exactly() -> None:
    big = 2**62 + 1  # would not survive a float
    one = {"n": torch.tensor([big, 1]), "f": torch.tensor([True, False])}
    other = {"n": torch.tensor([5, 2]), "f": torch.tensor([False, False])}
    mean = fn.weighted_mean([one, other], [1, 1000])
    assert mean["n"].tolist() == [big, 2] and mean["f"].tolist() == [True, False]


def test_it_is_detached_and_may_be_of_nothing() -> None:
    clients = trees(6)
    clients[0]["w"].requires_grad_()
    assert not fn.weighted_mean(clients, [1, 5, 2, 0.1, 9, 3])["w"].requires_grad
    assert fn.weighted_mean([{}, {}], [1, 1]) == {}


def test_unusable_weights_and_unequal_trees_are_refused() -> None:
    refused(fn.weighted_mean, [], [])
    for weights in ([1.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf], [0.0, 0.0]):
        refused(fn.weighted_mean, trees(2), weights)
    for other in (tree(v=2), tree(w=3), {"w": z(2).double()}):
        refused(fn.weighted_mean, [tree(w=2), other], [1, 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_merged_blocks_are_the_sum_of_their_sums(dtype: torch.dtype, size: int) -> None:
    clients, weights = trees(7, dtype), [3.0, 1.0, 0.5, 7.0, 0.0, 1 / 3, 11.0]
    pairs, whole = list(zip(clients, weights, strict=True)), fn.WeightedMean()
    total: dict[str, Any] = dict.fromkeys(("w", "b", "weight"), 0.0)
    for start in range(0, 7, size):
        block, some = fn.WeightedMean(), pairs[start : start + size]
        for client, weight in some:
            block.add(client, weight)
        partial = block.partial()
        whole.merge(partial)
        for tensor in partial["sums"].values():
            tensor.fill_(99)  # it was copied
        total["weight"] += left_to_right(weight for _, weight in some)
        for name in ("w", "b"):
            total[name] = total[name] + sum(w * c[name].double().numpy() for c, w in some)
    mean, plain = whole.result(), fn.weighted_mean(clients, weights)
    for name in ("w", "b"):
        expected = torch.as_tensor(total[name] / total["weight"]).to(dtype)
        assert torch.equal(mean[name], expected) and mean[name].dtype == dtype
        near = 1e-12 if dtype == torch.float64 else 1e-2
        assert_close(mean[name], plain[name], rtol=near, atol=1e-15)
    assert torch.equal(mean["seen"], plain["seen"])
    assert size not in (1, 7) or same(mean, plain)


def test_merging_blocks_without_weight_and_unequal_ones() -> None:
    clients, nothing, whole = trees(3), fn.WeightedMean(), fn.WeightedMean()
    nothing.add({name: torch.full_like(value, 5) for name, value in clients[0].items()}, 0.0)
    whole.merge(nothing.partial())
    refused(whole.result)
    pair = fn.WeightedMean()
    for client in clients[:2]:
        pair.add(client, 2.0)
    for part in (pair, nothing):
        whole.merge(part.partial())
    assert same(whole.result(), fn.weighted_mean(clients[:2], [2, 2]))
    other = fn.WeightedMean()
    for client in trees(2, torch.float64):
        other.add(client, 1.0)
    refused(whole.merge, other.partial())


def test_large_tensors_get_the_same_bits_piece_by_piece() -> None:
    """Those of a network such as AlexNet are computed a part at a time."""
    shapes = {"long": (2 * PIECE + 5,), "kernels": (3, PIECE // 4, 2, 1), "one": (), "none": (0, 7)}
    generator = torch.Generator().manual_seed(0)
    made = [{n: torch.randn(s, generator=generator) for n, s in shapes.items()} for _ in range(3)]
    made[1]["kernels"] = made[1]["kernels"].to(memory_format=torch.channels_last)
    weights = [3.0, 0.1, 7.0]
    mean = fn.weighted_mean(made, weights)
    for name in shapes:
        total = made[0][name].double() * weights[0]
        for tree, weight in zip(made[1:], weights[1:], strict=True):
            total = total + tree[name].double() * weight
        assert torch.equal(mean[name], (total / sum(weights)).float())
        assert mean[name].is_contiguous()


def test_trees_keep_counters() -> None:
    trees = [{"w": torch.ones(2), "n": torch.tensor(3)} for _ in range(3)]
    for tree in fn.adaptive_step(*trees):
        assert tree["n"].item() == 3 and tree["w"].dtype == torch.float32
    v = {"a": torch.tensor([1.0, 3.0]), "n": torch.tensor(4)}
    w = {"a": torch.tensor([2.0, -1.0]), "n": torch.tensor(9)}
    mixed = fn.apfl_mix(v, w, 0.25)
    assert mixed["a"].tolist() == [1.75, 0.0] and mixed["n"].item() == 4


def test_the_ends_of_mixtures_are_their_parts_bit_for_bit() -> None:
    start, new, common = (normal(1000, seed=s).float() for s in range(3))
    own, expected = new.double() - start.double(), start + common
    x, change, mean = {"w": start}, {"w": own}, {"w": common}
    broken = {"w": torch.full_like(start, float("nan"))}
    assert same(fn.apfl_mix(x, broken, 1.0), x) and same(fn.apfl_mix(broken, x, 0.0), x)
    assert same(fn.pull_to_mean(x, broken, 0.0), x) and same(fn.pull_to_mean(broken, x, 1.0), x)
    assert fn.apfl_mix(x, x, 1.0)["w"].data_ptr() != start.data_ptr()
    assert same(fn.mix_updates(x, broken, mean, 0.0), {"w": expected})
    assert same(fn.mix_updates(x, change, broken, 1.0), {"w": new})


def test_broken_and_identical_candidates_get_no_weight() -> None:
    inf, nan = float("inf"), float("nan")
    losses, distances = [2.0, inf, nan, 1e30, 1.0], [0.0, 1.0, 1.0, 1.0, nan]
    affinities = fn.fomo_affinities(2.0, torch.tensor(losses), torch.tensor(distances))
    assert torch.isfinite(affinities).all() and fn.fomo_weights(affinities).tolist() == [0.0] * 5


def test_fomo_mix_equals_the_convex_form_when_weights_sum_to_one() -> None:
    reference = {"w": normal(3), "n": torch.tensor(2)}
    candidates = [{"w": normal(3, seed=s), "n": torch.tensor(s)} for s in (1, 2)]
    bad = {"w": torch.full((3,), float("nan"), dtype=torch.float64), "n": torch.tensor(5)}
    mixed = fn.fomo_mix(reference, [*candidates, bad], torch.tensor([0.25, 0.75, 0.0]))
    assert_allclose(mixed["w"], 0.25 * candidates[0]["w"] + 0.75 * candidates[1]["w"], rtol=1e-12)
    assert mixed["n"].item() == 2
    kept = fn.fomo_mix(reference, candidates, torch.zeros(2))
    assert torch.equal(kept["w"], reference["w"])
    assert kept["w"].data_ptr() != reference["w"].data_ptr()


def test_a_trace_adds_up_over_batches_and_a_ratio_is_of_two() -> None:
    h = normal(6, 4)
    near(fn.gram_trace(h[:2]) + fn.gram_trace(h[2:]), fn.gram_trace(h).item(), rel=1e-13)
    assert fn.gram_trace(h[:1], centred=True).item() == 0.0 and fn.gram_trace(h[:0]).item() == 0.0
    assert fn.gram_trace(h.float()).dtype == torch.float32
    local, other = normal(5, 3), normal(5, 3, seed=1)
    a, b = (local.numpy() ** 2).sum(), (other.numpy() ** 2).sum()
    near(fn.mixing_ratio(local, other), a / (a + b), rel=1e-13)
    assert fn.mixing_ratio(local, local).item() == 0.5
    assert fn.mixing_ratio(torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0.5
    assert fn.mixing_ratio(torch.zeros(2, 3), torch.ones(2, 3)).item() == 0.0
    assert fn.mixing_ratio(local[:1], other[:1], centred=True).item() == 0.5
    # Squares exceed float32.
    assert fn.mixing_ratio(torch.full((2, 3), 1e25), torch.full((2, 3), 1e25)).item() == 0.5
    assert fn.trace_ratio(3.0, 1.0).item() == 0.75


def test_no_bit_depends_on_the_version_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.12 on Python's sum of floats compensates for rounding, much as fsum does: ten tenths are 1."""
    monkeypatch.setattr(builtins, "sum", math.fsum)
    tenths = [0.1] * 10
    assert fn.stabilised_ratio(tenths, 0.0) == 0.09999999999999999
    tree = {str(i): f64([x]) for i, x in enumerate(tenths)}
    zero, one = ({name: torch.full_like(w, x) for name, w in tree.items()} for x in (0.0, 1.0))
    assert fn.apfl_alpha_gradient(tree, zero, one) == 0.9999999999999999


X, Y = torch.zeros(3, 2), torch.zeros(3).long()
HERE, A = torch.ones(3).bool(), tree(a=2)
HEADS = [nn.Linear(2, 4), nn.Linear(2, 4)]


WRONG: dict[Any, list[tuple[Any, ...]]] = {
    fn.class_means: [
        (z(3), Y, 2),
        (X, z(2).long(), 2),
        (X, z(3), 2),
        (X, torch.tensor([0, 3, 1]), 3),
        (X, torch.tensor([-1, 0, 1]), 3),
    ],
    fn.global_structural_knowledge: [(z(2, 3, 4), z(2, 4).bool()), (z(2, 3, 4), z(2, 3))],
    fn.local_contrastive_loss: [(X, Y, X.T, HERE)],
    fn.knowledge_discrepancy: [(z(2, 3, 4), z(2, 3).bool(), z(3, 3))],
    fn.discrepancy_weights: [(z(2), z(3)), (z(2), torch.tensor([1.0, float("nan")]))],
    fn.period_review: [
        (A, tree(a=3), z(2, 2), z(2, 2)),
        (A, tree(b=2), z(2, 2), z(2, 2)),
        (A, A, z(2, 2), z(2, 3)),
    ],
    fn.cross_correlation: [(X, z(3, 3)), (z(0, 3), z(0, 3))],
    fn.instance_similarity: [(z(3),)],
    fn.instance_similarity_loss: [(X, z(4, 3))],
    fn.distillation_loss: [(X, z(3, 4))],
    fn.non_target_distillation_loss: [(X, X, z(2).long())],
    fn.digest_loss: [(X, X.T)],
    fn.peer_classifier_loss: [
        (X, Y[:2], HEADS, 0),
        (X, Y, HEADS, 2),
        (X, Y, HEADS, -1),
        (X, Y, [HEADS[0], nn.Flatten(0)], 0),
    ],
    fn.fuse_predictions: [(X, z(3, 4))],
    fn.peer_distillation_loss: [(X, z(3, 3, 2), z(3), 3), (X, z(3, 3, 2), z(2), 0)],
    fn.confidence_weights: [(torch.tensor([float("nan"), 1.0]), z(2))],
    fn.gram_trace: [(z(3),), (z(3, 0),)],
    fn.mixing_ratio: [(X, z(2, 2))],
    fn.trace_ratio: [(1.0, float("nan"))],
    fn.mix_updates: [(A, tree(a=3), A, 0.5), (A, A, tree(a=1), 0.5)],
    fn.proximal_penalty: [({}, {}, 1.0), (tree(w=2, b=1), tree(w=2), 1.0)],
    fn.ewc_penalty: [(tree(b=2), tree(b=2), tree(b=1), 1.0)],
    fn.vote: [(X,), (z(0, 3, 4),)],
    fn.pseudo_label_loss: [(X, Y, z(3))],
    fn.helper_consistency_loss: [(X, z(2, 3, 3), HERE)],
    fn.decomposition_penalty: [(tree(a=2), tree(a=3))],
    fn.momentum_step: [(A, tree(a=3))],
    fn.adaptive_step: [(A, A, tree(a=3))],
    fn.apfl_alpha_gradient: [(A, A, tree(a=3))],
    fn.fomo_affinities: [(1.0, z(2), z(3))],
    fn.fomo_mix: [(tree(a=2), [tree(a=2)], z(2)), (tree(a=2), [tree(b=2)], z(1))],
    fn.hyper_prediction_loss: [(X, z(3, 3), HERE)],
    fn.hyper_feature_loss: [(X, Y, z(3, 3), HERE)],
    fn.balanced_softmax_loss: [(X, Y, z(3))],
    fn.restricted_softmax_logits: [(X, z(3, 4), None, z(3)), (X, z(3, 2), z(2), z(3))],
    fn.cosine_logits: [(X, X.T, 1.0)],
    fn.model_contrastive_loss: [(X, z(3, 4), X)],
    fn.relaxed_contrastive_loss: [(X, z(2).long()), ([], Y)],
    fn.prototype_loss: [(X, Y, z(3, 4), HERE)],
    fn.prototype_contrastive_loss: [(X, Y, X, HERE.int())],
    fn.merge_prototypes: [(z(3, 4, 2), z(3, 3))],
    fn.update_directions: [(z(4, 3), z(3, 4, 2), z(3, 4))],
    fn.prototypical_loss: [(X, Y[:2], 1)],
    fn.dice_loss: [(z(1, 2, 4, 4), z(1, 1, 4, 4))],
}
ROWS = [(call, *arguments) for call, several in WRONG.items() for arguments in several]


@pytest.mark.parametrize("row", ROWS)
def test_wrong_arguments_are_named(row: tuple[Any, ...]) -> None:
    refused(*row)


def test_shapes_bind_symbols_across_and_within_arguments() -> None:
    row, scalar = (z(3), "C"), torch.tensor(1.0)
    found = check_shapes(square=(z(3, 3), "C C"), row=row, scalar=(scalar, ""))
    assert found == {"C": 3}
    refused(check_shapes, row=row, square=(z(2, 3), "C C"))
    refused(check_shapes, square=(z(2, 3), "C C"))
    refused(check_shapes, row=(scalar, "C"))


def test_trees_are_mapped_in_float64_and_rounded_once() -> None:
    tree = {"half": torch.tensor([0.1], dtype=torch.float16), "flag": torch.tensor([True])}
    seen = []
    result = map_floating(lambda x, y: seen.append(x.dtype) or x + y, tree, other=tree)  # type: ignore[func-returns-value]
    assert seen == [torch.float64] and result["half"].dtype == torch.float16
    assert result["half"].item() == 2 * tree["half"].item() and result["flag"] is tree["flag"]


PUBLISHED = """
structural_knowledge outputs labels num_classes gate=True
global_structural_knowledge knowledge present neighbours=1
local_contrastive_loss logits labels prototypes present temperature=0.08 normaliser='distance'
period_review current previous knowledge_now knowledge_before beta=0.95
cross_correlation_loss logits mean_logits off_diagonal=0.0051
instance_similarity features temperature=0.02
non_target_distillation_loss student teacher labels temperature=3.0
distillation_loss student teacher temperature=1.0
gram_trace features centred=False
mixing_ratio local_features global_features centred=False
"""


@pytest.mark.parametrize("line", PUBLISHED.strip().splitlines())
def test_published_defaults(line: str) -> None:
    name, *parameters = line.split()
    signature = inspect.signature(getattr(fn, name)).parameters.values()
    positional = [p for p in signature if p.kind is p.POSITIONAL_OR_KEYWORD]
    shown = [p.name + ("" if p.default is p.empty else f"={p.default!r}") for p in positional]
    assert shown == parameters
