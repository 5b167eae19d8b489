"""FedSKC's experiments: its section IV, hwang52/FedSKC ("code") where it is silent, its rivals' own papers and code."""

from tests.papers.protocols import Row, Suite, divided, method, rows

CLIENTS = "section IV-A: = 20 clients in total"
DIRICHLET = f"{CLIENTS} // section IV-A: = 0.2 follows Dirichlet distribution"
RUNS: Row = {
    **rows(
        "section IV-A: = 200 global rounds ... = 0.4, non-iid ... local epoch ... = 10 and each step uses a "
        "mini-batch with size 64646464",
        rounds=200,
        participation=0.4,
        epochs=10,
        batch=64,
    ),
    **rows("section IV-A: SGD with the initial learning rate of 0.010.010.010.01", lr=0.01),
    **rows("section IV-A: use SGD", optimiser="sgd"),
    **rows("ours: no clipping is stated", clip=None),
    **divided(DIRICHLET, "dirichlet", 20, alpha=0.2),
    **rows(
        "section IV-A: ResNet-8 [41] for both CIFAR-10",
        data="cifar-10",
        model="resnet8",
        split="official",
        shift={},
    ),
    **rows("code main_fedskc.py:150: RandomCrop(32, padding=4)", augment="crop"),
    **rows("ours: the text names no mean, its code has others: a departure", normalisation="data"),
    **rows("ours: no rival's weights are stated", weights="method"),
    **rows("section IV-B: show the final accuracy", protocol="last", tested=("own",)),
    **rows("section IV-A: three repeating runs", seeds=3),
}
DEGREES = f"{CLIENTS} // section IV-C: 0.05 , 0.2 , 0.5"


def alpha(value: float) -> Row:
    """Return a degree of label skew."""
    return divided(DEGREES, "dirichlet", 20, alpha=value)


def equal(value: float) -> Row:
    """Return the released code's clients, of as many samples each."""
    return divided(
        f"{DEGREES} // code utils/sample_dirichlet.py:24: partition_balance",
        "dirichlet-equal",
        20,
        alpha=value,
    ) | rows(
        f"code utils/sample_dirichlet.py:26: num_per_part, r = len(idxs) // {CLIENTS} // "
        "known: CIFAR has 50000 training images // 2500 = 50000 / 20",
        images=(2500, 2500),
    )


def long_tail(rho: float, images: int, classes: int = 10) -> Row:
    """Return a long tail with its number of training images, n_0 rho^(-c / (C - 1)) of class c, rounded down."""
    size = 50_000 // classes
    return rows(
        "section IV-A: = 10 , 50 , 100 follow [42] ... CIFAR-10-LT and CIFAR-100-LT // "
        "code utils/long_tailed_cifar10.py:11: (imb_factor**(_classes_idx / (num_classes - 1.0))) // "
        f"known: of {classes} classes each has {size} images // "
        f"{images} = sum(int({size} * {rho:.0f} ** (-c / ({classes} - 1))) for c in range({classes}))",
        data=f"cifar-{classes}",
        shift={"long_tail": rho},
        images=("sum", images),
    )


SKC = "section IV-A: = 1 in Eq. (1) ... = 0.08 in Eq. (3) ... = 0.95 in Eq. (5)"


def fedskc(source: str = "", **options: object) -> Row:
    """Return FedSKC with options."""
    given = {"tau": 0.08, "neighbours": 1, "beta": 0.95, **options}
    return method(f"{SKC} // {source}" if source else SKC, "fedskc", **given)


