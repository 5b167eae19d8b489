"""Which method equals which at a neutral setting, bit for bit, and that by default it does not: a row for each.

And where papers and their released code differ, every row of the deviation tables. A row says which options it consists
of, with the paper's and the released code's value. That `variant: released` changes all of these options and no other,
and that each can be set alone, is asserted for every row; what the difference is, by hand, in the methods' own tests.
"""

from typing import Any

import pytest

from flray import registry
from tests.algorithms import helpers as tiny
from tests.algorithms import test_fccl, test_fedco2, test_fedskc, test_lgmix
from tests.algorithms.test_every_algorithm import BUILT_IN

NORMED = tiny.DROPOUT
PLAIN = {**NORMED, "norm": False}
DEEP = {"name": "deep-classifier"}
UNIFORM = {"weights": "uniform"}
Options = dict[str, Any]


def opt(name: str, **options: Any) -> Options:
    return {"name": name, **options}


FEDAVG = opt("fedavg")
GLOBAL: list[tuple[Options, Options, Options]] = [
    (opt("fedprox", mu=0.0), FEDAVG, {}),
    (opt("moon", mu=0.0), FEDAVG, {}),
    (opt("fedrs", alpha=1.0), FEDAVG, {}),
    (opt("fedproc", alpha=1.0), FEDAVG, {}),
    (opt("fedhkd", lam=0.0, gamma=0.0), FEDAVG, {}),
    (opt("fedrcl", weight=0.0), FEDAVG, {"aggregation": UNIFORM}),
    (opt("fedproto", lam=0.0, aggregate_weights=True), FEDAVG, {}),
    (opt("fedrod", generic_loss="ce"), FEDAVG, {}),
    (opt("fedbn"), FEDAVG, {"aggregation": UNIFORM, "model": PLAIN}),
    (opt("fedper", personal="none"), FEDAVG, {}),
    (opt("apfl"), FEDAVG, {}),
    (opt("l2sgd", pull=1.0), FEDAVG, {"aggregation": UNIFORM}),
    (opt("perfedavg", alpha=0.0), FEDAVG, {"aggregation": UNIFORM}),
    (
        opt("perfedavg", alpha=0.0, form="hf"),
        FEDAVG,
        {"aggregation": UNIFORM, "local": {"optimizer": "adam"}},
    ),
    (opt("fedalt", personal="none"), FEDAVG, {}),
    (opt("fedsim", personal="none"), FEDAVG, {}),
    (
        opt("fedalt", personal_epochs=3, shared_epochs=2),
        opt("fedrep", head_epochs=3, body_epochs=2),
        {},
    ),
    (opt("fedsim"), opt("fedper"), {}),
    (opt("feddf", steps=0), FEDAVG, {}),
    (opt("fedmatch", public_size=0, ratio=0.0, lam_s=1.0), FEDAVG, {}),
    (opt("fedrep", head_epochs=0, body_epochs=None), opt("fedbabu"), {"aggregation": UNIFORM}),
]
"""Method, what it equals, settings of both; compared by the global models."""

MORE: list[tuple[Options, Options, Options]] = [
    # scoring vectors and training a second head take no statistics and no random numbers
    (opt("fedhkd", lam=0.0, gamma=0.0, threshold=0.0), FEDAVG, {"model": DEEP}),
    (opt("fedrod", generic_loss="ce"), FEDAVG, {"model": DEEP, "local": {"clip_norm": 0.5}}),
    (opt("fedrs", alpha=1.0, graded=True), FEDAVG, {"clients": tiny.gaussian_clients(skew=True)}),
    (opt("fedrs", alpha=0.0), FEDAVG, {}),  # all clients hold all classes
    (opt("fedopt"), opt("fedadam"), {}),
    (opt("fedskc", lcl=False, gda=False, gpr=False), FEDAVG, {}),
    # sizes that saturate the sigmoid make the average uniform
    (
        opt("fedskc", lcl=False, gpr=False),
        FEDAVG,
        {"aggregation": UNIFORM, "clients": tiny.gaussian_clients((45, 60, 50))},
    ),
    (opt("lgmix", ratio=0), FEDAVG, {"local": {"precision": "float32"}}),
]
"""The same; not repeated on actors."""

