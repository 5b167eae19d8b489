"""FCCL+'s experiments: its section 4 and tables V to VII, WenkeHuang/FCCL ("code") where they are silent."""

from tests.papers.protocols import Row, Suite, method, rows

SIZE = r"section 4.1: all input images into 32×32323232\times 32"
PUBLIC_SET = "section 4.1: (i.e., Cifar-100 [61], Tiny-ImageNet [4] and Fashion-MNIST[62]) ... is 500050005000"
RUNS: Row = {
    **rows(
        "section 4.1: 256256256 in collaborative updating and local updating ... consistent 0.0010.0010.001",
        lr=0.001,
        batch=256,
    ),
    **rows(r"section 4.1: E\!=\!40 epochs", rounds=40),
    **rows(
        "code fccl+/models/fcclplus.py:147: optim.Adam(net.parameters(), lr=self.local_lr // "
        "known: PyTorch's Adam has 0.9, 0.999",
        optimiser="adam 0.9 0.999",
    ),
    **rows("ours: no clipping is stated", clip=None),
    **rows("code fccl+/utils/best_args.py:55: 'local_epoch': 20", epochs=20),
    **rows(
        "code fccl+/models/fcclplus.py:136: for i in range(self.args.parti_num) // known: all take part",
        participation=1.0,
    ),
    **rows("section 4.1: there are four clients", partition="domains", clients=4),
    **rows(
        "section 4.1: for public data // code fccl+/datasets/digits.py:83: Resize((32, 32)), transforms.ToTensor()",
        augment="none",
    ),
    **rows(
        "section 4.1: we only maintain RandomResizedCrop and RandomHorizontalFlip",
        public_augment="weak",
    ),
    **rows(PUBLIC_SET, public={"name": "cifar-100", "samples": 5000}),
    **rows("ours: networks differ, so none are averaged", weights="method"),
    **rows(
        "code fccl+/datasets/digits.py:83: Normalize((0.485, 0.456, 0.406)",
        normalisation="imagenet",
    ),
    **rows("table VIII: of the last three communication epochs", protocol="mean-last 3"),
    **rows("section 4.1: intra and inter-domain performance", tested=("own", "others")),
    **rows("ours: the number of runs is not stated", seeds=3),
    **rows(
        f"section 4.1: it includes four domains // {SIZE} // "
        "code fccl+/datasets/digits.py:28: MNIST(self.root, self.train",
        data={"name": "digits4", "size": 32},
        split="official",
    ),
    **rows(
        "table V: 150 ... 80 ... 5000 ... 1800",
        shift={"sizes": {"mnist": 150, "usps": 80, "svhn": 5000, "syn": 1800}},
        images=[150, 80, 5000, 1800],
    ),
    **rows(
        "table VI: ResNet10 ResNet12 EfficientNet MobileNet // "
        "code fccl+/datasets/digits.py:9: EfficientNetB0 ... MobileNetV2",
        model="resnet10",
        models={"usps": "resnet12", "svhn": "efficientnet-b0", "syn": "mobilenetv2"},
    ),
}
CLASSES = "section 4.1: Office31 and Office-Home contain 10, 10, 31 and 65 categories"
TOP5 = rows(f"{CLASSES}. Top-1 and Top-5 accuracy are adopted", tested=("own", "others", "top5"))


def scenario(
    networks: str, name: str, model: str, models: dict[str, str], sizes: dict[str, int]
) -> Row:
    """Return a scenario's data and networks."""
    printed = " ... ".join(map(str, sizes.values()))
    return {
        **rows(f"{CLASSES} // {SIZE}", data={"name": name, "size": 32}),
        **rows(f"table V: {printed}", shift={"sizes": sizes}, images=list(sizes.values())),
        **rows(f"table V: {printed} // known: in {len(sizes)} columns", clients=len(sizes)),
        **rows(f"table VI: {networks}", model=model, models=models),
    }


