"""Arguments of another shape, type or range are refused by name, and the published defaults."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import flray.functional as fn
from flray.functional.checks import check_shapes, map_floating

X, Y = torch.zeros(3, 2), torch.zeros(3).long()
HERE = torch.ones(3).bool()
HEADS = [nn.Linear(2, 4), nn.Linear(2, 4)]


def z(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape)


def tree(**shapes: int) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


Row = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]
ROWS: list[Row] = [
    (fn.class_means, (z(3), Y, 2), {}, r"outputs: shape \[3\], expected \[n, D\]"),
    (fn.class_means, (X, z(2).long(), 2), {}, r"labels: shape \[2\], expected \[n\] with n=3"),
    (fn.class_means, (X, z(3), 2), {}, "labels: dtype"),
    (fn.class_means, (X, torch.tensor([0, 3, 1]), 3), {}, "labels: values"),
    (fn.class_means, (X, torch.tensor([-1, 0, 1]), 3), {}, "labels: values"),
    (fn.global_structural_knowledge, (z(2, 3, 4), z(2, 4).bool()), {}, "present: shape"),
    (fn.global_structural_knowledge, (z(2, 3, 4), z(2, 3)), {}, "present: dtype"),
    (fn.local_contrastive_loss, (X, Y, X.T, HERE), {}, r"prototypes: .*expected \[C, D\]"),
    (fn.knowledge_discrepancy, (z(2, 3, 4), z(2, 3).bool(), z(3, 3)), {}, "global_: shape"),
    (fn.discrepancy_weights, (z(2), z(3)), {}, "discrepancy: shape"),
    (fn.discrepancy_weights, (z(2), torch.tensor([1.0, float("nan")])), {}, "discrepancy"),
    (fn.period_review, (z(2), z(3), z(2, 2), z(2, 2)), {}, "previous: shape"),
    (fn.period_review, (tree(a=2), tree(b=2), z(2, 2), z(2, 2)), {}, "previous: names"),
    (fn.period_review, (z(2), z(2), z(2, 2), z(2, 3)), {}, "knowledge_before: shape"),
    (fn.cross_correlation, (X, z(3, 3)), {}, "mean_logits: shape"),
    (fn.cross_correlation, (z(0, 3), z(0, 3)), {}, "at least one row"),
    (fn.instance_similarity, (z(3),), {}, "features: shape"),
    (fn.instance_similarity, (X, -1.0), {}, "temperature"),
    (fn.instance_similarity_loss, (z(3, 3), z(3, 3)), {}, r"^similarity: shape \[3, 3\], expected"),
    (fn.instance_similarity_loss, (X, z(4, 3)), {}, "mean_similarity: shape"),
    (fn.distillation_loss, (X, z(3, 4)), {}, "teacher: shape"),
    (fn.distillation_loss, (X, X, 0.0), {}, r"temperature: 0\.0"),
    (fn.non_target_distillation_loss, (X, X, z(2).long()), {}, "labels: shape"),
    (fn.digest_loss, (X, X.T), {}, "consensus: shape"),
    (fn.peer_classifier_loss, (X, Y[:2], HEADS, 0), {}, "labels: shape"),
    (fn.peer_classifier_loss, (X, Y, HEADS, 2), {}, "own: 2, expected 0 to 1"),
    (fn.peer_classifier_loss, (X, Y, HEADS, -1), {}, "own: -1"),
    (fn.peer_classifier_loss, (X, Y, [HEADS[0], nn.Flatten(0)], 0), {}, r"heads\[1\]\(features\)"),
    (fn.fuse_predictions, (X, z(3, 4)), {}, "offline: shape"),
    (fn.peer_distillation_loss, (X, z(3, 3, 2), z(3), 3), {}, "own: 3"),
    (fn.peer_distillation_loss, (X, z(3, 3, 2), z(2), 0), {}, "weights: shape"),
    (fn.confidence_weights, (torch.tensor([float("nan"), 1.0]), z(2)), {}, "losses: "),
    (fn.gram_trace, (z(3),), {}, "features: shape"),
    (fn.gram_trace, (z(3, 0),), {}, "at least one feature"),
    (fn.mixing_ratio, (X, z(2, 2)), {}, "global_features: shape"),
    (fn.trace_ratio, (1.0, float("nan")), {}, "global_trace: nan"),
    (fn.mix_updates, (z(2), z(3), z(2), 0.5), {}, "local_update: shape"),
    (fn.mix_updates, (tree(a=2), tree(a=2), tree(a=1), 0.5), {}, r"global_update\['a'\]: shape"),
    (fn.mix_updates, (tree(a=2), z(2), tree(a=2), 0.5), {}, "local_update: Tensor"),
    (fn.mix_updates, (z(2), z(2), z(2), 1.5), {}, r"ratio: 1\.5"),
    (fn.proximal_penalty, ({}, {}, 1.0), {}, "parameters: none"),
    (fn.proximal_penalty, (tree(w=2, b=1), tree(w=2), 1.0), {}, r"reference: .*missing \['b'\]"),
    (fn.ewc_penalty, (tree(b=2), tree(b=2), tree(b=1), 1.0), {}, r"fisher\['b'\]: shape"),
    (fn.vote, (X,), {}, "logits: shape"),
    (fn.vote, (z(0, 3, 4),), {}, "at least one model"),
    (fn.pseudo_label_loss, (X, Y, z(3)), {}, "keep: dtype"),
    (fn.helper_consistency_loss, (X, z(2, 3, 3), HERE), {}, "helpers: shape"),
    (fn.decomposition_penalty, (tree(a=2), tree(a=3)), {}, r"sigma\['a'\]: shape"),
    (fn.momentum_step, (z(2), z(3)), {}, "momentum: shape"),
    (fn.adaptive_step, (z(2), z(2), z(3)), {}, "variance: shape"),
    (fn.adaptive_step, (z(2), z(2), z(2)), {"rule": "sgd"}, "rule: 'sgd'"),
    (fn.adaptive_step, (z(2), z(2), z(2)), {"tau": 0.0}, r"tau: 0\.0"),
    (fn.control_variate, (z(2), z(2), z(2), z(2)), {"lr_sum": 0.0}, r"lr_sum: 0\.0"),
    (fn.meta_gradient, (z(2), z(2), z(2), 0.1, 0.0), {}, r"delta: 0\.0"),
    (fn.apfl_mix, (z(2), z(2), 1.1), {}, r"alpha: 1\.1"),
    (fn.apfl_alpha_gradient, (z(2), z(2), z(3)), {}, "gradient: shape"),
    (fn.pull_to_mean, (z(2), z(2), -0.1), {}, r"strength: -0\.1"),
    (fn.fomo_affinities, (1.0, z(2), z(3)), {}, "distances: shape"),
    (fn.fomo_mix, (tree(a=2), [tree(a=2)], z(2)), {}, "weights: shape"),
    (fn.fomo_mix, (tree(a=2), [tree(b=2)], z(1)), {}, r"candidates\[0\]: names"),
    (fn.hyper_prediction_loss, (X, z(3, 3), HERE), {}, "logits: shape"),
    (fn.hyper_feature_loss, (X, Y, z(3, 3), HERE), {}, "class_feat"),
    (fn.clip_norms, (X, 0.0), {}, r"clip: 0\.0"),
    (fn.noisy_class_means, (X, HERE.long(), 1.0, -1.0, torch.Generator()), {}, r"noise: -1\.0"),
    (fn.balanced_softmax_loss, (X, Y, z(3)), {}, "class_counts: shape"),
    (fn.restricted_scale, (z(3), 1.5), {}, r"alpha: 1\.5"),
    (fn.restricted_softmax_logits, (X, z(3, 4), None, z(3)), {}, "weight: shape"),
    (fn.restricted_softmax_logits, (X, z(3, 2), z(2), z(3)), {}, "bias: "),
    (fn.cosine_logits, (X, X.T, 1.0), {}, "weight: shape"),
    (fn.model_contrastive_loss, (X, z(3, 4), X), {}, "global_features: shape"),
    (fn.relaxed_contrastive_loss, (X, z(2).long()), {}, "labels: shape"),
    (fn.relaxed_contrastive_loss, ([], Y), {}, "features: no layer"),
    (fn.relaxed_contrastive_loss, (X, Y), {"negatives": 0}, "negatives: 0"),
    (fn.relaxed_contrastive_loss, (X, Y), {"pairs": "some"}, "pairs: 'some'.* 'top', 'all'"),
    (fn.prototype_loss, (X, Y, z(3, 4), HERE), {}, "prototypes: shape"),
    (fn.prototype_contrastive_loss, (X, Y, X, HERE.int()), {}, "present: dtype"),
    (fn.merge_prototypes, (z(3, 4, 2), z(3, 3)), {}, "counts: shape"),
    (fn.update_directions, (z(4, 2), z(3, 4, 2), z(3, 4), 2.0), {}, r"momentum: 2\.0"),
    (fn.update_directions, (z(4, 3), z(3, 4, 2), z(3, 4)), {}, "weight: shape"),
    (fn.prototypical_loss, (X, Y, 0), {}, "shot: 0"),
    (fn.prototypical_loss, (X, Y[:2], 1), {}, "labels: shape"),
    (fn.dice_loss, (z(1, 2, 4, 4), z(1, 1, 4, 4)), {}, r"logits: .*\[1, 2, 4, 4\], masks: .*1, 1"),
]


@pytest.mark.parametrize(
    ("function", "arguments", "named", "message"),
    ROWS,
    ids=[f"{function.__name__} {message}" for function, *_, message in ROWS],
)
def test_wrong_arguments_are_named(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        function(*arguments, **named)


def test_shapes_bind_symbols_across_and_within_arguments() -> None:
    square, row = torch.zeros(3, 3), torch.zeros(3)
    assert check_shapes(square=(square, "C C"), row=(row, "C"), scalar=(torch.tensor(1.0), "")) == {
        "C": 3
    }
    check_shapes(pairs=(torch.zeros(4, 3), "B B-1"))
    check_shapes(pairs=(torch.zeros(1, 0), "B B-1"))
    for arguments, message in (
        (
            {"row": (row, "C"), "square": (torch.zeros(2, 3), "C C")},
            r"square: .*2, 3\], expected \[C, C\] with C=3",
        ),
        ({"square": (torch.zeros(2, 3), "C C")}, r"square: shape \[2, 3\], expected \[C, C\]"),
        ({"pairs": (torch.zeros(4, 4), "B B-1")}, r"pairs: shape \[4, 4\], expected \[B, B-1\]"),
        ({"row": (torch.tensor(1.0), "C")}, r"row: shape \[\], expected \[C\]"),
    ):
        with pytest.raises(ValueError, match=message):
            check_shapes(**arguments)


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
