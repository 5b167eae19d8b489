"""LG-Mix's experiments: its section 5.1 and appendix D.1; of its rivals it states no hyper-parameter."""

from tests.papers.protocols import Row, Suite, method, rows

WHOLE = [42_000, 59_574, 5_579, 293_372, 42_000]
DIGITS: Row = {
    **rows("appendix D.1", rounds=100, batch=128, epochs=1),
    **rows("code, dataset.py: train_stratified.pkl", data={"name": "digits5", "training": "whole"}),
    **rows("section 5.1", lr=0.01, optimiser="sgd", clip=None, participation=1.0),
    **rows("appendix D.1: each data source is a client", partition="domains", clients=5, shift={}),
    **rows(
        "code, get_datasets.py: math.floor(len(trainset)*0.25) at the end are for validation",
        split="lgmix-digits",
        images=WHOLE,
    ),
    **rows("appendix D.1: chosen on validation data", protocol="best", tested=("own",)),
    **rows(
        "appendix D.1: 3 and 3 layers with norms; section 5.1: rivals personalize the last layer",
        model={
            "name": "digit-cnn",
            "layers": 3,
            "split": "head",
            "norm": "batch",
            "classifier_norm": True,
        },
    ),
    **rows("no augmentation is stated", augment="none", normalisation="data"),
    **rows("n_c / n", weights="method"),
    **rows("section 5.1: three runs", seeds=3),
}
SHARES = rows("appendix D.1: 0.6, 0.2, 0.2", split=(0.6, 0.2, 0.2), images=("share", 0.6))
IMAGENET = rows("appendix D.1: ImageNet's mean and std", normalisation="imagenet")


def task(data: str, model: str, rounds: int, **more: object) -> Row:
    """Return a task's data, network and training."""
    settings = {"data": data, "model": model, "rounds": rounds, "batch": 32, **more}
    return SHARES | rows("section 5.1, appendix D.1", **settings)


TASKS: dict[str, Row] = {
    "Office-Caltech10": IMAGENET | task("office-caltech10", "resnet18-imagenet", 200, clients=4),
    "DomainNet": IMAGENET | task("domainnet", "resnet18-imagenet", 100, clients=6),
    "Camelyon17": task("camelyon17", "densenet121", 40),
    "Retinal": task("fundus", "unet", 100, clients=6, batch=8)
    | rows("section 5.1", lr=0.001, optimiser="adam 0.9 0.99"),
}
METHODS = {
    "fedavg": method("section 5.1", "fedavg"),
    "apfl": method("section 5.1", "apfl"),
    "l2sgd": method("section 5.1", "l2sgd"),
    "fedalt": method("output layer: ours", "fedalt", personal="classifier"),
    "perfedavg": method("form: ours", "perfedavg", form="fo"),
    "fedbn": method("section 5.1", "fedbn"),
    "fedfomo": method("all of its 4 to 6 clients", "fedfomo", peers=5),
    "fedrep": method("appendix D.1: one epoch", "fedrep", head_epochs=1, body_epochs=1),
    "fedbabu": method("section 5.1", "fedbabu"),
    "fedhkd": method("CityChan's code: no threshold", "fedhkd", threshold=0.0),
    "lgmix": method("section 4", "lgmix", history="earlier"),
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
                "LG-Mix without history": method("Table 4", "lgmix", history="none"),
                "LG-Mix": METHODS["lgmix"],
            },
            "data": TASKS,
        },
    ),
    "table6": Suite(
        DIGITS | METHODS["lgmix"],
        {"batch": {str(size): rows("Table 6", batch=size) for size in (8, 16, 32, 64, 128)}},
    ),
    "table10": Suite(
        DIGITS
        | SHARES
        | rows(
            "not stated, ours",
            clients=4,
            data="eeg",
            model={"name": "mlp", "norm": "none"},
            batch=32,
        ),
        {
            "method": METHODS
            | {"fedbn": METHODS["fedbn"] | rows("ours", model={"name": "mlp", "norm": "batch"})}
        },
    ),
    "fig2": Suite(
        DIGITS,
        {
            "method": METHODS,
            "clients": {
                str(n): rows(
                    "Fig. 2(c); which ones: ours",
                    clients=n,
                    data={
                        "name": "digits5",
                        "training": "whole",
                        "domains": ["mnist", "svhn", "usps", "synthdigits"][:n],
                    },
                    images=WHOLE[:n],
                )
                for n in (2, 3, 4)
            },
        },
    ),
    "fig3": Suite(DIGITS | rows("a picture of one run: ours", seeds=1), OF_TASKS.arms),
    "fig4": OF_DIGITS,
}

# --- on data that can be had offline -----------------------------------------------------------------

SUITES["local"] = Suite(
    {
        **DIGITS,
        **rows(
            "ours, for a small machine",
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
            "local": method("ours", "local"),
            "lgmix, no history": method("Table 4", "lgmix", history="none"),
            "lgmix, half and half": method("ours", "lgmix", ratio=0.5),
        }
    },
)
SUITES["local-100"] = Suite(
    SUITES["local"].runs
    | rows("section 5.1: 100 rounds; seeds: ours", rounds=100, protocol="best every 5", seeds=5),
    SUITES["local"].arms,
)