SCENARIOS: dict[str, Row] = {
    "Office-Caltech10": scenario(
        "GoogLeNet ResNet12 ResNet10 ResNet12",
        "office-caltech10",
        "googlenet",
        {"caltech": "resnet12", "dslr": "resnet10", "webcam": "resnet12"},
        {"amazon": 368, "caltech": 431, "dslr": 60, "webcam": 113},
    ),
    "Office31": scenario(
        "ResNet10 ResNet12 ResNet10",
        "office31",
        "resnet10",
        {"dslr": "resnet12"},
        {"amazon": 1082, "dslr": 192, "webcam": 305},
    )
    | TOP5,
    "Office-Home": scenario(
        "ResNet18 ResNet34 GoogLeNet ResNet12",
        "office-home",
        "resnet18",
        {"clipart": "resnet34", "product": "googlenet", "real-world": "resnet12"},
        {"art": 1400, "clipart": 2000, "product": 2500, "real-world": 2000},
    )
    | TOP5,
}
ALONE = "section 4.1: For BASE, models are optimized on private data for 505050 epochs"
BASE = method(ALONE, "local") | rows(f"{ALONE} // ours: in rounds of one", rounds=50, epochs=1)
LAMBDA = r"section 4.1: \lambda=0.0051 like [45]"
TABLE7 = {"omega": 3.0, "mu": 0.02, "tau": 3.0, "tau_squared": True}
METHODS = {
    "local": BASE,
    "fedmd": method(
        "section 4.1: batch size of 512512512 ... public data is 500050005000",
        "fedmd",
        public_size=5000,
        digest_batch_size=512,
    ),
    "feddf": method(
        "code fccl+/models/feddf.py:58: torch.mean(torch.stack(targets_list), 0)",
        "feddf",
        mode="peer",
    ),
    "fedmatch": method("ours: networks differ, so none are averaged", "fedmatch", average=False),
    "rhfl": method(r"table VII: RHFL [34] α𝛼\alpha: 0.1, β𝛽\beta: 1.0", "rhfl", a=0.1, b=1.0),
    "fccl": method(LAMBDA, "fccl", off_diagonal=0.0051, average=False),
    "fcclplus": method(
        rf"{LAMBDA} ... \mu=0.02 in [114] // table VII: \omega: 3 in ... \tau: 3 in",
        "fcclplus",
        **TABLE7,
        off_diagonal=0.0051,
        average=False,
    ),
}


def fcclplus(source: str = "", **options: object) -> Row:
    """Return FCCL+ with options."""
    squared = "code fccl+/models/fcclplus.py:173: inter_loss * (T ** 2)"
    both = f"{squared} // {source}" if source else squared
    return method(both, "fcclplus", tau_squared=True, **options)


def without_fntd(source: str, **options: object) -> Row:
    """Return FCCL+ with FCCL's local loss, which needs models trained for 50 epochs before."""
    both = (
        f"section 4.3: our conference version in Eq. 19 // {source} // "
        "code fccl+/models/fccl.py:149: self.trainloaders[j],50,"
    )
    return fcclplus(both, local_term="two_teachers", pretrain_epochs=50, **options)


def variants(axis: str, arms: dict[str, Row], scenarios: bool = True) -> Suite:
    """Return a suite of variants of FCCL+, over the scenarios or on Digits."""
    both = {axis: arms, "data": SCENARIOS} if scenarios else {axis: arms}
    return Suite(RUNS | fcclplus(), both)