PERSONAL: list[tuple[Options, Options, Options]] = [
    (opt("fedper", personal="all"), opt("local"), {}),
    (opt("fedper", personal="batch_norm"), opt("fedbn"), {"aggregation": UNIFORM}),
    (opt("fedproto", lam=0.0), opt("local"), {}),
    (opt("apfl", alpha=1.0, adaptive=False), opt("local"), {}),
    (opt("l2sgd", pull=0.0), opt("local"), {}),
    (opt("fedalt", personal="all", personal_epochs=None), opt("local"), {"local": {"epochs": 2}}),
    (opt("fedsim", personal="all"), opt("local"), {}),
    (
        opt("fedalt", personal_epochs=3, shared_epochs=2),
        opt("fedrep", head_epochs=3, body_epochs=2),
        {},
    ),
    (opt("fedsim"), opt("fedper"), {}),
    (opt("fcclplus", public_passes=0, local_term="none"), opt("local"), {}),
    (opt("feddf", mode="peer", public_passes=0), opt("local"), {}),
    (opt("fedmatch", average=False, public_size=0, ratio=0.0, lam_s=1.0), opt("local"), {}),
    (opt("fedmd", digest_epochs=0), opt("local"), {}),
    (opt("rhfl", public_passes=0, a=1.0, b=0.0), opt("local"), {}),
]
"""The same, compared by what each client keeps of the model."""

MORE_PERSONAL: list[tuple[Options, Options, Options]] = [
    (opt("fcclplus", fccm=False, fisl=False, local_term="none"), opt("local"), {}),
    (opt("fcclplus", local_term="ewc", ewc=0.0), opt("fcclplus", local_term="none"), {}),
    *(
        (
            opt("fcclplus", local_term="two_teachers", pretrain_epochs=2, **without),
            opt("fccl", pretrain_epochs=2),
            {},
        )
        for without in ({"fisl": False}, {"omega": 0})
    ),
    (opt("lgmix", ratio=1), opt("local"), {"local": {"precision": "float32"}}),
    (
        opt("apfl", alpha=1.0, adaptive=False),
        opt("local"),
        {"local": {"optimizer": "adam", "clip_norm": 0.1}},
    ),
]

SKEWED = {"clients": tiny.gaussian_clients((6, 9, 15), skew=True)}
SLOW = {"local": {"lr": 0.01}}
DIFFERENT: dict[tuple[str, str], Options] = {
    **{(name, "fedavg"): {} for name in ("fedprox", "moon", "fedproc", "fedhkd", "lgmix")},
    **{(name, "fedavg"): {} for name in ("fedopt", "fedavgm", "fedadagrad", "fedadam", "fedyogi")},
    **{(name, "fedavg"): {} for name in ("fedper", "fednh", "feddf", "pooled")},
    **{(name, "fedavg"): SKEWED for name in ("fedrs", "fedrod")},
    **{(name, "fedavg"): {**SKEWED, **SLOW} for name in ("fedskc", "fedmatch")},
    **{
        (name, "fedavg"): {"aggregation": UNIFORM}
        for name in ("fedbn", "scaffold", "perfedavg", "l2sgd", "fedrcl", "fedrep")
    },
    ("fedco2", "fedbn"): {},
    ("copa", "fedper"): {},
    ("fedbabu", "fedper"): {},
    ("fedalt", "fedsim"): {},
    ("fedsim", "fedavg"): {},
    **{(name, "local"): {} for name in ("fccl", "fcclplus", "fedmd", "rhfl", "fedproto")},
    **{(name, "local"): {} for name in ("apfl", "l2sgd", "lgmix")},
    ("fcclplus", "fccl"): {},
    ("fedfomo", "local"): tiny.settings_for("fedfomo"),
}
"""A method at its defaults and one that it is not, with settings of both; other methods have it in their own test."""
for _method in sorted({*BUILT_IN} - {method for method, _ in DIFFERENT} - {"fedavg", "local"}):
    _other, _settings = tiny.own_row(_method, "DIFFERENT")
    DIFFERENT[_method, _other] = _settings


