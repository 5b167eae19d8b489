"""What a table's printed numbers are measured with, by suite: printed metric, measure here, and the source."""

from collections.abc import Mapping

OWN, OTHERS = "own/accuracy", "others/accuracy"
TOP_OWN, TOP_OTHERS = f"own/top5 | {OWN}", f"others/top5 | {OTHERS}"  # top5 where a suite has it
GLOBAL = "global/common/accuracy"


def _rounds_to(*targets: int) -> dict[str, str]:
    return {"top1": GLOBAL} | {f"rounds_to_{target}": f"{GLOBAL} >= {target}" for target in targets}


FCCLPLUS = "section 4.1: inter and intra, Top-1 for Digits and Office-Caltech, Top-5 for Office31 and Office-Home"
DIGITS = FCCLPLUS + "; these show Digits"
TOP1 = {"top1": OWN}
MEDICAL = TOP1 | {name: f"own/{name}" for name in ("auc", "sensitivity", "specificity", "f1")}
BOTH = {"inter_acc": TOP_OTHERS, "intra_acc": TOP_OWN}
ROWS: list[tuple[str, str, str, Mapping[str, str]]] = [
    (
        "fedco2",
        "table1 table2 table4 table5 table7 table8 table9 table10 table11 table12 "
        "fig2a fig2b fig3 fig6 fig7 local-office",
        "tables 1, 2, 4: a column per domain and their mean",
        TOP1,
    ),
    (
        "fedco2",
        "table3 table13 fig4 fig5",
        "appendix B: as FedTP; code, utils.py: right ones over all clients' samples",
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
        "section IV: Top-1 of the global model on the whole test set",
        {"top1": GLOBAL},
    ),
    ("fedskc", "table3", "table III: rounds to an accuracy", _rounds_to(20, 40, 50, 75)),
    ("fedskc", "table4", "table IV: rounds to an accuracy", _rounds_to(15, 30, 70, 80)),
    (
        "lgmix",
        "table1 table2 table6 fig2 fig4",
        "section 5.1: test accuracy per client and its mean",
        TOP1,
    ),
    (
        "lgmix",
        "table3",
        "table 3: Dice and Hausdorff distance",
        {"dice": "own/dice", "hd": "own/hausdorff"},
    ),
    ("lgmix", "table4", "table 4", TOP1 | {"dice": "own/dice"}),
    ("lgmix", "table7 table10", "tables 7 and 10: five columns", MEDICAL),
    ("lgmix", "table8", "table 8: hours of training", {"hours": "hours"}),
    ("lgmix", "table9", "table 9: peak memory", {"gpu_mb": "memory"}),
    ("lgmix", "fig3", "section 5.1: Dice for the retinal task", {"dice": "own/dice"}),
]
WRITTEN = {
    f"{paper}/{table}": (measures, source)
    for paper, tables, source, measures in ROWS
    for table in tables.split()
}