PUBLIC = {
    "CIFAR-100": rows(
        "section 4.3.1: Cifar-100 // section 4.1: is 500050005000",
        public={"name": "cifar-100", "samples": 5000},
    ),
    "Tiny-ImageNet": rows(PUBLIC_SET, public={"name": "tiny-imagenet", "samples": 5000}),
    "Fashion-MNIST": rows(PUBLIC_SET, public={"name": "fashion-mnist", "samples": 5000}),
}
STRONG = rows("section 4.1: strong data augmentation", public_augment="strong")
AVERAGED = "section 4.4: add the model parameter averaging operation"
TEMPERATURE = r"table VII: MOON [21] τ𝜏\tau: 0.5"
HOMOGENEOUS: dict[str, Row] = {
    "local": BASE,
    "fedmd": method(
        f"{AVERAGED} // section 4.1: 512512512", "fedmd", digest_batch_size=512, average=True
    ),
    "feddf": method(AVERAGED, "feddf", mode="peer", average=True),
    "fedavg": method("table XV: FedAvg [30]", "fedavg"),
    "fedprox": method(r"table VII: FedProx [19] μ𝜇\mu: 0.01", "fedprox", mu=0.01),
    "moon (μ = 5)": method(
        rf"table XV: MOON (τ=5𝜏5\tau=5) // ours: it is mu that is 5 // {TEMPERATURE}",
        "moon",
        mu=5.0,
        tau=0.5,
    ),
    "moon (μ = 1)": method(rf"{TEMPERATURE}, μ𝜇\mu: 1", "moon", mu=1.0, tau=0.5),
    "fedproc": method(r"table VII: FedProc [107] α𝛼\alpha: 0.5", "fedproc", alpha=0.5),
    "fedrs": method(
        r"table VII: FedRS [111] α𝛼\alpha: 0.5 // FedRS algorithms/fedrs.py:185: cdist = dist / dist.max()",
        "fedrs",
        alpha=0.5,
        graded=True,
    ),
    "fccl": method(AVERAGED, "fccl", average=True),
    "fcclplus": method(AVERAGED, "fcclplus", average=True),
}
ONE_NETWORK = {
    **rows("section 4.4: the global shared model as ResNet12", model="resnet12", models={}),
    **rows(
        "code fccl+/models/utils/federated_model.py:57: freq = [1 / parti_num", weights="uniform"
    ),
}
TABLE8 = Suite(RUNS, {"method": METHODS, "data": SCENARIOS})
EPOCHS = "table XIX: 10 18.56 ... 20 17.50 ... 30 17.15"
DISTILLED = (
    "section 4.3.3: the typical knowledge distillation (KD) in Eq. 7 // known: for all of FNTD"
)
DIGITS = Suite(RUNS, {"method": METHODS})
SUITES = {
    "table8": TABLE8,
    "table9": TABLE8,
    "table10": variants(
        "modules",
        {
            "none": BASE,
            "FCCM": without_fntd("table X: FCCM FISL FNTD", fccm=True, fisl=False),
            "FISL": without_fntd("table X: FCCM FISL FNTD", fccm=False, fisl=True),
            "FCCM + FISL": without_fntd("table X: FCCM FISL FNTD", fccm=True, fisl=True),
        },
    ),
    "table11": variants(
        "weight",
        {
            f"λ = {weight}": without_fntd(
                "table XI: 0.002 0.0051 0.01 0.05 0.1", fisl=False, off_diagonal=weight
            )
            for weight in (0.002, 0.0051, 0.01, 0.05, 0.1)
        },
    ),
    "table12": Suite(RUNS | PUBLIC["Tiny-ImageNet"], {"method": METHODS}),
    "table13": Suite(
        RUNS | without_fntd("table XIII: effect for FISL", fccm=False),
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
            f"ω = {weight}": without_fntd(
                "table XIV: 111 25.54 ... 222 28.69 ... 333 30.97 ... 444 27.01",
                omega=float(weight),
            )
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
                | rows(
                    "section 4.4: the global shared model as ResNet12", models={"dslr": "resnet12"}
                )
            },
        },
    ),
    "table16": variants(
        "local_term",
        {
            f"EWC {weight}": fcclplus("table XVI: 0.01 0.1 0.7 1.0", local_term="ewc", ewc=weight)
            for weight in (0.01, 0.1, 0.7, 1.0)
        },
    ),
    "table17": variants(
        "share",
        {
            f"{share} %": fcclplus(
                "table XVII: the proportion of KD // known: its rows are 30 %, 10 % and 0 %",
                kd_share=share / 100,
            )
            for share in (30, 10, 0)
        },
        scenarios=False,
    ),
    "table18": Suite(
        RUNS,
        {
            "method": METHODS,
            "networks": {
                "SimpleCNN on SYN": rows(
                    "table XVIII: M: ResNet10 U: ResNet12 SV: EfficientNet SY: SimpleCNN // "
                    "code fccl+/datasets/digits.py:9: EfficientNetB0",
                    models={"usps": "resnet12", "svhn": "efficientnet-b0", "syn": "simple-cnn"},
                ),
                "ResNet18 on MNIST": rows("table XVIII: M: ResNet18 U", model="resnet18"),
            },
        },
    ),
    "table19": variants(
        "epochs",
        {
            f"{epochs} {how} FNTD": rows(EPOCHS, epochs=epochs)
            | fcclplus("table XIX: without FNTD module in Eq. 14", local_term=term)
            for epochs in (10, 20, 30)
            for how, term in (("with", "fntd"), ("without", "none"))
        },
        scenarios=False,
    ),
    "fig6": TABLE8,
    "fig7": Suite(
        RUNS | without_fntd("section 4.3.1: on different public data", fisl=False),
        {"public": PUBLIC},
    ),
    "fig8": Suite(DIGITS.runs | rows("ours: pictures of one run", seeds=1), DIGITS.arms),
    "fig9": variants(
        "teacher",
        {
            "after collaborative updating": fcclplus(
                "figure 9: Analysis of teacher", teacher="current"
            ),
            "after local updating": fcclplus("figure 9: Analysis of teacher", teacher="previous"),
        },
        scenarios=False,
    ),
    "fig10": variants(
        "local_term",
        {
            "KD": fcclplus(DISTILLED, kd_share=1.0),
            **{
                f"FNTD τ = {tau}": fcclplus(
                    "figure 10: temperature hyper-parameter // known: it shows 1, 2, 3, 4, 5",
                    tau=float(tau),
                )
                for tau in range(1, 6)
            },
        },
    ),
}

# --- on data that can be had offline -----------------------------------------------------------------

FEW = "ours: public images are 2560, in batches of 256"
SMALL = {"public_size": 2560, "public_batch_size": 256}
SUITES["local"] = Suite(
    {
        **RUNS,
        **rows(
            "ours: for a small machine",
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
            "fccl": method("ours: for a small machine", "fccl", pretrain_epochs=10, **SMALL),
            "fcclplus": fcclplus(FEW, **SMALL),
            "fcclplus, KD for FNTD": fcclplus(f"{DISTILLED} // {FEW}", kd_share=1.0, **SMALL),
            "fcclplus, no FNTD": fcclplus(
                f"table XIX: without FNTD module // {FEW}", local_term="none", **SMALL
            ),
        }
    },
)
SUITES["local-20"] = Suite(
    SUITES["local"].runs | rows(EPOCHS, epochs=20) | rows("ours: for a small machine", seeds=3),
    SUITES["local"].arms,
)
