"""What scripts/digests runs: every method, every kind of data, and each way in which a run or a sweep may be run.

All of it is on data that come with flray. Nothing here names a module of the package: only settings, which stay.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

Way = Literal["python", "command", "killed"]

BASE: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits-sklearn", "samples": 48},
    "model": {"name": "lenet", "norm": "batch"},
    "algorithm": "fedavg",
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.05},
    "participation": {"fraction": 0.75},
    "checkpoint": {"min_seconds": 0},
    "resources": {"executor": "inline"},
    "tracking": {"uri": None},
}
PUBLIC: dict[str, Any] = {"public": {"name": "photos", "samples": 40}}
BATCHES = {"public_size": 40, "public_batch_size": 10}
FEW_CLASSES: dict[str, Any] = {"partition": {"name": "pathological", "clients": 5}}
GROUPS: dict[str, Any] = {"model": {"norm": "group"}}
"""For methods that add updates up, which may make running variances negative."""

PLAIN = (
    "apfl",
    "copa",
    "fedadagrad",
    "fedadam",
    "fedalt",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedbn",
    "fedco2",
    "fedhkd",
    "fednh",
    "fedopt",
    "fedper",
    "fedproc",
    "fedproto",
    "fedrcl",
    "fedrep",
    "fedrod",
    "fedsim",
    "fedskc",
    "fedyogi",
    "local",
    "moon",
    "perfedavg",
    "scaffold",
)
METHODS: dict[str, dict[str, Any]] = {
    **{name: {} for name in PLAIN},
    "fedprox": {"algorithm": {"mu": 0.1}},
    "lgmix": GROUPS,
    "l2sgd": {"participation": {"fraction": 1.0}},
    "fedfomo": {"evaluation": {"validation": 0.2}},
    "fccl": {"algorithm": {"pretrain_epochs": 1, **BATCHES}, **PUBLIC},
    "fcclplus": {"algorithm": BATCHES, **PUBLIC},
    "feddf": {"algorithm": {"steps": 6, "batch_size": 16, "public_size": 40}, **PUBLIC},
    "fedmatch": {"algorithm": {"public_size": 40}, **PUBLIC},
    "fedmd": {
        "algorithm": {"pretrain_epochs": 1, "public_size": 40, "digest_batch_size": 10},
        **PUBLIC,
    },
    "fedrs": FEW_CLASSES,
    "rhfl": {"algorithm": {"pretrain_epochs": 1, **BATCHES}, **PUBLIC},
}
"""All methods with what makes them small, and what they cannot do without."""

TEN: dict[str, Any] = {
    "partition": {"name": "iid", "clients": 10},
    "participation": {"fraction": 0.8},
}
DIFFERENT: dict[str, Any] = {
    "models": {"rotated": {"name": "mlp", "hidden": [32]}, "photo": "simple-cnn"}
}
GLYPHS: dict[str, Any] = {
    "data": {"name": "glyphs", "classes": 30, "unseen": 10, "samples": 20},
    "partition": {"name": "dirichlet-equal", "clients": 4, "alpha": 1.0},
    "model": {"name": "protonet", "width": 8},
    "episodes": {"test": 20},
}
FUNDUS: dict[str, Any] = {
    "data": {"name": "fundus-synthetic", "samples": 8, "size": 32},
    "model": {"name": "unet", "width": 4, "depth": 2},
    "local": {"batch_size": 4, "optimizer": "adam", "lr": 0.002, "augment": "flip"},
}
EEG: dict[str, Any] = {
    "data": "eeg-synthetic",
    "model": {"name": "mlp", "hidden": [16], "norm": "batch"},
}
LONGER: dict[str, Any] = {"rounds": 6, "local": {"epochs": 4}}
"""Long enough to be killed in the middle."""

FEATURES: dict[str, tuple[str, dict[str, Any]]] = {
    "block": ("fedavg", {**TEN, "aggregation": {"block": 3}}),
    "clients per step": (
        "fedbn",
        {**TEN, "aggregation": {"block": 5}, "local": {"clients_per_step": 2}},
    ),
    "named networks": ("fcclplus", DIFFERENT),
    "dealt networks": ("fedmd", {"models": ["lenet", {"name": "mlp", "hidden": [32]}]}),
    "few-shot": ("fedavg", GLYPHS),
    "few-shot, fedskc": ("fedskc", GLYPHS),
    "segmentation": ("fedavg", FUNDUS),
    "segmentation, lgmix": ("lgmix", {**FUNDUS, "model": {**FUNDUS["model"], "norm": "group"}}),
    "two classes": ("fedbn", EEG),
    "dropout and stragglers": ("scaffold", {"participation": {"dropout": 0.3, "stragglers": 0.5}}),
    "others": ("fedbn", {"evaluation": {"others": True}}),
    "best round on validation": ("fedrep", {"evaluation": {"validation": 0.2, "protocol": "best"}}),
    "every second round": (
        "fedavg",
        {"evaluation": {"every": 2, "protocol": "mean-last", "last": 2}},
    ),
    "split by shares": ("local", {"split": [0.6, 0.2, 0.2]}),
    "dirichlet": (
        "fedskc",
        {"partition": {"name": "dirichlet", "clients": 5, "alpha": 0.5, "min_size": 4}},
    ),
    "pathological": ("fedper", FEW_CLASSES),
    "domain-dirichlet": (
        "fedavg",
        {"partition": {"name": "domain-dirichlet", "alpha": 1.0, "min_size": 4}},
    ),
    "shift": ("fedavg", {"shift": {"long_tail": 5, "ratio": 0.8, "noise": 0.2}}),
    "augmentation": (
        "fedavg",
        {"local": {"augment": ["crop", {"name": "jitter", "hue": 0.05}, {"name": "rotation"}]}},
    ),
    "strong augmentation": ("moon", {"local": {"augment": "strong"}}),
    "adamw, clipped, decayed": (
        "fedprox",
        {
            "local": {
                "optimizer": "adamw",
                "lr": 0.002,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
                "lr_decay": 0.9,
            }
        },
    ),
    "float64": (
        "scaffold",
        {"algorithm": {"option": "I"}, "local": {"precision": "float64", "momentum": 0.9}},
    ),
    "bfloat16": ("fedavg", {"local": {"precision": "bfloat16"}}),
    "own buffers, uniform": ("fedavg", {"aggregation": {"buffers": "local", "weights": "uniform"}}),
    "residual network": (
        "fedrcl",
        {"rounds": 2, "data": {"samples": 16}, "subset": 16, "model": {"name": "resnet8"}},
    ),
    "released fedskc": ("fedskc", {"algorithm": {"variant": "released", "lr": 0.05}}),
    "released fcclplus": ("fcclplus", {"algorithm": {"variant": "released", "batch_size": 16}}),
    "released fedco2": ("fedco2", {"algorithm": {"variant": "released"}}),
    "released lgmix": ("lgmix", {"algorithm": {"variant": "released"}}),
    "preset": ("feddf", {"algorithm": {"preset": "fcclplus", "public_batch_size": 10}}),
    "features": ("fedskc", {"tracking": {"features": True}}),
    "another seed": ("fedskc", {"seed": 7}),
}
"""By name: a method, and what is changed."""


@dataclass(frozen=True)
class Case:
    """A configuration.

    Attributes
    ----------
    name : str
        As in the table.
    content : dict
        The YAML file.
    way : str
        ``"python"``: `flray.run`; ``"command"``: a command line in a process of its own; ``"killed"``: such a one that
        is killed after a checkpoint, and resumed.
    like : str, optional
        The case that has to end with the same bits and the same numbers.
    """

    name: str
    content: dict[str, Any]
    way: Way = "python"
    like: str | None = None

    @property
    def sweep(self) -> bool:
        """Whether it is a sweep."""
        return "sweep" in self.content

    @property
    def ray(self) -> bool:
        """Whether actors run it."""
        return self.sweep or self.content["experiment"]["resources"]["executor"] == "ray"


def experiment(method: str, *changes: dict[str, Any]) -> dict[str, Any]:
    """Return a small experiment with changes, those of the method first."""
    content = {**copy.deepcopy(BASE), "algorithm": {"name": method}}
    for change in (METHODS[method], *changes):
        content = _merged(content, change)
    return content


def cases() -> list[Case]:
    """Return all cases."""

    def of(name: str, method: str, *changes: dict[str, Any], **how: Any) -> Case:
        return Case(name, {"experiment": experiment(method, *changes)}, **how)

    made = [of(name, name) for name in sorted(METHODS)]
    made += [of(name, method, changes) for name, (method, changes) in FEATURES.items()]
    actors: dict[str, Any] = {"resources": {"executor": "ray", "actors": 2}}
    made += [
        of(f"{name}, 2 actors", name, actors, like=name)
        for name in ("feddf", "fedskc", "lgmix", "scaffold")
    ]
    made += [
        of(f"{name}, 2 actors", FEATURES[name][0], FEATURES[name][1], actors, like=name)
        for name in ("block", "named networks")
    ]
    made += [of(f"{name}, 6 rounds", name, LONGER) for name in ("scaffold", "fcclplus")]
    made += [
        of(f"{name}, killed", name, LONGER, way="killed", like=f"{name}, 6 rounds")
        for name in ("scaffold", "fcclplus")
    ]
    # The command line starts itself again for these bits, and Ray on its own.
    made += [
        of("portable bits", "fedavg", {"resources": {"bits": "portable"}}, way="command"),
        of("moon, 2 actors, command line", "moon", actors, way="command", like="moon"),
    ]
    return made + _sweeps()


def _sweeps() -> list[Case]:
    """Return the sweeps; trials that influence each other run one at a time, for the order of their ends counts."""
    asha = {"name": "asha", "grace_period": 1, "reduction_factor": 2, "compared": "all"}
    rates = {"local.lr": {"loguniform": [0.01, 0.2]}}
    arms = {
        "method": {
            "fedavg": {"algorithm": "fedavg"},
            "skc": {"algorithm": {"name": "fedskc", "review": "interpolate"}},
        },
        "skew": {
            "iid": {"partition": {"name": "iid", "clients": 3}},
            "domains": {"participation.fraction": 0.5},
        },
    }
    parts: dict[str, dict[str, Any]] = {
        "random search, 2 seeds": {"space": rates, "sweep": {"samples": 2, "seeds": [0, 1]}},
        "grid of arms": {
            "arms": arms,
            "space": {"local.batch_size": {"grid": [16]}},
            "sweep": {"search": "grid"},
        },
        "asha": {"space": rates, "sweep": {"samples": 4, "scheduler": asha, "concurrency": 1}},
        "optuna": {"space": rates, "sweep": {"samples": 3, "search": "optuna", "concurrency": 1}},
    }
    return [
        Case(name, {"experiment": experiment("fedavg"), **part}, "command")
        for name, part in parts.items()
    ]


def _merged(content: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return a tree with the leaves of another; what another component is named for takes no options over."""
    made = dict(content)
    for key, value in change.items():
        old = made.get(key)
        named = isinstance(value, dict) and "name" in value
        made[key] = (
            _merged(old, value)
            if isinstance(old, dict) and isinstance(value, dict) and not named
            else value
        )
    return made
