"""LG-Mix's experiments: its section 5.1 and appendix D.1, med-air/HeteroPFL ("code") where they are silent.

Of its rivals it states no hyper-parameter.
"""

from tests.papers.protocols import Row, Suite, method, rows

WHOLE = {56_000: 42_000, 79_431: 59_574, 7_438: 5_579, 391_162: 293_372}
MNIST, SVHN, USPS, SYNTH = WHOLE.values()
STRATIFIED = (
    "FedBN utils/data_preprocess.py:67: 56000 // FedBN utils/data_preprocess.py:104: 79431 // "
    "FedBN utils/data_preprocess.py:144: 7438 // FedBN utils/data_preprocess.py:193: 391162 // "
    "code dataset/get_datasets.py:46: math.floor(len(trainset)*0.25) // "
) + " // ".join(f"{left} = {all_} - int({all_} * 0.25)" for all_, left in WHOLE.items())
DIGITS: Row = {
    **rows(
        "appendix D.1: batch size of 128. ... training rounds is 100 with a local update epoch of 1",
        rounds=100,
        batch=128,
        epochs=1,
    ),
    **rows(
        "code dataset/dataset.py:25: {site}/{split}_stratified.pkl // section 5.1: Digits-5",
        data={"name": "digits5", "training": "whole"},
    ),
    **rows("section 5.1: SGD optimizer with a learning rate of 0.01", lr=0.01, optimiser="sgd"),
    **rows("ours: no clipping is stated", clip=None),
    **rows("algorithm 1: for $c = 1, 2, ... N$ in parallel do", participation=1.0),
    **rows(
        "appendix D.1: each data source/style as a client // code dataset/dataset.py:12: Five digits",
        partition="domains",
        clients=5,
        shift={},
    ),
    **rows(STRATIFIED, split="lgmix-digits", images=[MNIST, SVHN, USPS, SYNTH, MNIST]),
    **rows(
        "appendix D.1: choose the best model based on the validation data",
        protocol="best",
        tested=("own",),
    ),
    **rows(
        "appendix D.1: 3 convolutional layers and 3 fully-connected ... after the first five layers // "
        "section 5.1: propose to personalize the last model layer",
        model={
            "name": "digit-cnn",
            "layers": 3,
            "split": "head",
            "norm": "batch",
            "classifier_norm": True,
        },
    ),
    **rows(
        "code dataset/get_datasets.py:11: Compose([ transforms.ToTensor(), ])",
        augment="none",
        normalisation="none",
    ),
    **rows("code federated_main/fed_train.py:116: len(tr_set)/train_total_len", weights="method"),
    **rows("section 5.1: three independent runs", seeds=3),
}
SHARES = rows(
    "appendix D.1: ratio of 0.6, 0.2, and 0.2", split=(0.6, 0.2, 0.2), images=("share", 0.6)
)
PLAIN = rows("ours: of this data nothing is said", normalisation="data")
IMAGENET = rows("appendix D.1: the mean and std of Imagenet", normalisation="imagenet")


def task(source: str, data: str, model: str, rounds: int, **more: object) -> Row:
    """Return a task's data, network and training."""
    settings = {"data": data, "model": model, "rounds": rounds, "batch": 32, **more}
    return SHARES | rows(source, **settings)


