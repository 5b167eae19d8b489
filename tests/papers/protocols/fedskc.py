"""FedSKC's experiments: its section IV, hwang52/FedSKC ("code") where it is silent, its rivals' own papers and code."""

from tests.papers.protocols import Row, Suite, divided, method, rows

RUNS: Row = {
    **rows(
        "section IV, configurations", rounds=200, participation=0.4, epochs=10, batch=64, lr=0.01
    ),
    **rows("section IV, configurations: SGD", optimiser="sgd", clip=None),
    **divided("section IV, configurations", "dirichlet", 20, alpha=0.2),
    **rows(
        "section IV, datasets and models",
        data="cifar-10",
        model="resnet8",
        split="official",
        shift={},
    ),
    **rows("code, main_fedskc.py: RandomCrop(32, padding=4), RandomHorizontalFlip", augment="crop"),
    **rows("ours", normalisation="data", weights="method"),
    **rows("tables I and II: final accuracy", protocol="last", tested=("own",)),
    **rows("three runs", seeds=3),
}


def alpha(value: float) -> Row:
    """Return a degree of label skew."""
    return divided("section IV, configurations", "dirichlet", 20, alpha=value)


def equal(value: float) -> Row:
    """Return the released code's clients, of as many samples each."""
    return divided(
        "code, sample_dirichlet.py: partition_balance", "dirichlet-equal", 20, alpha=value
    ) | rows("code: partition_balance", images=(2500, 2500))


def long_tail(rho: float, images: int, data: str = "cifar-10") -> Row:
    """Return a long tail with its number of training images, n_0 rho^(-c / (C - 1)) of class c, rounded down."""
    return rows(
        "tables I and II; Cao et al. 2019",
        data=data,
        shift={"long_tail": rho},
        images=("sum", images),
    )


def fedskc(source: str = "section IV, configurations", **options: object) -> Row:
    """Return FedSKC with options."""
    return method(source, "fedskc", **{"tau": 0.08, "neighbours": 1, "beta": 0.95, **options})


CLIPPED = rows("Yutong-Dai/FedNH, skynbe/FedRCL: clip 10", clip=10.0)
MOON5, MOON1 = (
    method("MOON: 5 for CIFAR-10, 1 for others", "moon", mu=mu, tau=0.5) for mu in (5.0, 1.0)
)
FEDNH1 = method("Yutong-Dai/FedNH: 1 for a small CNN", "fednh", rho=0.9, scale=1.0) | CLIPPED
METHODS: dict[str, Row] = {
    "fedavg": method("section IV", "fedavg"),
    "fedprox": method("litian96/FedProx", "fedprox", mu=0.01),
    "scaffold": method("SCAFFOLD", "scaffold"),
    "fedopt": method("ours; WenkeHuang/MarsFL", "fedopt", server_optimizer="avgm", server_lr=0.5),
    "moon": MOON5,
    "fedproto": method(
        "yuetan031/FedProto; one model: ours", "fedproto", lam=1.0, aggregate_weights=True
    ),
    "fednh": method("Yutong-Dai/FedNH: 20 for ResNet", "fednh", rho=0.9, scale=20.0) | CLIPPED,
    "fedrcl": method("skynbe/FedRCL", "fedrcl", tau=0.05, threshold=0.7, beta=1.0, weight=1.0)
    | CLIPPED,
    "fedskc": fedskc(),
}
EMNIST = rows("section IV: a CNN", data="emnist", model="emnist-cnn", augment="none")
CIFAR100 = rows("section IV", data="cifar-100")
FC100 = rows("section IV: ProtoNet", data="fc100", model="protonet", augment="none")
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
                "CIFAR-100-LT ρ = 100": long_tail(100.0, 10847, "cifar-100"),
                "CIFAR-100-LT ρ = 50": long_tail(50.0, 12608, "cifar-100"),
                "CIFAR-100-LT ρ = 10": long_tail(10.0, 19573, "cifar-100"),
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
            "data": {"EMNIST": EMNIST, "CIFAR-100-LT ρ = 50": long_tail(50.0, 12608, "cifar-100")},
        },
        where("data", ("EMNIST",), "fednh", FEDNH1),
    ),
    "table5": Suite(
        RUNS,
        {
            "modules": {
                "none": fedskc("Table V", **OFF),
                "LCL": fedskc("Table V", **OFF | {"lcl": True}),
                "LCL + GDA": fedskc("Table V", lcl=True, gda=True, gpr=False),
                "LCL + GPR": fedskc("Table V", lcl=True, gda=False, gpr=True),
                "LCL + GDA + GPR": fedskc("Table V", lcl=True, gpr=True),
                "none, uniform weights": fedskc("ours", **OFF) | rows("ours", weights="uniform"),
                "LCL + GDA, N as shares": fedskc("ours", gpr=False, sample_scale="fraction"),
                "LCL + GDA + GPR, N as shares": fedskc("ours", sample_scale="fraction"),
            },
            "data": {"CIFAR-100": CIFAR100, "CIFAR-10, equal sizes": equal(0.2)},
        },
    ),
    "fig3": Suite(
        RUNS,
        {
            "argument": {
                **{
                    f"τ = {tau}": fedskc("Fig. 3(a)", tau=tau)
                    for tau in (0.01, 0.04, 0.07, 0.08, 0.11, 0.2)
                },
                **{f"M = {m}": fedskc("Fig. 3(b)", neighbours=m) for m in range(4)},
                **{f"α = {value}": fedskc() | alpha(value) for value in (0.05, 0.2, 0.5)},
                "ρ = 10": fedskc() | long_tail(10.0, 20431),
                "ρ = 50": fedskc() | long_tail(50.0, 13996),
                "ρ = 100": fedskc() | long_tail(100.0, 12406),
            }
        },
    ),
    "fig4": Suite(
        RUNS | rows("pictures of one run: ours", seeds=1),
        {"method": METHODS | {"fedskc without neighbours": fedskc("Fig. 4(c)", neighbours=0)}},
    ),
}

# --- on data that can be had offline -----------------------------------------------------------------

SHARES = {"sample_scale": "fraction"}
SUITES["local"] = Suite(
    {
        **RUNS,
        **rows(
            "ours, for a small machine",
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
            "fedavg": method("section IV", "fedavg"),
            "fedavg, uniform weights": method("ours", "fedavg") | rows("ours", weights="uniform"),
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
        "ours; long tail and alpha: Table I",
        data={"name": "mnist", "samples": 30000},
        partition={"name": "dirichlet", "clients": 20, "alpha": 0.2, "min_size": 2},
        shift={"long_tail": 50.0},
    ),
    SUITES["local"].arms,
)
SUITES["local-cifar"] = Suite(
    SUITES["local"].runs
    | rows(
        "ours, for a small machine; long tail, alpha and seeds: Table I",
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