CLIPPED = rows(
    "FedNH src/flbase/strategies/FedUH.py:107: max_norm=10 // FedRCL clients/rcl_client.py:239: parameters(), 10)",
    clip=10.0,
)
TEMPERATURE = "MOON main.py:44: default=0.5"
MOON5 = method(f"MOON README.md:45: --mu=5 // {TEMPERATURE}", "moon", mu=5.0, tau=0.5)
MOON1 = method(f"MOON main.py:42: default=1 // {TEMPERATURE}", "moon", mu=1.0, tau=0.5)
SMOOTHING = "FedNH experiments/Cifar10_Conv2Cifar.yaml:36: FedNH_smoothing: 0.9"
FEDNH1 = CLIPPED | method(
    f"{SMOOTHING} // FedNH src/flbase/models/CNN.py:51: torch.tensor([1.0])",
    "fednh",
    rho=0.9,
    scale=1.0,
)
METHODS: dict[str, Row] = {
    "fedavg": method("section IV-A: FedAvg [1]", "fedavg"),
    "fedprox": method("FedProx flearn/optimizer/pgd.py:11: mu=0.01", "fedprox", mu=0.01),
    "scaffold": method("section IV-A: Scaffold [45]", "scaffold"),
    "fedopt": method(
        "ours: which FedOPT is meant // MarsFL utils/cfg.py:117: FedOptSever.global_lr = 0.5",
        "fedopt",
        server_optimizer="avgm",
        server_lr=0.5,
    ),
    "moon": MOON5,
    "fedproto": method(
        "ours: how it has one model // FedProto lib/options.py:69: default=1",
        "fedproto",
        lam=1.0,
        aggregate_weights=True,
    ),
    "fednh": method(
        f"{SMOOTHING} // FedNH src/flbase/models/CNN.py:108: torch.tensor([20.0])",
        "fednh",
        rho=0.9,
        scale=20.0,
    )
    | CLIPPED,
    "fedrcl": method(
        "FedRCL configs/client/fedrcl.yaml:14: temp: 0.05 // "
        "FedRCL configs/client/fedrcl.yaml:24: weight: 1 ... threshold: 0.7",
        "fedrcl",
        tau=0.05,
        threshold=0.7,
        beta=1.0,
        weight=1.0,
    )
    | CLIPPED,
    "fedskc": fedskc(),
}
PLAIN = rows("ours: augmentation is not stated", augment="none")
EMNIST = PLAIN | rows(
    "section IV-A: a multi-layers CNN for EMNIST", data="emnist", model="emnist-cnn"
)
CIFAR100 = rows("section IV-A: CIFAR-100 [40]", data="cifar-100")
FC100 = PLAIN | rows(
    "section IV-A: FC100 [43] ... we use ProtoNet [38]", data="fc100", model="protonet"
)
SCALE = "ours: the unit of N in Eq. 4 is not stated"
MODULES = "table V: LCL GDA GPR"
OFF = {"lcl": False, "gda": False, "gpr": False}


def where(
    axis: str, arms: tuple[str, ...], name: str, row: Row
) -> tuple[tuple[dict[str, str], Row], ...]:
    """Return what is different for a method and some arms."""
    return tuple(({"method": name, axis: arm}, row) for arm in arms)


SUITES = {
    "table1": Suite(
        RUNS,
        {
            "method": METHODS,
            "data": {
                "CIFAR-10 α = 0.05": alpha(0.05),
                "CIFAR-100 α = 0.05": CIFAR100 | alpha(0.05),
                "CIFAR-100 α = 0.2": CIFAR100,
                "CIFAR-10 α = 0.05, equal sizes": equal(0.05),
                "CIFAR-10 α = 0.2, equal sizes": equal(0.2),
                "CIFAR-100 α = 0.05, equal sizes": CIFAR100 | equal(0.05),
                "CIFAR-100 α = 0.2, equal sizes": CIFAR100 | equal(0.2),
                "CIFAR-10-LT ρ = 100": long_tail(100.0, 12406),
                "CIFAR-10-LT ρ = 50": long_tail(50.0, 13996),
                "CIFAR-10-LT ρ = 10": long_tail(10.0, 20431),
                "FC100 α = 0.05": FC100 | alpha(0.05),
                "FC100 α = 0.2": FC100,
            },
        },
        where(
            "data",
            (
                *("CIFAR-100 α = 0.05", "CIFAR-100 α = 0.2", "FC100 α = 0.05", "FC100 α = 0.2"),
                *("CIFAR-100 α = 0.05, equal sizes", "CIFAR-100 α = 0.2, equal sizes"),
            ),
            "moon",
            MOON1,
        ),
    ),
    "table2": Suite(
        RUNS,
        {
            "method": METHODS | {"moon": MOON1},
            "data": {
                "EMNIST α = 0.05": EMNIST | alpha(0.05),
                "EMNIST α = 0.2": EMNIST,
                "CIFAR-100-LT ρ = 100": long_tail(100.0, 10847, 100),
                "CIFAR-100-LT ρ = 50": long_tail(50.0, 12608, 100),
                "CIFAR-100-LT ρ = 10": long_tail(10.0, 19573, 100),
            },
        },
        where("data", ("EMNIST α = 0.05", "EMNIST α = 0.2"), "fednh", FEDNH1),
    ),
    "table3": Suite(
        RUNS,
        {
            "method": METHODS,
            "data": {"CIFAR-100": CIFAR100, "CIFAR-10-LT ρ = 50": long_tail(50.0, 13996)},
        },
        where("data", ("CIFAR-100",), "moon", MOON1),
    ),
    "table4": Suite(
        RUNS,
        {
            "method": METHODS | {"moon": MOON1},
            "data": {"EMNIST": EMNIST, "CIFAR-100-LT ρ = 50": long_tail(50.0, 12608, 100)},
        },
        where("data", ("EMNIST",), "fednh", FEDNH1),
    ),
    "table5": Suite(
        RUNS,
        {
            "modules": {
                "none": fedskc(MODULES, **OFF),
                "LCL": fedskc(MODULES, **OFF | {"lcl": True}),
                "LCL + GDA": fedskc(MODULES, lcl=True, gda=True, gpr=False),
                "LCL + GPR": fedskc(MODULES, lcl=True, gda=False, gpr=True),
                "LCL + GDA + GPR": fedskc(MODULES, lcl=True, gpr=True),
                "none, uniform weights": fedskc(MODULES, **OFF)
                | rows("ours: the control for equal sizes", weights="uniform"),
                "LCL + GDA, N as shares": fedskc(SCALE, gpr=False, sample_scale="fraction"),
                "LCL + GDA + GPR, N as shares": fedskc(SCALE, sample_scale="fraction"),
            },
            "data": {"CIFAR-100": CIFAR100, "CIFAR-10, equal sizes": equal(0.2)},
        },
    ),
    "fig3": Suite(
        RUNS,
        {
            "argument": {
                **{
                    f"τ = {tau}": fedskc(
                        "figure 3: (a) Temperature // known: it shows 0.01, 0.04, 0.07, 0.08, 0.11, 0.2",
                        tau=tau,
                    )
                    for tau in (0.01, 0.04, 0.07, 0.08, 0.11, 0.2)
                },
                **{
                    f"M = {m}": fedskc(
                        "figure 3: (b) Similar Clients // known: it shows 0, 1, 2, 3", neighbours=m
                    )
                    for m in range(4)
                },
                **{f"α = {value}": fedskc() | alpha(value) for value in (0.05, 0.2, 0.5)},
                "ρ = 10": fedskc() | long_tail(10.0, 20431),
                "ρ = 50": fedskc() | long_tail(50.0, 13996),
                "ρ = 100": fedskc() | long_tail(100.0, 12406),
            }
        },
    ),
    "fig4": Suite(
        RUNS | rows("ours: pictures of one run", seeds=1),
        {
            "method": METHODS
            | {
                "fedskc without neighbours": fedskc(
                    "section IV-C: without (w.o.) or with Eq. (1) // known: 0 is without",
                    neighbours=0,
                )
            }
        },
    ),
}