def label(value: object) -> str:
    return (
        "-".join(str(v) if k == "name" else f"{k}={v}" for k, v in value.items() if k != "clients")
        if isinstance(value, dict)
        else ""
    )


@pytest.mark.parametrize(("method", "other", "settings"), [*GLOBAL, *MORE], ids=label)
def test_global_models_are_equal(method: Options, other: Options, settings: Options) -> None:
    settings = {"model": NORMED, "rounds": 3, **settings}
    assert tiny.digest(method, **settings) == tiny.digest(other, **settings)


@pytest.mark.parametrize(("method", "other", "settings"), [*PERSONAL, *MORE_PERSONAL], ids=label)
def test_personal_models_are_equal(method: Options, other: Options, settings: Options) -> None:
    settings = {"model": NORMED, "rounds": 3, **settings}
    found, wanted = (tiny.personal_sha(tiny.run(name, **settings)) for name in (method, other))
    assert found == wanted


@pytest.mark.parametrize(("method", "other"), DIFFERENT)
def test_by_default_they_differ(method: str, other: str) -> None:
    settings = {"model": NORMED, "rounds": 2, **DIFFERENT[method, other]}
    one, two = (tiny.run(name, **settings) for name in (method, other))
    digest = tiny.personal_sha if other in ("local", "fccl") else tiny.models_sha
    assert digest(one) != digest(two)


Both = tuple[Any, Any]

LABEL_SKEW = {"form": "label_skew"}
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

FCCL = {"off_diagonal": 0.0051, "public_passes": 1, "average": False}
SAME: dict[str, dict[str, Any]] = {
    "fedskc": {"tau": 0.08, "neighbours": 1, "sample_scale": "raw", "review": "paper"},
    "fccl": {**FCCL, "pretrain_epochs": 50},
    "fcclplus": {
        **FCCL,
        "omega": 3.0,
        "mu": 0.02,
        "tau": 3.0,
        "kd_share": 0.0,
        "teacher": "previous",
    },
    "fedco2": {"mu": 1.0, "mutual_epochs": 1, "intra": "both", "inter": "both"},
    "lgmix": {"server_lr": 1.0, "ratio": None},
    "rhfl": {"a": 0.1, "b": 1.0, "eta": 0.5},
}
"""By method: values that are equal in both columns, with feature skew; a table of FCCL+ has mu = 0.002."""

OPTIONS = [(method, row, option) for (method, row), options in ROWS.items() for option in options]
METHODS = sorted({method for method, _ in ROWS})


def base(method: str) -> dict[str, Any]:
    """Return options under which both columns of the method's table are reached: Fed-CO2's has rows for label skew."""
    return LABEL_SKEW if method == "fedco2" else {}


def resolved(method: str, **options: Any) -> dict[str, Any]:
    return registry.algorithms.params(method)(**{**base(method), **options}).resolved().model_dump()


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


CHANGES: list[tuple[str, str, tuple[Any, Any]]] = [
    ("fcclplus", "augment", (None, "crop")),  # by default the experiment has no augmentation either
    ("fcclplus", "public_augment", (None, "crop")),
    ("fcclplus", "public_batch_size", (24, 12)),
    ("fcclplus", "batch_size", (None, 3)),
    ("lgmix", "inputs", ("normalised", "unit")),
]


@pytest.mark.parametrize(("method", "option", "values"), CHANGES)
def test_values_change_what_is_learnt(method: str, option: str, values: tuple[Any, Any]) -> None:
    found = []
    for value in values:
        options = {"public_size": 24, "public_batch_size": 8} if method == "fcclplus" else {}
        options |= {"name": method, option: value}
        data = {"name": "digits-sklearn", "samples": 8}
        local = {"batch_size": 32, "lr": 0.01, "precision": "float32"}
        found.append(tiny.run(options, data=data, model="lenet", local=local).sha256())
    assert found[0] != found[1]
