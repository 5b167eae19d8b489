"""Fed-CO2's label skew: its appendices A, B, E, F, and zhyczy/Fed-CO2, label-skew ("code") where they are silent."""

from tests.papers.protocols import Row, Suite, divided, method, rows

CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def dirichlet(clients: int, alpha: float = 0.3) -> Row:
    """Return clients that divide CIFAR-10 by Dirichlet proportions."""
    return divided("appendices A and E", "dirichlet", clients, alpha=alpha)


def pathological(clients: int, classes: int) -> Row:
    """Return clients with a few classes each."""
    return divided("appendix A", "pathological", clients, classes_per_client=classes)


PLAIN = rows("appendix B: no norms", model={"name": "cnn", "norm": "none"})
NORMS = rows("appendix B: norms for FedBN and Fed-CO2", model={"name": "cnn", "norm": "batch"})
LABELS: Row = {
    **rows("appendix B", rounds=1500, participation=0.05, lr=0.01, optimiser="sgd"),
    **rows("appendix A", batch=64, data="cifar-10", split="official", shift={}),
    **rows("code, experiments.py: --epochs 1", epochs=1, clip=None),
    **rows("code, utils.py: ToTensor and Normalize", augment="none", normalisation=CIFAR10),
    **rows("code: by samples; Eq. 2 has 1/N", weights="samples"),
    **rows("appendix B: every 5 of the last 200 rounds", protocol="mean-last 40 every 5"),
    **rows("appendix B: as FedTP; code, utils.py: test_total_correct", tested=("own", "pooled")),
    **rows("appendix B: its spread is over evaluations", seeds=1),
    **PLAIN,
    **dirichlet(100),
}
LABEL_METHODS = {
    "local": method("section 4.1", "local"),
    "fedavg": method("section 4.1", "fedavg"),
    "fedprox": method("code, label-skew: mu 1", "fedprox", mu=1.0),
    "fedper": method("section 4.1", "fedper"),
    "moon": method("code, label-skew", "moon", mu=1.0, tau=0.5),
    "fedrod": method("section 4.1: linear; code", "fedrod", generic_loss="ce"),
    "fedbn": method("section 4.1", "fedbn") | NORMS,
    "fedco2": method("Algorithm 2", "fedco2", form="label_skew") | NORMS,
}
OF_100 = rows("appendix A; code, utils.py", data="cifar-100", normalisation=CIFAR100)
SUITES = {
    "table3": Suite(
        LABELS,
        {
            "method": LABEL_METHODS,
            "data": {
                "CIFAR-10, 2 classes each": pathological(100, 2),
                "CIFAR-10, Dirichlet 0.3": dirichlet(100),
                "CIFAR-100, 10 classes each": OF_100 | pathological(100, 10),
                "CIFAR-100, Dirichlet 0.3": OF_100
                | divided("appendix A: Pachinko", "pachinko", 100, alpha=0.3, beta=10.0),
            },
        },
    ),
    "table13": Suite(
        LABELS,
        {
            "method": LABEL_METHODS,
            "clients": {str(count): dirichlet(count) for count in (50, 100, 150, 300, 500)},
        },
    ),
    "fig4": Suite(
        LABELS | dirichlet(20) | rows("ours: 5 % of 20 would be one", participation=1.0),
        {
            "method": LABEL_METHODS | {"local": LABEL_METHODS["local"] | NORMS},
            "skew": {
                "2 classes each": pathological(20, 2),
                "α = 0.7": dirichlet(20, 0.7),
                "α = 1.0": dirichlet(20, 1.0),
            },
        },
    ),
    "fig5": Suite(
        LABELS | divided("appendix F.3", "iid", 10) | rows("appendix F.3", participation=0.5),
        {
            "method": LABEL_METHODS,
            "noise": {
                f"σ = {sigma}": rows(
                    "appendix F.3; in steps of a pixel: ours",
                    shift={"noise": round(sigma / 255 / 0.2, 3)},
                )
                for sigma in (5, 10, 15, 20)
            },
        },
    ),
}
