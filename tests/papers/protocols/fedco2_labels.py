"""Fed-CO2's label skew: its section 5.1, appendices A, B, F, and zhyczy/Fed-CO2 ("code") where they are silent."""

from tests.papers.protocols import Row, Suite, divided, method, rows

CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


ONE_HUNDRED = "appendix B: we set up 100 local clients"
SETS = "section 5.1: CIFAR10 and CIFAR100"


def dirichlet(clients: int, alpha: float = 0.3, source: str = ONE_HUNDRED) -> Row:
    """Return clients that divide CIFAR-10 by Dirichlet proportions."""
    source = f"{source} // section 5.1: default parameter $\\alpha = 0.3$"
    return divided(source, "dirichlet", clients, alpha=alpha)


def pathological(source: str, clients: int, classes: int) -> Row:
    """Return clients with a few classes each."""
    return divided(source, "pathological", clients, classes_per_client=classes)


PLAIN = rows(
    "appendix B: a ConvNet [46] with two convolutional layers",
    model={"name": "cnn", "norm": "none"},
)
NORMS = rows(
    "appendix B: an additional BN layer after each ... to algorithms: FedBN [10] and Fed-CO<sub>2</sub>",
    model={"name": "cnn", "norm": "batch"},
)
LABELS: Row = {
    **rows(
        f"{ONE_HUNDRED} and randomly sampled 5of them // appendix B: 1500 communication rounds // "
        "0.05 = 5 / 100",
        rounds=1500,
        participation=0.05,
    ),
    **rows(
        "appendix B: SGD optimizer with the default learning rate 0.01", lr=0.01, optimiser="sgd"
    ),
    **rows("appendix A: batch size was set to 64", batch=64),
    **rows(SETS, data="cifar-10", split="official", shift={}),
    **rows("code label-skew/experiments.py:33: '--epochs', type=int, default=1", epochs=1),
    **rows("ours: no clipping is stated", clip=None),
    **rows(
        "code label-skew/utils.py:801: Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))",
        augment="none",
        normalisation=CIFAR10,
    ),
    **rows("code label-skew/experiments.py:263: len(net_dataidx_map_train[r])", weights="samples"),
    **rows(
        "appendix B: every 5 rounds during its last 200 // 40 = 200 / 5",
        protocol="mean-last 40 every 5",
    ),
    **rows(
        "appendix B: as FedTP // code label-skew/utils.py:632: test_total_correct",
        tested=("own", "pooled"),
    ),
    **rows("appendix B: average and variance of test accuracy // known: of 1 run", seeds=1),
    **PLAIN,
    **dirichlet(100),
}
LABEL_METHODS = {
    "local": method("section 5.1: **SingleSet**", "local"),
    "fedavg": method("section 5.1: **FedAvg**", "fedavg"),
    "fedprox": method(
        "code label-skew/experiments.py:49: default=1, help='the mu parameter for fedprox",
        "fedprox",
        mu=1.0,
    ),
    "fedper": method("section 5.1: **FedPer**", "fedper"),
    "moon": method(
        "code label-skew/experiments.py:49: default=1, help='the mu parameter for fedprox or moon' // "
        "code label-skew/experiments.py:67: default=0.5",
        "moon",
        mu=1.0,
        tau=0.5,
    ),
    "fedrod": method("section 5.1: the linear version", "fedrod", generic_loss="ce"),
    "fedbn": method("section 5.1: **FedBN**", "fedbn") | NORMS,
    "fedco2": method("algorithm 2: without Feature Skew", "fedco2", form="label_skew") | NORMS,
}
OF_100 = rows(SETS, data="cifar-100") | rows(
    "code label-skew/utils.py:813: Normalize((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))",
    normalisation=CIFAR100,
)
SHARED = f"section 5.1: 2 classes per client in CIFAR10 (10 classes per client in CIFAR100) // {ONE_HUNDRED}"
TWENTY = "appendix F.1: for 20 clients // appendix F.1: \\{0.3, 0.7, 1.0\\}"
SUITES = {
    "table3": Suite(
        LABELS,
        {
            "method": LABEL_METHODS,
            "data": {
                "CIFAR-10, 2 classes each": pathological(SHARED, 100, 2),
                "CIFAR-10, Dirichlet 0.3": dirichlet(100),
                "CIFAR-100, 10 classes each": OF_100 | pathological(SHARED, 100, 10),
                "CIFAR-100, Dirichlet 0.3": OF_100
                | divided(
                    "appendix A: two-stage Pachinko ... $\\alpha = 0.3$ ... $\\beta = 10$ // "
                    f"{ONE_HUNDRED}",
                    "pachinko",
                    100,
                    alpha=0.3,
                    beta=10.0,
                ),
            },
        },
    ),
    "table13": Suite(
        LABELS,
        {
            "method": LABEL_METHODS,
            "clients": {
                str(count): dirichlet(
                    count,
                    source="appendix F.4: client number $N \\in \\{50, 100, 150, 300, 500\\}$",
                )
                for count in (50, 100, 150, 300, 500)
            },
        },
    ),
    "fig4": Suite(
        LABELS
        | dirichlet(20, source=TWENTY)
        | rows("ours: 5 % of 20 would be one", participation=1.0),
        {
            "method": LABEL_METHODS | {"local": LABEL_METHODS["local"] | NORMS},
            "skew": {
                "2 classes each": pathological(f"{TWENTY} // appendix F.1: two classes", 20, 2),
                "α = 0.7": dirichlet(20, 0.7, TWENTY),
                "α = 1.0": dirichlet(20, 1.0, TWENTY),
            },
        },
    ),
    "fig5": Suite(
        LABELS
        | divided("appendix F.3: into 10 clients", "iid", 10)
        | rows("appendix F.3: the sample rate be 0.5", participation=0.5),
        {
            "method": LABEL_METHODS,
            "noise": {
                f"σ = {sigma}": rows(
                    "appendix F.3: \\{0, 5, 10, 15, 20\\} // ours: in 255 steps of a pixel, which deviates by 0.2 // "
                    f"{noise} = {sigma} / 255 / 0.2",
                    shift={"noise": noise},
                )
                for sigma, noise in ((5, 0.098), (10, 0.196), (15, 0.294), (20, 0.392))
            },
        },
    ),
}
