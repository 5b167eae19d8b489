"""Fed-CO2's feature skew: its appendices A, B, E, F, and zhyczy/Fed-CO2 ("code") where they are silent."""

from tests.papers.protocols import Row, Suite, method, rows

FEATURES: Row = {
    **rows("appendix B", rounds=300, participation=1.0, lr=0.01, optimiser="sgd"),
    **rows("appendix A", batch=32, data="digits5"),
    **rows("code, main.py: --wk_iters 1, --momentum 0", epochs=1, clip=None),
    **rows("section 4.1: a client per domain", partition="domains", clients=5),
    **rows("Eq. 2; code, main.py: client_weights = 1/client_num", weights="uniform"),
    **rows(
        "code, data_utils.py: transform_mnist and others", augment="none", normalisation=(0.5, 0.5)
    ),
    **rows("section 4.1: own test data", tested=("own",)),
    **rows("code, main.py: digits has no validation", protocol="last"),
    **rows("section 4.1: five runs", seeds=5),
    **rows("code, data_utils.py: percent 0.1", split="fedbn-digits", images=[743] * 5, shift={}),
}
FLIP_AND_ROTATE = rows(
    "code, data_utils.py: RandomHorizontalFlip, RandomRotation((-30, 30)), no Normalize",
    augment=("flip", "rotation degrees=30.0"),
    normalisation="none",
)
BEST = rows("code, main.py: best mean validation accuracy", protocol="best")
OFFICE = {
    **FLIP_AND_ROTATE,
    **BEST,
    **rows("appendix A", data="office-caltech10"),
    **rows(
        "code, prepare_data_office: 0.5 of DSLR's 125",
        split="fedbn-office",
        clients=4,
        images=[62] * 4,
    ),
}
DOMAINNET = {
    **FLIP_AND_ROTATE,
    **BEST,
    **rows("appendix A: the ten largest classes", data="domainnet"),
    **rows(
        "appendix A: as FedBN; code, prepare_data_domainNet: int(min_data_len * 0.05)",
        split="fedbn-domainnet",
        clients=6,
        images=[105] * 6,
    ),
}


def network(name: str, split: str = "fc", norm: bool = False) -> Row:
    """Return a network: three convolutions or AlexNet's five, then three fully connected layers."""
    sizes = {"layers": 3} if name == "digit-cnn" else {}
    return rows(
        "appendix B: as in FedBN, norms in the classifiers of FedBN and Fed-CO2 alone; code, nets/models.py: "
        "DigitModel has 3 convolutions, DigitModel_head and _moon end before the last layer",
        model={"name": name, **sizes, "split": split, "classifier_norm": norm},
    )


def methods(name: str) -> dict[str, Row]:
    """Return the rivals on a network."""
    return {
        "local": method("section 4.1", "local"),
        "fedavg": method("section 4.1", "fedavg"),
        "fedprox": method("code, main.py: --mu 1e-3", "fedprox", mu=0.001),
        "fedper": method("code, D_Head: three layers", "fedper"),
        "moon": method("code, train_moon", "moon", mu=1.0, tau=0.5) | network(name, "head"),
        "fedrod": method("section 4.1: linear; code, train_rod", "fedrod", generic_loss="ce")
        | network(name, "head"),
        "copa": method("code, train_COPA", "copa") | network(name, "head"),
        "fedbn": method("section 4.1", "fedbn") | network(name, norm=True),
        "fedco2": method("below Eq. 7: mu 1", "fedco2", mu=1.0) | network(name, norm=True),
    }


def ablation(**variants: Row) -> Suite:
    """Return a suite on DomainNet of variants of Fed-CO2."""
    named = {name.replace("_", " "): row for name, row in variants.items()}
    return Suite(FEATURES | DOMAINNET | network("alexnet", norm=True), {"variant": named})


def fedco2(**options: object) -> Row:
    """Return Fed-CO2 with options."""
    return method("tables 5, 10, 11 and 12", "fedco2", **options)


def cut(alpha: float, parts: int) -> dict[str, object]:
    """Return a cut of each domain by labels, into parts of equal size."""
    more = {"parts": parts, "keep": 1, "balanced": True}
    return {"name": "domain-dirichlet", "alpha": alpha, **more}


DIGITS = Suite(FEATURES | network("digit-cnn"), {"method": methods("digit-cnn")})
DIGITS_SKEWED: Row = {
    **rows(
        "appendix A: three parts; code, Dataset_partition_digits: of three partitions of 743 images, full parts "
        "get no further class",
        partition=cut(0.3, 3),
        shift={"ratio": 3.0},
        images=(350, 1100),  # of each client, in every seed about 743
    )
}


def skewed(alpha: float, parts: int) -> Row:
    """Return the cut of all official training images by labels."""
    return {
        **rows(
            "appendix A; code: parts that are full get no further class",
            partition=cut(alpha, parts),
        ),
        **rows(
            "code, main.py: with --imbalance_train all images are divided, none validate",
            split="official",
            protocol="last",
        ),
    }