# --- on data that can be had offline -----------------------------------------------------------------

SHARES = {"sample_scale": "fraction"}
SUITES["local"] = Suite(
    {
        **RUNS,
        **rows(
            "ours: for a small machine",
            rounds=15,
            data={"name": "mnist", "samples": 10000},
            partition={"name": "dirichlet", "clients": 20, "alpha": 0.1},
            model={"name": "lenet", "norm": "batch"},
            epochs=5,
            augment="none",
            protocol="mean-last 5",
            seeds=10,
        ),
    },
    {
        "method": {
            "fedavg": METHODS["fedavg"],
            "fedavg, uniform weights": METHODS["fedavg"]
            | rows("ours: the control for GDA", weights="uniform"),
            "fedskc, GPR as printed": fedskc(),
            "fedskc, GPR interpolates": fedskc(review="interpolate"),
            "fedskc, LCL alone": fedskc(gda=False, gpr=False),
            "fedskc, GDA alone": fedskc(lcl=False, gpr=False),
            "fedskc, GDA alone, N as shares": fedskc(lcl=False, gpr=False, **SHARES),
            "fedskc, LCL + GDA": fedskc(gpr=False),
            "fedskc, LCL + GDA, N as shares": fedskc(gpr=False, **SHARES),
            "fedskc, GPR interpolates, N as shares": fedskc(review="interpolate", **SHARES),
            "fedskc, GPR alone, interpolates": fedskc(lcl=False, gda=False, review="interpolate"),
        }
    },
)
SUITES["local-lt"] = Suite(
    SUITES["local"].runs
    | rows(
        "ours: for a small machine; long tail and alpha: table I",
        data={"name": "mnist", "samples": 30000},
        partition={"name": "dirichlet", "clients": 20, "alpha": 0.2, "min_size": 2},
        shift={"long_tail": 50.0},
    ),
    SUITES["local"].arms,
)
SUITES["local-cifar"] = Suite(
    SUITES["local"].runs
    | rows(
        "ours: for a small machine; long tail, alpha and seeds: table I",
        rounds=60,
        data={"name": "cifar10-jpeg", "path": "cifar10_jpegs.npz"},
        partition={"name": "dirichlet", "clients": 20, "alpha": 0.2, "min_size": 2},
        shift={"long_tail": 50.0},
        augment="crop",
        protocol="mean-last 3 every 5",
        seeds=3,
    ),
    SUITES["local"].arms,
)
SUITES["local-200"] = Suite(
    SUITES["local"].runs
    | equal(0.05)
    | rows(
        "ours: 10,000 images over 20 clients; 200 rounds: section IV",
        images=(500, 500),
        rounds=200,
        protocol="mean-last 3 every 5",
        seeds=5,
    ),
    SUITES["local"].arms,
)
