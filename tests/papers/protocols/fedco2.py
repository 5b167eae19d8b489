"""Fed-CO2's feature skew: its section 5.1, appendices A, B, E, F, and zhyczy/Fed-CO2 ("code") where they are silent."""

from tests.papers.protocols import Row, Suite, method, rows

PART = (
    "FedBN utils/data_preprocess.py:266: according to the smallest datasize (i.e. 743) // "
    "FedBN utils/data_preprocess.py:269: part_len = 743.8"
)
FEATURES: Row = {
    **rows(
        "appendix B: all clients participated ... trained with 300 communication rounds ... learning rate 0.01",
        rounds=300,
        participation=1.0,
        lr=0.01,
    ),
    **rows("code main.py:37: '--momentum', type=float, default=0", optimiser="sgd"),
    **rows("appendix A: batch size to 32", batch=32),
    **rows("section 5.1: Digits is composed of 5 different digit datasets", data="digits5"),
    **rows("code main.py:40: '--wk_iters', type = int, default=1", epochs=1),
    **rows("ours: no clipping is stated", clip=None),
    **rows(
        "section 5.1: each domain serves as a client ... Digits is composed of 5",
        partition="domains",
        clients=5,
    ),
    **rows("eq. 2: \\frac{1}{N} // code main.py:162: [1/client_num", weights="uniform"),
    **rows(
        "code utils/data_utils.py:403: transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))",
        augment="none",
        normalisation=(0.5, 0.5),
    ),
    **rows("appendix B: on the private test data of each client", tested=("own",)),
    **rows("code main.py:280: if args.dataset != 'digits'", protocol="last"),
    **rows("appendix B: we run 5 times", seeds=5),
    **rows(
        f"code main.py:35: percentage of dataset // {PART} // 743 = int(743.8)",
        split="fedbn-digits",
        images=[743] * 5,
        shift={},
    ),
}
FLIP_AND_ROTATE = rows(
    "code utils/data_utils.py:17: RandomHorizontalFlip() ... RandomRotation((-30,30)) ... ToTensor(), ]",
    augment=("flip", "rotation degrees=30.0"),
    normalisation="none",
)
BEST = rows("code main.py:303: np.mean(val_acc_list) > np.mean(best_acc)", protocol="best")
OFFICE = {
    **FLIP_AND_ROTATE,
    **BEST,
    **rows("section 5.1: Office-Caltech10 [41]", data="office-caltech10"),
    **rows(
        "code utils/data_utils.py:243: int(min_data_len * 0.5) // "
        "section 5.1: four different domains // known: FedBN's list of DSLR has 125 for training // "
        "62 = int(125 * 0.5)",
        split="fedbn-office",
        clients=4,
        images=[62] * 4,
    ),
}
DOMAINNET = {
    **FLIP_AND_ROTATE,
    **BEST,
    **rows("appendix A: selecting only the top 10 classes ... from DomainNet", data="domainnet"),
    **rows(
        "code utils/data_utils.py:50: int(min_data_len * 0.05) // section 5.1: six distinct domains // "
        "known: FedBN's shortest list has 2103 for training // 105 = int(2103 * 0.05)",
        split="fedbn-domainnet",
        clients=6,
        images=[105] * 6,
    ),
}


def network(name: str, split: str = "fc", norm: bool = False) -> Row:
    """Return a network: three convolutions or AlexNet's five, then three fully connected layers."""
    sizes = {"layers": 3} if name == "digit-cnn" else {}
    head = " // code nets/models.py:224: self.head = nn.Linear(512" if split == "head" else ""
    return rows(
        "appendix B: we omitted the BNs in our classifiers for methods other than FedBN [10] and Fed-CO<sub>2</sub> // "
        f"appendix B: one Alexnet // code nets/models.py:60: self.conv3{head}",
        model={"name": name, **sizes, "split": split, "classifier_norm": norm},
    )


