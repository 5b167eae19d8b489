"""Where the four papers and their released code differ: every row of the deviation tables, one test each.

A row says which options it consists of, with the paper's and the released code's value. That
`variant: released` changes all of these options and no other, that each can be set alone, and that
each makes a difference to what is learnt, is asserted for every row; what the difference is, by
hand, in the methods' own tests. A row without options is not a matter of the method: its test says
where the difference lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flray import registry
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.executor import InlineExecutor
from flray.metrics.summary import trajectory
from tests.algorithms import helpers as tiny

Both = tuple[Any, Any]

SKEWED = {"form": "label_skew"}
ROWS: dict[tuple[str, str], dict[str, Both]] = {
    ("fedskc", "local lr"): {"lr": (None, 0.1)},
    ("fedskc", "beta"): {"beta": (0.95, 0.99)},
    ("fedskc", "c*sigmoid(c)"): {"gate": (True, False)},
    ("fedskc", "U"): {"normaliser": ("distance", "none"), "positive_twice": (False, True)},
    ("fedskc", "weight of LCL"): {"lcl_weight": ("constant", "ramp")},
    ("fedskc", "sample without prototype"): {"without_prototype": ("skip", "own")},
    ("fedskc", "aggregation"): {"gda": (True, False)},
    ("fedskc", "knowledge taken"): {"knowledge": ("after", "last_epoch")},
    ("fedskc", "reported value"): {},
    ("fedskc", "GPR on BN statistics"): {"review_buffers": (False, True)},
    ("fedskc", "classes that GPR compares"): {"review_classes": ("both", "each")},
    ("fcclplus", "mu"): {},
    ("fcclplus", "tau^2 factor on FNTD"): {"tau_squared": (False, True)},
    ("fcclplus", "M"): {"shrunk": (False, True)},
    ("fcclplus", "batch public/private"): {
        "public_batch_size": (512, 256),
        "batch_size": (None, 128),
    },
    ("fcclplus", "lr 0.001"): {"lr_schedule": ("constant", "linear")},
    ("fcclplus", "local epochs / public passes"): {},
    ("fcclplus", "optimiser"): {
        "public_optimizer": ("kept", "fresh"),
        "weight_decay": (None, 1e-5),
        "public_weight_decay": (None, 0.0),
    },
    ("fcclplus", "forward passes of a public batch"): {"second_forward": (False, True)},
    ("fcclplus", "pre-training"): {
        "pretrain_weight_decay": (None, 0.0),
        "pretrain_schedule": ("constant", "cosine"),
    },
    ("fcclplus", "weak augmentation"): {
        "augment": (None, "none"),
        "public_augment": (None, "crop"),
    },
    ("fcclplus", "teacher's mode"): {"teacher_mode": ("eval", "train")},
    ("fedco2", "mutual phase in round 1"): {"first_mutual": (True, False)},
    ("fedco2", "label skew: weights"): {"weights": ("uniform", "samples")},
    ("fedco2", "label skew: BN"): {"statistics": ("personal", "averaged")},
    ("fedco2", "Digits network"): {},
    ("lgmix", "trace"): {"centred": (False, True), "drop_smallest": (False, True)},
    ("lgmix", "history"): {"history": ("earlier", "all")},
    ("lgmix", "input"): {"inputs": ("normalised", "unit")},
    ("lgmix", "more than one local epoch"): {"update": ("round", "last_epoch")},
    ("lgmix", "last batch"): {"drop_last": (None, True)},
}
"""By method and name of the row: options with the paper's and the released code's value."""

OPTIONS = [(method, row, option) for (method, row), options in ROWS.items() for option in options]
METHODS = sorted({method for method, _ in ROWS})


def base(method: str) -> dict[str, Any]:
    """Return options under which both columns of the method's table are reached: Fed-CO2's has rows for label skew."""
    return SKEWED if method == "fedco2" else {}


def resolved(method: str, **options: Any) -> dict[str, Any]:
    return registry.algorithms.params(method)(**{**base(method), **options}).resolved().model_dump()


def table(method: str, column: int) -> dict[str, Any]:
    """Return a column of a method's table, by option."""
    return {
        name: both[column]
        for (m, _), options in ROWS.items()
        if m == method
        for name, both in options.items()
    }


