"""FCCL+'s experiments: its section 4 and tables V to VII, WenkeHuang/FCCL ("code") where they are silent."""

from tests.papers.protocols import Row, Suite, method, rows

RUNS: Row = {
    **rows("section 4.1", rounds=40, lr=0.001, optimiser="adam 0.9 0.999", batch=256, clip=None),
    **rows("Table XIX; code", epochs=20),
    **rows("section 4.1: every participant", participation=1.0, partition="domains", clients=4),
    **rows("section 4.1: weak, for public data; code: private images as they are", augment="none"),
    **rows("section 4.1: RandomResizedCrop, RandomHorizontalFlip", public_augment="weak"),
    **rows("section 4.1: 5000", public={"name": "cifar-100", "samples": 5000}),
    **rows("networks differ: no weights", weights="method"),
    **rows("code, digits.py: 0.485, 0.456, 0.406; office*.py", normalisation="imagenet"),
    **rows("section 4.1: intra, inter, mean of the last three", protocol="mean-last 3"),
    **rows("Eq. 21, 22", tested=("own", "others")),
    **rows("not stated, ours", seeds=3),
    **rows(
        "section 4.1: 32x32; code, digits.py: torchvision's sets, and syn",
        data={"name": "digits4", "size": 32},
        split="official",
    ),
    **rows(
        "Table V",
        shift={"sizes": {"mnist": 150, "usps": 80, "svhn": 5000, "syn": 1800}},
        images=[150, 80, 5000, 1800],
    ),
    **rows(
        "Table VI",
        model="resnet10",
        models={"usps": "resnet12", "svhn": "efficientnet-b0", "syn": "mobilenetv2"},
    ),
}
TOP5 = rows("section 4.1: Top-5 of 31 and 65 classes", tested=("own", "others", "top5"))


def scenario(name: str, model: str, models: dict[str, str], sizes: dict[str, int]) -> Row:
    """Return a scenario's data and networks."""
    return {
        **rows("section 4.1: 32x32", data={"name": name, "size": 32}),
        **rows("Table V", shift={"sizes": sizes}, clients=len(sizes), images=list(sizes.values())),
        **rows("Table VI", model=model, models=models),
    }


SCENARIOS: dict[str, Row] = {
    "Office-Caltech10": scenario(
        "office-caltech10",
        "googlenet",
        {"caltech": "resnet12", "dslr": "resnet10", "webcam": "resnet12"},
        {"amazon": 368, "caltech": 431, "dslr": 60, "webcam": 113},
    ),
    "Office31": scenario(
        "office31", "resnet10", {"dslr": "resnet12"}, {"amazon": 1082, "dslr": 192, "webcam": 305}
    )
    | TOP5,
    "Office-Home": scenario(
        "office-home",
        "resnet18",
        {"clipart": "resnet34", "product": "googlenet", "real-world": "resnet12"},
        {"art": 1400, "clipart": 2000, "product": 2500, "real-world": 2000},
    )
    | TOP5,
}
BASE = method("section 4.1: 50 epochs alone", "local") | rows(
    "section 4.1: 50 epochs alone", rounds=50, epochs=1
)
TABLE7 = {"omega": 3.0, "mu": 0.02, "tau": 3.0, "tau_squared": True}
METHODS = {
    "local": BASE,
    "fedmd": method(
        "section 4.1: 5000 in batches of 512", "fedmd", public_size=5000, digest_batch_size=512
    ),
    "feddf": method("code", "feddf", mode="peer"),
    "fedmatch": method("networks differ: ours", "fedmatch", average=False),
    "rhfl": method("Table VII", "rhfl", a=0.1, b=1.0),
    "fccl": method("below Eq. 2", "fccl", off_diagonal=0.0051, average=False),
    "fcclplus": method(
        "section 4.1, Table VII", "fcclplus", **TABLE7, off_diagonal=0.0051, average=False
    ),
}


def fcclplus(source: str, **options: object) -> Row:
    """Return FCCL+ with options."""
    return method(source, "fcclplus", tau_squared=True, **options)  # Eq. 10, 12; code


def without_fntd(source: str, **options: object) -> Row:
    """Return FCCL+ with FCCL's local loss, which needs models trained for 50 epochs before."""
    return fcclplus(source, local_term="two_teachers", pretrain_epochs=50, **options)


def variants(axis: str, arms: dict[str, Row], scenarios: bool = True, **runs: object) -> Suite:
    """Return a suite of variants of FCCL+, over the scenarios or on Digits."""
    both = {axis: arms, "data": SCENARIOS} if scenarios else {axis: arms}
    return Suite(RUNS | fcclplus("section 4.1") | rows("its title", **runs), both)