RESNET = "appendix D.1: four different data sources ... ResNet-18 ... batch size of 32."
TASKS: dict[str, Row] = {
    "Office-Caltech10": IMAGENET
    | task(
        f"{RESNET} ... training rounds is 200 // section 5.1: Office-Caltech10",
        "office-caltech10",
        "resnet18-imagenet",
        200,
        clients=4,
    ),
    "DomainNet": IMAGENET
    | task(
        f"{RESNET} // appendix D.1: from 200 to 100 // appendix D.1: (clipart, infograph, painting, "
        "quickdraw, real, and sketch) // known: DomainNet has 6 domains",
        "domainnet",
        "resnet18-imagenet",
        100,
        clients=6,
    ),
    "Camelyon17": PLAIN
    | task(
        "appendix D.1: DenseNet121 ... batch size of 32. We train the model for 40 rounds // "
        "section 5.1: *Camelyon17*",
        "camelyon17",
        "densenet121",
        40,
    ),
    "Retinal": PLAIN
    | task(
        "appendix D.1: from 6 different institutions // "
        "appendix D.1: U-Net ... for 100 communication rounds ... The batch size is 8",
        "fundus",
        "unet",
        100,
        clients=6,
        batch=8,
    )
    | rows(
        r"section 5.1: use Adam optimizer with learning rate of $1e^{-3}$ with $\beta = (0.9, 0.99)$",
        lr=0.001,
        optimiser="adam 0.9 0.99",
    ),
}
METHODS = {
    "fedavg": method("figure 2: the baseline FedAvg", "fedavg"),
    "apfl": method("section 5.1: APFL (Deng", "apfl"),
    "l2sgd": method("section 5.1: L2SGD (Hanzely", "l2sgd"),
    "fedalt": method(
        "ours: which layers are personal: the output layer", "fedalt", personal="classifier"
    ),
    "perfedavg": method("ours: which form is not said", "perfedavg", form="fo"),
    "fedbn": method("section 5.1: FedBN (Li", "fedbn"),
    "fedfomo": method("ours: all of the 4 to 6 clients are peers", "fedfomo", peers=5),
    "fedrep": method(
        "appendix D.1: a local update epoch of 1", "fedrep", head_epochs=1, body_epochs=1
    ),
    "fedbabu": method("section 5.1: FedBABU (Oh", "fedbabu"),
    "fedhkd": method(
        "FedHKD Client/ClientFedHKD.py:151: feature / len(features) // known: 0 is no threshold",
        "fedhkd",
        threshold=0.0,
    ),
    "lgmix": method(
        r"section 3.3: consider the history ... \frac{1}{t-1}", "lgmix", history="earlier"
    ),
}
OF_TASKS = Suite(DIGITS, {"method": METHODS, "data": TASKS})
OF_DIGITS = Suite(DIGITS, {"method": METHODS})
SUITES = {
    **dict.fromkeys(("table1", "table2", "table3", "table7", "table8", "table9"), OF_TASKS),
    "table4": Suite(
        DIGITS,
        {
            "variant": {
                "FedAlt": METHODS["fedalt"],
                "FedBN": METHODS["fedbn"],
                "Per-FedAvg": METHODS["perfedavg"],
                "LG-Mix without history": method(
                    "table 4: Ours w/o history", "lgmix", history="none"
                ),
                "LG-Mix": METHODS["lgmix"],
            },
            "data": TASKS,
        },
    ),
    "table6": Suite(
        DIGITS | METHODS["lgmix"],
        {
            "batch": {
                str(size): rows("table 6: (4,8,16,32,64,128)", batch=size)
                for size in (8, 16, 32, 64, 128)
            }
        },
    ),
    "table10": Suite(
        DIGITS
        | SHARES
        | PLAIN
        | rows(
            "ours: for EEG nothing of this is stated",
            clients=4,
            data="eeg",
            model={"name": "mlp", "norm": "none"},
            batch=32,
        ),
        {
            "method": METHODS
            | {
                "fedbn": METHODS["fedbn"]
                | rows("ours: FedBN needs batch norms", model={"name": "mlp", "norm": "batch"})
            }
        },
    ),
    "fig2": Suite(
        DIGITS,
        {
            "method": METHODS,
            "clients": {
                str(n): rows(
                    "ours: which ones figure 2 increases the clients by",
                    clients=n,
                    data={
                        "name": "digits5",
                        "training": "whole",
                        "domains": ["mnist", "svhn", "usps", "synthdigits"][:n],
                    },
                    images=[MNIST, SVHN, USPS, SYNTH][:n],
                )
                for n in (2, 3, 4)
            },
        },
    ),
    "fig3": Suite(DIGITS | rows("ours: a picture of one run", seeds=1), OF_TASKS.arms),
    "fig4": OF_DIGITS,
}

# --- on data that can be had offline -----------------------------------------------------------------

SUITES["local"] = Suite(
    {
        **DIGITS,
        **PLAIN,
        **rows(
            "ours: for a small machine",
            rounds=30,
            data={"name": "digits5-local", "samples": 930},
            split="official",
            images=[744] * 5,
            model={"name": "cnn", "norm": "batch"},
            batch=32,
            protocol="best every 2",
            seeds=10,
        ),
    },
    {
        "method": {
            **METHODS,
            "local": method("ours: what a client reaches alone", "local"),
            "lgmix, no history": method("table 4: Ours w/o history", "lgmix", history="none"),
            "lgmix, half and half": method("ours: what a fixed ratio reaches", "lgmix", ratio=0.5),
        }
    },
)
SUITES["local-100"] = Suite(
    SUITES["local"].runs
    | rows("appendix D.1: The total number of training rounds is 100", rounds=100)
    | rows("ours: for a small machine", protocol="best every 5", seeds=5),
    SUITES["local"].arms,
)