@pytest.mark.parametrize("method", METHODS)
def test_the_switch_changes_the_rows_and_nothing_else(method: str) -> None:
    paper, released = (resolved(method, variant=variant) for variant in ("paper", "released"))
    changed = {name for name in paper if paper[name] != released[name]}
    assert changed == {"variant", *table(method, 0)}
    for values, column in ((paper, 0), (released, 1)):
        assert {name: values[name] for name in table(method, column)} == table(method, column)


@pytest.mark.parametrize(("method", "row", "option"), OPTIONS)
def test_each_value_can_be_set_alone(method: str, row: str, option: str) -> None:
    one, other = ROWS[method, row][option]
    alone = resolved(method, **{option: other})
    assert alone == {**resolved(method), option: other}
    # Null stands for the experiment's own setting, which the released code does not look at.
    if one is not None:
        assert resolved(method, variant="released", **{option: one}) == {
            **resolved(method, variant="released"),
            option: one,
        }


# --- each row makes a difference ------------------------------------------------------------------

ADAM = {"optimizer": "adam", "lr": 0.02, "batch_size": 4, "epochs": 2}
PUBLIC = {"public_batch_size": 8}
COMING_AND_GOING = {
    "clients": tiny.gaussian_clients((6, 9, 12), skew=True),
    "participation": {"clients": 1},
    "local": {"epochs": 2, "lr": 0.01},
}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "fedskc": COMING_AND_GOING,
    "fcclplus": {"local": ADAM},
    "fedco2": {"clients": tiny.gaussian_clients((6, 9, 15))},
    "lgmix": {"local": {"epochs": 2, "lr": 0.1}},
}
SPECIAL: Mapping[str, dict[str, Any]] = {
    # One client a round has all the weight either way.
    "gda": {"participation": {"clients": 2}},
    # The mutual phase belongs to feature skew.
    "first_mutual": {"options": {"form": "feature_skew"}},
    # The whole training set of every client, or its 24 public samples, fit into smaller batches
    # only.
    "public_batch_size": {"values": (24, 12), "options": {"public_batch_size": None}},
    "batch_size": {"values": (None, 3), "local": {**ADAM, "batch_size": 32}},
    # With fewer samples than features the smallest eigenvalue is zero.
    "drop_smallest": {"local": {"batch_size": 100}},
    "weight_decay": {"values": (None, 0.1)},
    # It is the private one where it is not given.
    "public_weight_decay": {"options": {"weight_decay": 0.1}},
    "pretrain_weight_decay": {"options": {"weight_decay": 0.1, "pretrain_epochs": 3}},
    "pretrain_schedule": {"options": {"pretrain_epochs": 3}},
    # By default the experiment has no augmentation either.
    "augment": {"values": (None, "crop")},
}
"""What an option needs to act on a dozen samples: other settings, or smaller values of the same kind."""
IMAGES = ("augment", "public_augment", "inputs")
_digests: dict[str, str] = {}


def digest(method: str, special: Mapping[str, Any], **options: Any) -> str:
    settings = {
        **SETTINGS[method],
        **{k: v for k, v in special.items() if k not in ("options", "values")},
    }
    given = {
        **base(method),
        **(PUBLIC if method == "fcclplus" else {}),
        **special.get("options", {}),
        **options,
    }
    key = repr((method, special, registry.algorithms.params(method)(**given).resolved()))
    if key not in _digests:  # one of two values is the default, with which other rows run too
        clients = settings.pop("clients", None)
        federation = tiny.run({"name": method, **given}, clients, rounds=4, **settings)
        _digests[key] = federation.sha256()
    return _digests[key]