def methods(name: str) -> dict[str, Row]:
    """Return the rivals on a network."""
    return {
        "local": method("section 5.1: **SingleSet**", "local"),
        "fedavg": method("section 5.1: **FedAvg**", "fedavg"),
        "fedprox": method("code main.py:42: '--mu', type=float, default=1e-3", "fedprox", mu=0.001),
        "fedper": method("code nets/models.py:541: D_Head", "fedper"),
        "moon": method("code utils/methods.py:253: temperature=0.5, mu=1", "moon", mu=1.0, tau=0.5)
        | network(name, "head"),
        "fedrod": method(
            "section 5.1: the linear version // code utils/methods.py:132: loss_g",
            "fedrod",
            generic_loss="ce",
        )
        | network(name, "head"),
        "copa": method("code utils/methods.py:217: def train_COPA", "copa") | network(name, "head"),
        "fedbn": method("section 5.1: **FedBN**", "fedbn") | network(name, norm=True),
        "fedco2": method("below eq. 7: set as 1 by default", "fedco2", mu=1.0)
        | network(name, norm=True),
    }


def ablation(**variants: Row) -> Suite:
    """Return a suite on DomainNet of variants of Fed-CO2."""
    named = {name.replace("_", " "): row for name, row in variants.items()}
    return Suite(FEATURES | DOMAINNET | network("alexnet", norm=True), {"variant": named})


def fedco2(source: str, **options: object) -> Row:
    """Return Fed-CO2 with options."""
    return method(source, "fedco2", **options)


PAIR = fedco2("below eq. 7: set as 1 by default")


def cut(alpha: float, parts: int) -> dict[str, object]:
    """Return a cut of each domain by labels, into parts of equal size."""
    more = {"parts": parts, "keep": 1, "balanced": True}
    return {"name": "domain-dirichlet", "alpha": alpha, **more}


DIGITS = Suite(FEATURES | network("digit-cnn"), {"method": methods("digit-cnn")})
PARTS = (
    "code utils/data_utils.py:787: (len(idx_j) < N_train / n_parties) // known: balanced, 1 of them is kept // "
    "appendix A: three parts ... two parts ... five parts"
)
DIGITS_SKEWED: Row = {
    **rows(f"section 5.1: default parameter $\\alpha = 0.3$ // {PARTS}", partition=cut(0.3, 3)),
    **rows(
        "appendix A: we divided each sub-dataset in Digits into three parts", shift={"ratio": 3.0}
    ),
    **rows("ours: the seed draws each client's, about 743", images=(350, 1100)),
}


def skewed(alpha: float, parts: int) -> Row:
    """Return the cut of all official training images by labels."""
    return {
        **rows(
            f"appendix E: $\\alpha = 2.0$ to DomainNet ... $\\alpha = 1.0$ to Office-Caltech10 // {PARTS}",
            partition=cut(alpha, parts),
        ),
        **rows(
            "code main.py:280: and args.imbalance_train == False", split="official", protocol="last"
        ),
    }


def degrees(*alphas: float) -> dict[str, Row]:
    """Return figure 3's degrees of label skew."""
    source = f"appendix E: \\{{0.3, 0.7, 1.0, 1.5, 2.0\\}} // {PARTS}"
    return {f"α = {alpha}": rows(source, partition=cut(alpha, 3)) for alpha in alphas}