PUBLIC = {
    "CIFAR-100": {},
    "Tiny-ImageNet": rows("section 4.3.1", public={"name": "tiny-imagenet", "samples": 5000}),
    "Fashion-MNIST": rows("section 4.3.1", public={"name": "fashion-mnist", "samples": 5000}),
}
STRONG = rows("Table XIII", public_augment="strong")
HOMOGENEOUS: dict[str, Row] = {
    "local": BASE,
    "fedmd": method("section 4.4: averaged", "fedmd", digest_batch_size=512, average=True),
    "feddf": method("section 4.4: averaged", "feddf", mode="peer", average=True),
    "fedavg": method("section 4.4", "fedavg"),
    "fedprox": method("Table VII", "fedprox", mu=0.01),
    "moon (μ = 5)": method("Table VII; 5: Table XV", "moon", mu=5.0, tau=0.5),
    "moon (μ = 1)": method("Table VII", "moon", mu=1.0, tau=0.5),
    "fedproc": method("Table VII", "fedproc", alpha=0.5),
    "fedrs": method(
        "Table VII; its authors' rule, by the numbers", "fedrs", alpha=0.5, graded=True
    ),
    "fccl": method("section 4.4: averaged", "fccl", average=True),
    "fcclplus": method("section 4.4: averaged", "fcclplus", average=True),
}
ONE_NETWORK = {
    **rows("section 4.4: ResNet12", model="resnet12", models={}),
    **rows("code, federated_model.py, aggregate_nets: 1 / online_clients_len", weights="uniform"),
}
TABLE8 = Suite(RUNS, {"method": METHODS, "data": SCENARIOS})
DIGITS = Suite(RUNS, {"method": METHODS})
SUITES = {
    "table8": TABLE8,
    "table9": TABLE8,
    "table10": variants(
        "modules",
        {
            "none": BASE,
            "FCCM": without_fntd("Table X", fccm=True, fisl=False),
            "FISL": without_fntd("Table X", fccm=False, fisl=True),
            "FCCM + FISL": without_fntd("Table X", fccm=True, fisl=True),
        },
    ),
    "table11": variants(
        "weight",
        {
            f"λ = {weight}": without_fntd("Table XI", fisl=False, off_diagonal=weight)
            for weight in (0.002, 0.0051, 0.01, 0.05, 0.1)
        },
    ),
    "table12": Suite(RUNS | PUBLIC["Tiny-ImageNet"], {"method": METHODS}),
    "table13": Suite(
        RUNS | without_fntd("Table XIII", fccm=False),
        {
            "public": {
                f"{name}, {strength}": {**public, **(STRONG if strength == "strong" else {})}
                for name, public in PUBLIC.items()
                for strength in ("weak", "strong")
            },
            "data": SCENARIOS,
        },
    ),
    "table14": variants(
        "weight",
        {
            f"ω = {weight}": without_fntd("Table XIV", omega=float(weight))
            for weight in (1, 2, 3, 4)
        },
    ),
    "table15": Suite(
        RUNS | ONE_NETWORK,
        {
            "method": HOMOGENEOUS,
            "data": {
                "Office31": SCENARIOS["Office31"]
                | ONE_NETWORK
                | rows("section 4.4", models={"dslr": "resnet12"})
            },
        },
    ),
    "table16": variants(
        "local_term",
        {
            f"EWC {weight}": fcclplus("Table XVI", local_term="ewc", ewc=weight)
            for weight in (0.01, 0.1, 0.7, 1.0)
        },
    ),
    "table17": variants(
        "share",
        {f"{share} %": fcclplus("Table XVII", kd_share=share / 100) for share in (30, 10, 0)},
        scenarios=False,
    ),
    "table18": Suite(
        RUNS,
        {
            "method": METHODS,
            "networks": {
                "SimpleCNN on SYN": rows(
                    "Table XVIII",
                    models={"usps": "resnet12", "svhn": "efficientnet-b0", "syn": "simple-cnn"},
                ),
                "ResNet18 on MNIST": rows("Table XVIII", model="resnet18"),
            },
        },
    ),
    "table19": variants(
        "epochs",
        {
            f"{epochs} {how} FNTD": rows("Table XIX", epochs=epochs)
            | fcclplus("Table XIX", local_term=term)
            for epochs in (10, 20, 30)
            for how, term in (("with", "fntd"), ("without", "none"))
        },
        scenarios=False,
    ),
    "fig6": TABLE8,
    "fig7": Suite(RUNS | without_fntd("section 4.3.1", fisl=False), {"public": PUBLIC}),
    "fig8": Suite(DIGITS.runs | rows("pictures of one run: ours", seeds=1), DIGITS.arms),
    "fig9": variants(
        "teacher",
        {
            "after collaborative updating": fcclplus("Fig. 9", teacher="current"),
            "after local updating": fcclplus("Fig. 9", teacher="previous"),
        },
        scenarios=False,
    ),
    "fig10": variants(
        "local_term",
        {
            "KD": fcclplus("Fig. 10", kd_share=1.0),
            **{f"FNTD τ = {tau}": fcclplus("Fig. 10", tau=float(tau)) for tau in range(1, 6)},
        },
    ),
}

# --- on data that can be had offline -----------------------------------------------------------------

SMALL = {"public_size": 2560, "public_batch_size": 256}
SUITES["local"] = Suite(
    {
        **RUNS,
        **rows(
            "ours, for a small machine",
            data={
                "name": "digits5-local",
                "samples": 743,
                "domains": ["mnist", "usps", "optdigits", "synth"],
            },
            shift={},
            images=[743] * 4,
            model="lenet",
            models={
                "mnist": {"name": "resnet8", "width": 16},
                "usps": "simple-cnn",
                "optdigits": {"name": "cnn", "norm": "batch"},
                "synth": {"name": "lenet", "norm": "batch"},
            },
            epochs=5,
            batch=64,
            public=None,
            normalisation="data",
            protocol="mean-last 3 every 2",
            seeds=5,
        ),
    },
    {
        "method": {
            "local": method("ours: as many rounds as the others", "local"),
            "fccl": method("ours", "fccl", pretrain_epochs=10, **SMALL),
            "fcclplus": fcclplus("section 4.1", **SMALL),
            "fcclplus, KD for FNTD": fcclplus("Eq. 20", kd_share=1.0, **SMALL),
            "fcclplus, no FNTD": fcclplus("Table XIX", local_term="none", **SMALL),
        }
    },
)
SUITES["local-20"] = Suite(
    SUITES["local"].runs | rows("Table XIX", epochs=20) | rows("ours", seeds=3),
    SUITES["local"].arms,
)
