"""Arguments of another shape, type or range are refused by name, and the published defaults."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import flray.functional as fn
from flray.functional.numerics import check_shapes, map_floating
from tests.messages import refused

X, Y = torch.zeros(3, 2), torch.zeros(3).long()
HERE = torch.ones(3).bool()
HEADS = [nn.Linear(2, 4), nn.Linear(2, 4)]


def z(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape)


def tree(**shapes: int) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


ROWS: list[tuple[Any, ...]] = [
    (fn.class_means, z(3), Y, 2),
    (fn.class_means, X, z(2).long(), 2),
    (fn.class_means, X, z(3), 2),
    (fn.class_means, X, torch.tensor([0, 3, 1]), 3),
    (fn.class_means, X, torch.tensor([-1, 0, 1]), 3),
    (fn.global_structural_knowledge, z(2, 3, 4), z(2, 4).bool()),
    (fn.global_structural_knowledge, z(2, 3, 4), z(2, 3)),
    (fn.local_contrastive_loss, X, Y, X.T, HERE),
    (fn.knowledge_discrepancy, z(2, 3, 4), z(2, 3).bool(), z(3, 3)),
    (fn.discrepancy_weights, z(2), z(3)),
    (fn.discrepancy_weights, z(2), torch.tensor([1.0, float("nan")])),
    (fn.period_review, z(2), z(3), z(2, 2), z(2, 2)),
    (fn.period_review, tree(a=2), tree(b=2), z(2, 2), z(2, 2)),
    (fn.period_review, z(2), z(2), z(2, 2), z(2, 3)),
    (fn.cross_correlation, X, z(3, 3)),
    (fn.cross_correlation, z(0, 3), z(0, 3)),
    (fn.instance_similarity, z(3)),
    (fn.instance_similarity, X, -1.0),
    (fn.instance_similarity_loss, z(3, 3), z(3, 3)),
    (fn.instance_similarity_loss, X, z(4, 3)),
    (fn.distillation_loss, X, z(3, 4)),
    (fn.distillation_loss, X, X, 0.0),
    (fn.non_target_distillation_loss, X, X, z(2).long()),
    (fn.digest_loss, X, X.T),
    (fn.peer_classifier_loss, X, Y[:2], HEADS, 0),
    (fn.peer_classifier_loss, X, Y, HEADS, 2),
    (fn.peer_classifier_loss, X, Y, HEADS, -1),
    (fn.peer_classifier_loss, X, Y, [HEADS[0], nn.Flatten(0)], 0),
    (fn.fuse_predictions, X, z(3, 4)),
    (fn.peer_distillation_loss, X, z(3, 3, 2), z(3), 3),
    (fn.peer_distillation_loss, X, z(3, 3, 2), z(2), 0),
    (fn.confidence_weights, torch.tensor([float("nan"), 1.0]), z(2)),
    (fn.gram_trace, z(3)),
    (fn.gram_trace, z(3, 0)),
    (fn.mixing_ratio, X, z(2, 2)),
    (fn.trace_ratio, 1.0, float("nan")),
    (fn.mix_updates, z(2), z(3), z(2), 0.5),
    (fn.mix_updates, tree(a=2), tree(a=2), tree(a=1), 0.5),
    (fn.mix_updates, tree(a=2), z(2), tree(a=2), 0.5),
    (fn.mix_updates, z(2), z(2), z(2), 1.5),
    (fn.proximal_penalty, {}, {}, 1.0),
    (fn.proximal_penalty, tree(w=2, b=1), tree(w=2), 1.0),
    (fn.ewc_penalty, tree(b=2), tree(b=2), tree(b=1), 1.0),
    (fn.vote, X),
    (fn.vote, z(0, 3, 4)),
    (fn.pseudo_label_loss, X, Y, z(3)),
    (fn.helper_consistency_loss, X, z(2, 3, 3), HERE),
    (fn.decomposition_penalty, tree(a=2), tree(a=3)),
    (fn.momentum_step, z(2), z(3)),
    (fn.adaptive_step, z(2), z(2), z(3)),
    (partial(fn.adaptive_step, rule="sgd"), z(2), z(2), z(2)),
    (partial(fn.adaptive_step, tau=0.0), z(2), z(2), z(2)),
    (partial(fn.control_variate, lr_sum=0.0), z(2), z(2), z(2), z(2)),
    (fn.meta_gradient, z(2), z(2), z(2), 0.1, 0.0),
    (fn.apfl_mix, z(2), z(2), 1.1),
    (fn.apfl_alpha_gradient, z(2), z(2), z(3)),
    (fn.pull_to_mean, z(2), z(2), -0.1),
    (fn.fomo_affinities, 1.0, z(2), z(3)),
    (fn.fomo_mix, tree(a=2), [tree(a=2)], z(2)),
    (fn.fomo_mix, tree(a=2), [tree(b=2)], z(1)),
    (fn.hyper_prediction_loss, X, z(3, 3), HERE),
    (fn.hyper_feature_loss, X, Y, z(3, 3), HERE),
    (fn.clip_norms, X, 0.0),
    (fn.noisy_class_means, X, HERE.long(), 1.0, -1.0, torch.Generator()),
    (fn.balanced_softmax_loss, X, Y, z(3)),
    (fn.restricted_scale, z(3), 1.5),
    (fn.restricted_softmax_logits, X, z(3, 4), None, z(3)),
    (fn.restricted_softmax_logits, X, z(3, 2), z(2), z(3)),
    (fn.cosine_logits, X, X.T, 1.0),
    (fn.model_contrastive_loss, X, z(3, 4), X),
    (fn.relaxed_contrastive_loss, X, z(2).long()),
    (fn.relaxed_contrastive_loss, [], Y),
    (partial(fn.relaxed_contrastive_loss, negatives=0), X, Y),
    (partial(fn.relaxed_contrastive_loss, pairs="some"), X, Y),
    (fn.prototype_loss, X, Y, z(3, 4), HERE),
    (fn.prototype_contrastive_loss, X, Y, X, HERE.int()),
    (fn.merge_prototypes, z(3, 4, 2), z(3, 3)),
    (fn.update_directions, z(4, 2), z(3, 4, 2), z(3, 4), 2.0),
    (fn.update_directions, z(4, 3), z(3, 4, 2), z(3, 4)),
    (fn.prototypical_loss, X, Y, 0),
    (fn.prototypical_loss, X, Y[:2], 1),
    (fn.dice_loss, z(1, 2, 4, 4), z(1, 1, 4, 4)),
]


@pytest.mark.parametrize("row", ROWS)
def test_wrong_arguments_are_named(row: tuple[Any, ...]) -> None:
    refused(*row)


def test_shapes_bind_symbols_across_and_within_arguments() -> None:
    square, row = torch.zeros(3, 3), torch.zeros(3)
    assert check_shapes(square=(square, "C C"), row=(row, "C"), scalar=(torch.tensor(1.0), "")) == {
        "C": 3
    }
    check_shapes(pairs=(torch.zeros(4, 3), "B B-1"))
    check_shapes(pairs=(torch.zeros(1, 0), "B B-1"))
    for arguments in (
        {"row": (row, "C"), "square": (torch.zeros(2, 3), "C C")},
        {"square": (torch.zeros(2, 3), "C C")},
        {"pairs": (torch.zeros(4, 4), "B B-1")},
        {"row": (torch.tensor(1.0), "C")},
    ):
        refused(check_shapes, **arguments)


def test_trees_are_mapped_in_float64_and_rounded_once() -> None:
    tree = {"half": torch.tensor([0.1], dtype=torch.float16), "flag": torch.tensor([True])}
    seen = []
    result = map_floating(lambda x, y: seen.append(x.dtype) or x + y, tree, other=tree)  # type: ignore[func-returns-value]
    assert seen == [torch.float64] and result["half"].dtype == torch.float16
    assert result["half"].item() == 2 * tree["half"].item() and result["flag"] is tree["flag"]


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("structural_knowledge", "outputs labels num_classes gate=True"),
        ("global_structural_knowledge", "knowledge present neighbours=1"),
        (
            "local_contrastive_loss",
            "logits labels prototypes present temperature=0.08 normaliser='distance'",
        ),
        ("period_review", "current previous knowledge_now knowledge_before beta=0.95"),
        ("cross_correlation_loss", "logits mean_logits off_diagonal=0.0051"),
        ("instance_similarity", "features temperature=0.02"),
        ("non_target_distillation_loss", "student teacher labels temperature=3.0"),
        ("distillation_loss", "student teacher temperature=1.0"),
        ("gram_trace", "features centred=False"),
        ("mixing_ratio", "local_features global_features centred=False"),
    ],
)
def test_published_defaults(name: str, parameters: str) -> None:
    signature = inspect.signature(getattr(fn, name)).parameters.values()
    positional = [p for p in signature if p.kind is p.POSITIONAL_OR_KEYWORD]
    shown = [p.name + ("" if p.default is p.empty else f"={p.default!r}") for p in positional]
    assert " ".join(shown) == parameters
