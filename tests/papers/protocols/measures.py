"""What a table's printed numbers are measured with, by suite: printed metric, measure here, and the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

OWN, OTHERS = "own/accuracy", "others/accuracy"
TOP_OWN, TOP_OTHERS = f"own/top5 | {OWN}", f"others/top5 | {OTHERS}"  # top5 where a suite has it
GLOBAL = "global/common/accuracy"
_Written = dict[str, tuple[Mapping[str, str], str]]


def _each(
    paper: str, tables: Iterable[str], source: str, measures: Mapping[str, str] | None = None
) -> _Written:
    return {f"{paper}/{name}": (measures or {"top1": OWN}, source) for name in tables}


def _rounds_to(*targets: int) -> dict[str, str]:
    return {"top1": GLOBAL} | {f"rounds_to_{target}": f"{GLOBAL} >= {target}" for target in targets}


FCCLPLUS = "section 4.1: inter and intra, Top-1 for Digits and Office-Caltech, Top-5 for Office31 and Office-Home"
MEDICAL = "tables 7 and 10: five columns"
WRITTEN: _Written = {
    **_each(
        "fedco2",
        [f"table{number}" for number in (1, 2, 4, 5, 7, 8, 9, 10, 11, 12)]
        + ["fig3", "fig6", "fig7", "local-office"],
        "tables 1, 2, 4: a column per domain and their mean",
    ),
    **_each(
        "fedco2",
        ["table3", "table13", "fig4", "fig5"],
        "appendix B: as FedTP; code, utils.py: right ones over all clients' samples",
        {"top1": "pooled/accuracy"},
    ),
    **_each(
        "fcclplus", ["table8", "table13", "table14", "table16"], FCCLPLUS, {"inter_acc": TOP_OTHERS}
    ),
    **_each("fcclplus", ["table9"], FCCLPLUS, {"intra_acc": TOP_OWN}),
    **_each(
        "fcclplus",
        ["table10", "table11", "table15", "fig10"],
        FCCLPLUS,
        {"inter_acc": TOP_OTHERS, "intra_acc": TOP_OWN},
    ),
    **_each(
        "fcclplus",
        ["table12", "table17", "table18", "fig9"],
        FCCLPLUS + "; these show Digits",
        {"inter_acc": OTHERS, "intra_acc": OWN},
    ),
    **_each(
        "fcclplus",
        ["table19", "fig7", "fig8"],
        FCCLPLUS + "; these show Digits",
        {"inter_acc": OTHERS},
    ),
    **_each("fcclplus", ["fig6"], FCCLPLUS + "; it shows Digits", {"intra_acc": OWN}),
    **_each(
        "fedskc",
        ["table1", "table2", "table5", "fig3", "fig4"],
        "section IV: Top-1 of the global model on the whole test set",
        {"top1": GLOBAL},
    ),
    **_each("fedskc", ["table3"], "table III: rounds to an accuracy", _rounds_to(20, 40, 50, 75)),
    **_each("fedskc", ["table4"], "table IV: rounds to an accuracy", _rounds_to(15, 30, 70, 80)),
    **_each(
        "lgmix",
        ["table1", "table2", "table6", "fig2", "fig4"],
        "section 5.1: test accuracy per client and its mean",
    ),
    **_each(
        "lgmix",
        ["table3"],
        "table 3: Dice and Hausdorff distance",
        {"dice": "own/dice", "hd": "own/hausdorff"},
    ),
    **_each("lgmix", ["table4"], "table 4", {"top1": OWN, "dice": "own/dice"}),
    **_each(
        "lgmix",
        ["table7", "table10"],
        MEDICAL,
        {"top1": OWN}
        | {name: f"own/{name}" for name in ("auc", "sensitivity", "specificity", "f1")},
    ),
    **_each("lgmix", ["table8"], "table 8: hours of training", {"hours": "hours"}),
    **_each("lgmix", ["table9"], "table 9: peak memory", {"gpu_mb": "memory"}),
    **_each("lgmix", ["fig3"], "section 5.1: Dice for the retinal task", {"dice": "own/dice"}),
}
