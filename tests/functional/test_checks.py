import inspect

import pytest
import torch

import flray.functional as functional
from flray.functional.checks import check_shapes, map_floating


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
    signature = inspect.signature(getattr(functional, name)).parameters.values()
    positional = [p for p in signature if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert (
        " ".join(p.name + ("" if p.default is p.empty else f"={p.default!r}") for p in positional)
        == parameters
    )
