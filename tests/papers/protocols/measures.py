"""What a table's printed numbers are measured with, by suite: printed metric, measure here, and the source."""

from collections.abc import Mapping

OWN, OTHERS = "own/accuracy", "others/accuracy"
TOP_OWN, TOP_OTHERS = f"own/top5 | {OWN}", f"others/top5 | {OTHERS}"  # top5 where a suite has it
GLOBAL = "global/common/accuracy"


def _rounds_to(*targets: int) -> dict[str, str]:
    return {"top1": GLOBAL} | {f"rounds_to_{target}": f"{GLOBAL} >= {target}" for target in targets}


FCCLPLUS = "section 4.1: Top-1 and Top-5 accuracy are adopted for the first two and the latter two"
DIGITS = f"{FCCLPLUS} // section 4.1: Digits, Office Caltech"
TOP1 = {"top1": OWN}
MEDICAL = TOP1 | {name: f"own/{name}" for name in ("auc", "sensitivity", "specificity", "f1")}
BOTH = {"inter_acc": TOP_OTHERS, "intra_acc": TOP_OWN}
ROWS: list[tuple[str, str, str, Mapping[str, str]]] = [
    (
        "fedco2",
        "table1 table2 table4 table5 table7 table8 table9 table10 table11 table12 "
        "fig2a fig2b fig3 fig6 fig7 local-office",
        "table 1: Amazon Caltech DSLr WebCam Avg",
        TOP1,
    ),
    (
        "fedco2",
        "table3 table13 fig4 fig5",
        "appendix B: as FedTP // code label-skew/utils.py:632: test_total_correct",
        {"top1": "pooled/accuracy"},
    ),
    ("fcclplus", "table8 table13 table14 table16", FCCLPLUS, {"inter_acc": TOP_OTHERS}),
    ("fcclplus", "table9", FCCLPLUS, {"intra_acc": TOP_OWN}),
    ("fcclplus", "table10 table11 table15 fig10", FCCLPLUS, BOTH),
    ("fcclplus", "table12 table17 table18 fig9", DIGITS, {"inter_acc": OTHERS, "intra_acc": OWN}),
    ("fcclplus", "table19 fig7 fig8", DIGITS, {"inter_acc": OTHERS}),
    ("fcclplus", "fig6", DIGITS, {"intra_acc": OWN}),
    (
        "fedskc",
        "table1 table2 table5 fig3 fig4",
        "table I: The Top-1 test accuracy",
        {"top1": GLOBAL},
    ),
    (
        "fedskc",
        "table3",
        r"table III: _{20\%} 20 R40% ... _{40\%} 40 R75% ... R50%",
        _rounds_to(20, 40, 50, 75),
    ),
    (
        "fedskc",
        "table4",
        r"table IV: _{70\%} 70 R80% ... _{15\%} 15 R30%",
        _rounds_to(15, 30, 70, 80),
    ),
    ("lgmix", "table1 table2 table6 fig2 fig4", "section 5.1: we report the accuracy", TOP1),
    (
        "lgmix",
        "table3",
        "section 5.1: the Dice coefficient (Dice) and Hausdorff Distance (HD)",
        {"dice": "own/dice", "hd": "own/hausdorff"},
    ),
    (
        "lgmix",
        "table4",
        "section 5.1: accuracy for all classification tasks, and the Dice",
        TOP1 | {"dice": "own/dice"},
    ),
    ("lgmix", "table7 table10", "table 7: Accuracy AUC Sensitivity Specificity F1-score", MEDICAL),
    ("lgmix", "table8", "table 8: Wall-clock time (hours)", {"hours": "hours"}),
    ("lgmix", "table9", "table 9: GPU memory cost (MB)", {"gpu_mb": "memory"}),
    ("lgmix", "fig3", "section 5.1: the Dice coefficient (Dice)", {"dice": "own/dice"}),
]
WRITTEN = {
    f"{paper}/{table}": (measures, source)
    for paper, tables, source, measures in ROWS
    for table in tables.split()
}
