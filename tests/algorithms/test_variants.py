"""Where papers and their released code differ: every row of the deviation tables.

A row says which options it consists of, with the paper's and the released code's value. That
`variant: released` changes all of these options and no other, and that each can be set alone, is
asserted for every row; what the difference is, by hand, in the methods' own tests.
"""

from typing import Any

import pytest

from flray import registry
from tests.algorithms import helpers as tiny
from tests.algorithms import test_fccl, test_fedco2, test_fedskc, test_lgmix
from tests.helpers import cases

Both = tuple[Any, Any]
ROWS: dict[tuple[str, str], dict[str, Both]] = {
    ("fedskc", "local lr"): {"lr": (None, 0.1)},
    ("fedskc", "beta"): {"beta": (0.95, 0.99)},
    ("fedskc", "c*sigmoid(c)"): {"gate": (True, False)},
    ("fedskc", "U"): {"normaliser": ("distance", "none"), "positive_twice": (False, True)},
    ("fedskc", "weight of LCL"): {"lcl_weight": ("constant", "ramp")},
    ("fedskc", "sample without prototype"): {"without_prototype": ("skip", "own")},
    ("fedskc", "aggregation"): {"gda": (True, False)},
    ("fedskc", "knowledge taken"): {"knowledge": ("after", "last_epoch")},
    ("fedskc", "GPR on BN statistics"): {"review_buffers": (False, True)},
    ("fedskc", "classes that GPR compares"): {"review_classes": ("both", "each")},
    ("fcclplus", "M"): {"shrunk": (False, True)},
    ("fcclplus", "batch public"): {"public_batch_size": (512, 256)},
    ("fcclplus", "batch private"): {"batch_size": (None, 128)},
    ("fcclplus", "lr 0.001"): {"lr_schedule": ("constant", "linear")},
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
    ("fcclplus", "augmentation"): {"augment": (None, "none"), "public_augment": (None, "crop")},
    ("fcclplus", "teacher's mode"): {"teacher_mode": ("eval", "train")},
    ("fedco2", "mutual phase in round 1"): {"first_mutual": (True, False)},
    ("fedco2", "label skew: weights"): {"weights": ("uniform", "samples")},
    ("fedco2", "label skew: BN"): {"statistics": ("personal", "averaged")},
    ("lgmix", "trace"): {"centred": (False, True), "drop_smallest": (False, True)},
    ("lgmix", "history"): {"history": ("earlier", "all")},
    ("lgmix", "input"): {"inputs": ("normalised", "unit")},
    ("lgmix", "more than one local epoch"): {"update": ("round", "last_epoch")},
    ("lgmix", "last batch"): {"drop_last": (None, True)},
}
ROWS["fccl", "as FCCL+, and averaged later"] = {
    option: both
    for (method, _), options in ROWS.items()
    for option, both in options.items()
    if method == "fcclplus" and option != "second_forward"
} | {"average_after": ("public", "local")}
ROWS["rhfl", "public batches, private epochs"] = {
    "public_batch_size": (512, 256),
    "public_optimizer": ("kept", "fresh"),
    "private_epochs": ("local", "balanced"),
}
"""By method and name of the row: options with the paper's and the released code's value."""

PREVIOUS = {"kd_share": 0.0, "teacher": "previous"}
FCCL = {"off_diagonal": 0.0051, "public_passes": 1, "average": False}
SAME: dict[str, dict[str, Any]] = {
    "fedskc": {"tau": 0.08, "neighbours": 1, "sample_scale": "raw", "review": "paper"},
    "fccl": {**FCCL, "pretrain_epochs": 50},
    "fcclplus": {**FCCL, "omega": 3.0, "mu": 0.02, "tau": 3.0, **PREVIOUS},
    "fedco2": {"mu": 1.0, "mutual_epochs": 1, "intra": "both", "inter": "both"},
    "lgmix": {"server_lr": 1.0, "ratio": None},
    "rhfl": {"a": 0.1, "b": 1.0, "eta": 0.5},
}
"""By method: values that are equal in both columns, with feature skew; a table of FCCL+ has mu = 0.002."""

OPTIONS = [(method, row, option) for (method, row), options in ROWS.items() for option in options]
METHODS = sorted({method for method, _ in ROWS})