ALEXNET = {"method": methods("alexnet")}
SUITES = {
    "table1": Suite(FEATURES | OFFICE | network("alexnet"), ALEXNET),
    "table2": Suite(FEATURES | DOMAINNET | network("alexnet"), ALEXNET),
    "table4": Suite(DIGITS.runs | DIGITS_SKEWED, DIGITS.arms),
    "table5": ablation(
        without_both=fedco2("table 5: w/o Intra and Inter Transfer", intra="none", inter="none"),
        without_intra=fedco2("table 5: w/o Intra Transfer", intra="none"),
        without_inter=fedco2("table 5: w/o Inter Transfer", inter="none"),
        full=PAIR,
    ),
    "table7": DIGITS,
    "table8": Suite(
        FEATURES
        | DOMAINNET
        | network("alexnet")
        | skewed(2.0, 5)
        | rows("ours: the seed draws about a fifth", images=(300, 3000)),
        ALEXNET,
    ),
    "table9": Suite(
        FEATURES
        | OFFICE
        | network("alexnet")
        | skewed(1.0, 2)
        | rows("ours: the seed draws about a half", images=(40, 600)),
        ALEXNET,
    ),
    "table10": ablation(
        online_model_alone=method("table 10: Online Model 51.2", "fedbn"),
        offline_model_alone=method("table 10: Offline Model 41.0", "local") | network("alexnet"),
        without_both_transfers=fedco2(
            "table 10: (no intra and inter knowledge transfer)", intra="none", inter="none"
        ),
        full=PAIR,
    ),
    "table11": ablation(
        none=fedco2("table 11: No intra transfer", intra="none", inter="none"),
        to_the_online_model=fedco2(
            "table 11: Intra transfer to online", intra="to_online", inter="none"
        ),
        to_the_offline_model=fedco2(
            "table 11: Intra transfer to offline", intra="to_offline", inter="none"
        ),
        both=fedco2("table 11: Full intra transfer", intra="both", inter="none"),
    ),
    "table12": ablation(
        none=fedco2("table 12: No inter transfer", intra="none", inter="none"),
        online=fedco2("table 12: Online model with inter transfer", intra="none", inter="online"),
        offline=fedco2(
            "table 12: Offline model with inter transfer", intra="none", inter="offline"
        ),
        both=fedco2("table 12: Full inter transfer", intra="none", inter="both"),
    ),
    "fig2a": Suite(FEATURES | OFFICE | network("alexnet"), ALEXNET),
    "fig2b": DIGITS,
    "fig3": Suite(
        DIGITS.runs
        | DIGITS_SKEWED
        | rows("ours: as in table 4, wider where α is", images=(300, 1200)),
        {"method": methods("digit-cnn"), "skew": degrees(0.3, 0.7, 1.0, 1.5, 2.0)},
    ),
    "fig6": Suite(
        DIGITS.runs,
        {
            "method": methods("digit-cnn"),
            "data": {
                f"γ = {share}": rows(
                    "appendix F.4: 0.2, 0.4, 0.6, 1.0, 2.0 // "
                    "code utils/data_utils.py:597: int(self.images.shape[0] * percent*10) // "
                    f"{PART} // {images} = int({743 if share < 1 else 743.8} * {share})",
                    shift={} if share == 1 else {"ratio": share},
                    images=[images] * 5,
                )
                for share, images in ((0.2, 148), (0.4, 297), (0.6, 445), (1.0, 743), (2.0, 1487))
            },
        },
    ),
    "fig7": Suite(
        FEATURES,
        {
            "personal": {
                "batch norms": fedco2(
                    "appendix E.5: Batch Normalization layers", personal="batch_norm"
                ),
                "classifier": fedco2("appendix E.5: the Classifier Head", personal="classifier"),
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
            "ours: for a small machine",
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
            "local": method("section 5.1: **SingleSet**", "local"),
            "fedavg": method("section 5.1: **FedAvg**", "fedavg"),
            "fedbn": method("section 5.1: **FedBN**", "fedbn")
            | rows("eq. 2: \\frac{1}{N}", weights="uniform"),
            "fedco2": PAIR,
            "fedco2, intra alone": fedco2("table 5: w/o Inter Transfer", inter="none"),
            "fedco2, inter alone": fedco2("table 5: w/o Intra Transfer", intra="none"),
            "fedco2, neither": fedco2(
                "table 5: w/o Intra and Inter Transfer", intra="none", inter="none"
            ),
        }
    },
)
SUITES["local-300"] = Suite(
    SUITES["local"].runs
    | rows("appendix B: 300 communication rounds ... we run 5 times", rounds=300, seeds=5)
    | rows("ours: for a small machine", protocol="last every 20"),
    SUITES["local"].arms,
)
SUITES["local-office"] = Suite(
    SUITES["table1"].runs
    | rows("ours: for a small machine", data={"name": "office-caltech10", "size": 64}, seeds=3),
    SUITES["table1"].arms,
)