def degrees(*alphas: float) -> dict[str, Row]:
    """Return figure 3's degrees of label skew."""
    return {f"α = {alpha}": rows("appendix E", partition=cut(alpha, 3)) for alpha in alphas}


ALEXNET = {"method": methods("alexnet")}
SUITES = {
    "table1": Suite(FEATURES | OFFICE | network("alexnet"), ALEXNET),
    "table2": Suite(FEATURES | DOMAINNET | network("alexnet"), ALEXNET),
    "table4": Suite(DIGITS.runs | DIGITS_SKEWED, DIGITS.arms),
    "table5": ablation(
        without_both=fedco2(intra="none", inter="none"),
        without_intra=fedco2(intra="none"),
        without_inter=fedco2(inter="none"),
        full=fedco2(),
    ),
    "table7": DIGITS,
    "table8": Suite(
        FEATURES
        | DOMAINNET
        | network("alexnet")
        | skewed(2.0, 5)
        | rows("a fifth", images=(300, 3000)),
        ALEXNET,
    ),
    "table9": Suite(
        FEATURES | OFFICE | network("alexnet") | skewed(1.0, 2) | rows("a half", images=(40, 600)),
        ALEXNET,
    ),
    "table10": ablation(
        online_model_alone=method("table 10: prints FedBN of table 2", "fedbn"),
        offline_model_alone=method("table 10: prints SingleSet of table 2", "local")
        | network("alexnet"),
        without_both_transfers=fedco2(intra="none", inter="none"),
        full=fedco2(),
    ),
    "table11": ablation(
        none=fedco2(intra="none", inter="none"),
        to_the_online_model=fedco2(intra="to_online", inter="none"),
        to_the_offline_model=fedco2(intra="to_offline", inter="none"),
        both=fedco2(intra="both", inter="none"),
    ),
    "table12": ablation(
        none=fedco2(intra="none", inter="none"),
        online=fedco2(intra="none", inter="online"),
        offline=fedco2(intra="none", inter="offline"),
        both=fedco2(intra="none", inter="both"),
    ),
    "fig2a": Suite(FEATURES | OFFICE | network("alexnet"), ALEXNET),
    "fig2b": DIGITS,
    "fig3": Suite(
        DIGITS.runs | DIGITS_SKEWED | rows("as in table 4, wider where α is", images=(300, 1200)),
        {"method": methods("digit-cnn"), "skew": degrees(0.3, 0.7, 1.0, 1.5, 2.0)},
    ),
    "fig6": Suite(
        DIGITS.runs,
        {
            "method": methods("digit-cnn"),
            "data": {
                f"γ = {share}": rows(
                    "appendix F.4: shares; code, data_utils.py: int(self.images.shape[0] * percent*10)",
                    shift={} if share == 1 else {"ratio": share},
                    images=[int((743 if share < 1 else 743.8) * share)] * 5,
                )
                for share in (0.2, 0.4, 0.6, 1.0, 2.0)
            },
        },
    ),
    "fig7": Suite(
        FEATURES,
        {
            "personal": {
                "batch norms": fedco2(personal="batch_norm"),
                "classifier": fedco2(personal="classifier"),
            },
            "data": {
                "Digits": network("digit-cnn", norm=True),
                "Office-Caltech10": OFFICE | network("alexnet", norm=True),
                "DomainNet": DOMAINNET | network("alexnet", norm=True),
            },
        },
    ),
}

# --- on data that can be had offline -----------------------------------------------------------------

SUITES["local"] = Suite(
    {
        **FEATURES,
        **rows(
            "ours",
            rounds=40,
            data={"name": "digits5-local", "samples": 743},
            normalisation="data",
            model={"name": "cnn", "norm": "batch"},
            weights="method",  # clients have equally many samples
            split="official",
            protocol="last every 4",
            seeds=10,
        ),
    },
    {
        "method": {
            "local": method("section 4.1", "local"),
            "fedavg": method("section 4.1", "fedavg"),
            "fedbn": method("section 4.1", "fedbn") | rows("Eq. 2", weights="uniform"),
            "fedco2": fedco2(),
            "fedco2, intra alone": fedco2(inter="none"),
            "fedco2, inter alone": fedco2(intra="none"),
            "fedco2, neither": fedco2(intra="none", inter="none"),
        }
    },
)
SUITES["local-300"] = Suite(
    SUITES["local"].runs
    | rows("appendix A: 300 rounds, five runs", rounds=300, protocol="last every 20", seeds=5),
    SUITES["local"].arms,
)
SUITES["local-office"] = Suite(
    SUITES["table1"].runs
    | rows("ours, for a small machine", data={"name": "office-caltech10", "size": 64}, seeds=3),
    SUITES["table1"].arms,
)