def resolved(method: str, **options: Any) -> dict[str, Any]:
    """Return values that reach both columns of the method's table: Fed-CO2's has rows for label skew."""
    base = {"form": "label_skew"} if method == "fedco2" else {}
    return registry.algorithms.params(method)(**{**base, **options}).resolved().model_dump()


def table(method: str, column: int) -> dict[str, Any]:
    """Return a column of a method's table, by option."""
    rows = [options for (m, _), options in ROWS.items() if m == method]
    return {name: both[column] for options in rows for name, both in options.items()}


@pytest.mark.parametrize("method", METHODS)
def test_the_switch_changes_the_rows_and_nothing_else(method: str) -> None:
    paper, released = (resolved(method, variant=variant) for variant in ("paper", "released"))
    changed = {name for name in paper if paper[name] != released[name]}
    assert changed == {"variant", *table(method, 0)}
    for values, column in ((paper, 0), (released, 1)):
        assert {name: values[name] for name in table(method, column)} == table(method, column)
    for variant in ("paper", "released"):
        params = registry.algorithms.params(method)(variant=variant).resolved().model_dump()
        assert SAME[method].items() <= params.items()


@pytest.mark.parametrize(("method", "row", "option"), OPTIONS)
def test_each_value_can_be_set_alone(method: str, row: str, option: str) -> None:
    one, other = ROWS[method, row][option]
    assert resolved(method, **{option: other}) == {**resolved(method), option: other}
    # Null stands for the experiment's own setting, which the released code does not look at.
    if one is not None:
        released = resolved(method, variant="released")
        assert resolved(method, variant="released", **{option: one}) == {**released, option: one}


# --- each row makes a difference: to the loops of the released code, and below where images or sizes matter ---

LOOPS = {"fedskc": test_fedskc, "fedco2": test_fedco2, "lgmix": test_lgmix}
NULL = {"drop_last": False, "weight_decay": 0.0, "public_weight_decay": 1e-5}
"""Values in place of null, which is the experiment's own one; the others are below."""
OTHERS = [
    (method, option, NULL.get(option, one))
    for (method, _), options in ROWS.items()
    for option, (one, _) in options.items()
    if method in ("fedskc", "lgmix", "fcclplus") and (one is not None or option in NULL)
    if option not in ("inputs", "public_batch_size", "pretrain_schedule")
]
OTHERS += [("fccl", "average_after", "public"), ("fcclplus", "average_after", "local")]
# the loop of Fed-CO2 has feature skew, where the released code has the paper's weights and statistics
OTHERS += [("fedco2", "first_mutual", True), ("fedco2", "weights", "samples")]
OTHERS += [("fedco2", "statistics", "averaged")]
OTHERS += [("fccl", "pretrain_schedule", "constant"), ("fccl", "pretrain_weight_decay", 1e-5)]


@pytest.mark.parametrize(("method", "option", "value"), OTHERS)
def test_with_another_value_it_is_no_longer_that_loop(method: str, option: str, value: Any) -> None:
    how: dict[str, Any] = {"epochs": 3} if option == "update" else {}
    if method not in LOOPS:
        how = {"name": method, "average": option == "average_after"}
        how["pretrain_epochs"] = 3 if option.startswith("pretrain") else 0
    with pytest.raises(AssertionError, match=r"not close|not equal"):
        getattr(LOOPS.get(method), "compare", test_fccl.compare)(**how, other={option: value})


@cases(
    "method, option, values",
    """[fcclplus, augment, [null, crop]], [fcclplus, public_augment, [null, crop]],
    [fcclplus, public_batch_size, [24, 12]], [fcclplus, batch_size, [null, 3]],
    [lgmix, inputs, [normalised, unit]]""",
)
def test_values_change_what_is_learnt(method: str, option: str, values: list[Any]) -> None:
    """By default the experiment has no augmentation either."""
    options = {"public_size": 24, "public_batch_size": 8} if method == "fcclplus" else {}
    data = {"name": "digits-sklearn", "samples": 8}
    local = {"batch_size": 32, "lr": 0.01, "precision": "float32"}
    methods = [{**options, "name": method, option: value} for value in values]
    one, other = (tiny.run(m, data=data, model="lenet", local=local) for m in methods)
    assert one.sha256() != other.sha256()