@pytest.mark.parametrize(
    ("method", "row", "option"), [case for case in OPTIONS if case[2] not in (*IMAGES, "lr")]
)
def test_each_row_changes_what_is_learnt(method: str, row: str, option: str) -> None:
    special = SPECIAL.get(option, {})
    found = [
        digest(method, special, **{option: value})
        for value in special.get("values", ROWS[method, row][option])
    ]
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("method", "row", "option"), [case for case in OPTIONS if case[2] in IMAGES]
)
def test_rows_about_images_change_what_is_learnt(method: str, row: str, option: str) -> None:
    found = []
    for value in SPECIAL.get(option, {}).get("values", ROWS[method, row][option]):
        options = {"public_size": 8, "public_batch_size": 8} if method == "fcclplus" else {}
        spec = build_spec(
            load(
                {
                    "experiment": {
                        "data": {"name": "digits-sklearn", "samples": 8},
                        "model": "lenet",
                        "rounds": 1,
                        "tracking": {"uri": None},
                        "algorithm": {"name": method, **options, option: value},
                    }
                }
            ).experiment
        )
        federation = tiny.federation_of(spec, InlineExecutor(spec))
        federation.step()
        found.append(federation.sha256())
    assert found[0] != found[1]


def test_fedskc_local_lr() -> None:
    """Null is the experiment's rate, 0.01 unless given: the paper's."""
    assert (
        load(
            {"experiment": {"data": "random", "model": "lenet", "algorithm": "fedskc"}}
        ).experiment.local.lr
        == 0.01
    )
    settings = {"clients": tiny.gaussian_clients((6, 9, 12)), "rounds": 2}
    paper, fast, same = (
        tiny.run({"name": "fedskc", "lr": lr}, local={"lr": rate}, **settings).sha256()
        for lr, rate in ((None, 0.01), (0.1, 0.01), (None, 0.1))
    )
    assert paper != fast == same


# --- rows that are no option of the method --------------------------------------------------------


def test_fedskc_reported_value() -> None:
    """Top-1 of the last round, whose mean over seeds tables show, and the maximum over rounds stand side by side."""
    history = pd.DataFrame({"round": [1, 2, 3], "global/common/accuracy": [0.5, 0.7, 0.6]})
    went = trajectory(history, "global/common/accuracy", 1)
    assert (went.last, went.best) == (0.6, 0.7)


def test_fcclplus_mu() -> None:
    """The paper's text and the released code have 0.02, one of its tables 0.002; both run."""
    assert {resolved("fcclplus", variant=v)["mu"] for v in ("paper", "released")} == {0.02}
    assert digest("fcclplus", {}, mu=0.002) != digest("fcclplus", {})


def test_fcclplus_local_epochs_and_public_passes() -> None:
    """20 and 1 in both columns; the scenarios that have others set them, with omega and tau."""
    assert {resolved("fcclplus", variant=v)["public_passes"] for v in ("paper", "released")} == {1}
    office_home = {"public_passes": 2, "omega": 1.0, "tau": 1.0}
    assert {
        name: resolved("fcclplus", variant="released", **office_home)[name] for name in office_home
    } == office_home
    assert digest("fcclplus", {}, **office_home) != digest("fcclplus", {})


@pytest.mark.parametrize(("layers", "convolutions"), [(4, 4), (3, 3)])
def test_fedco2_digits_network(layers: int, convolutions: int) -> None:
    """The network is the experiment's choice: four convolutions in the paper, three in the released code."""
    from torch import nn

    from flray import models

    network = models.build(
        "digit-cnn",
        (3, 28, 28),
        10,
        {"layers": layers, "norm": "batch", "classifier_norm": True, "split": "fc", "width": 0.1},
        0,
    )
    kinds = [type(module) for module in network.modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.Linear)) == (convolutions, 3)


def test_every_row_is_spelled_out() -> None:
    """Eleven, eleven, four and five rows."""
    counts = np.unique([method for method, _ in ROWS], return_counts=True)
    assert dict(zip(*(part.tolist() for part in counts), strict=True)) == {
        "fcclplus": 11,
        "fedco2": 4,
        "fedskc": 11,
        "lgmix": 5,
    }
