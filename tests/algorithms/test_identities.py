"""Which method equals which at a neutral setting, bit for bit, and that by default it does not: a row for each."""

from typing import Any

import pytest

from tests.algorithms import helpers as tiny
from tests.algorithms.test_every_algorithm import BUILT_IN

NORMED = tiny.DROPOUT
PLAIN = {**NORMED, "norm": False}
DEEP = {"name": "deep-classifier"}
EQUAL = {"aggregation": {"weights": "uniform"}}
CLIPPED = {"optimizer": "adam", "clip_norm": 0.1}
TEACHERS: dict[str, Any] = {"local_term": "two_teachers", "pretrain_epochs": 2}
LARGE = tiny.gaussian_clients((45, 60, 50))
Options = dict[str, Any]


def opt(name: str, **options: Any) -> Options:
    return {"name": name, **options}


FEDAVG = opt("fedavg")
ALT = opt("fedalt", personal_epochs=3, shared_epochs=2)
REP = opt("fedrep", head_epochs=3, body_epochs=2)
GLOBAL: list[tuple[Options, Options, Options]] = [
    (opt("fedprox", mu=0.0), FEDAVG, {}),
    (opt("moon", mu=0.0), FEDAVG, {}),
    (opt("fedrs", alpha=1.0), FEDAVG, {}),
    (opt("fedproc", alpha=1.0), FEDAVG, {}),
    (opt("fedhkd", lam=0.0, gamma=0.0), FEDAVG, {}),
    (opt("fedrcl", weight=0.0), FEDAVG, EQUAL),
    (opt("fedproto", lam=0.0, aggregate_weights=True), FEDAVG, {}),
    (opt("fedrod", generic_loss="ce"), FEDAVG, {}),
    (opt("fedbn"), FEDAVG, {**EQUAL, "model": PLAIN}),
    (opt("fedper", personal="none"), FEDAVG, {}),
    (opt("apfl"), FEDAVG, {}),
    (opt("l2sgd", pull=1.0), FEDAVG, EQUAL),
    (opt("perfedavg", alpha=0.0), FEDAVG, EQUAL),
    (opt("perfedavg", alpha=0.0, form="hf"), FEDAVG, {**EQUAL, "local": {"optimizer": "adam"}}),
    (opt("fedalt", personal="none"), FEDAVG, {}),
    (opt("fedsim", personal="none"), FEDAVG, {}),
    (ALT, REP, {}),
    (opt("fedsim"), opt("fedper"), {}),
    (opt("feddf", steps=0), FEDAVG, {}),
    (opt("fedmatch", public_size=0, ratio=0.0, lam_s=1.0), FEDAVG, {}),
    (opt("fedrep", head_epochs=0, body_epochs=None), opt("fedbabu"), EQUAL),
]
"""Method, what it equals, settings of both; compared by the global models."""

MORE: list[tuple[Options, Options, Options]] = [
    # scoring vectors and training a second head take no statistics and no random numbers
    (opt("fedhkd", lam=0.0, gamma=0.0, threshold=0.0), FEDAVG, {"model": DEEP}),
    (opt("fedrod", generic_loss="ce"), FEDAVG, {"model": DEEP, "local": {"clip_norm": 0.5}}),
    (opt("fedrod", generic_loss="ce"), FEDAVG, {"model": {"name": "one-layer", "more": 1}}),
    (opt("fedrs", alpha=1.0, graded=True), FEDAVG, {"clients": tiny.gaussian_clients(skew=True)}),
    # as the warnings of these methods say: all clients hold all classes, a third of the samples each
    *((opt("fedrs", alpha=alpha), FEDAVG, {}) for alpha in (0.0, 0.5)),
    (opt("fedhkd", threshold=0.5), FEDAVG, {}),
    (opt("fedopt"), opt("fedadam"), {}),
    (opt("fedskc", lcl=False, gda=False, gpr=False), FEDAVG, {}),
    # sizes that saturate the sigmoid make the average uniform
    (opt("fedskc", lcl=False, gpr=False), FEDAVG, {**EQUAL, "clients": LARGE}),
    (opt("lgmix", ratio=0), FEDAVG, {"local": {"precision": "float32"}}),
]
"""The same; not repeated on actors."""

PERSONAL: list[tuple[Options, Options, Options]] = [
    (opt("fedper", personal="all"), opt("local"), {}),
    (opt("fedper", personal="batch_norm"), opt("fedbn"), EQUAL),
    (opt("fedproto", lam=0.0), opt("local"), {}),
    (opt("apfl", alpha=1.0, adaptive=False), opt("local"), {}),
    (opt("l2sgd", pull=0.0), opt("local"), {}),
    (opt("fedalt", personal="all", personal_epochs=None), opt("local"), {"local": {"epochs": 2}}),
    (opt("fedsim", personal="all"), opt("local"), {}),
    (ALT, REP, {}),
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
    (opt("fcclplus", **TEACHERS, fisl=False), opt("fccl", pretrain_epochs=2), {}),
    (opt("fcclplus", **TEACHERS, omega=0), opt("fccl", pretrain_epochs=2), {}),
    (opt("lgmix", ratio=1), opt("local"), {"local": {"precision": "float32"}}),
    (opt("apfl", alpha=1.0, adaptive=False), opt("local"), {"local": CLIPPED}),
]

SKEWED = {"clients": tiny.gaussian_clients((6, 9, 15), skew=True)}
SLOW = {"local": {"lr": 0.01}}
DIFFERENT: dict[tuple[str, str], Options] = {
    **{(name, "fedavg"): {} for name in ("fedprox", "moon", "fedproc", "fedhkd", "lgmix")},
    **{(name, "fedavg"): {} for name in ("fedopt", "fedavgm", "fedadagrad", "fedadam", "fedyogi")},
    **{(name, "fedavg"): SKEWED for name in ("fedrs", "fedrod")},
    **{(name, "fedavg"): {**SKEWED, **SLOW} for name in ("fedskc", "fedmatch")},
    **{(name, "fedavg"): EQUAL for name in ("fedbn", "scaffold", "perfedavg")},
    **{(name, "fedavg"): EQUAL for name in ("l2sgd", "fedrcl", "fedrep")},
    **{(name, "fedper"): {} for name in ("copa", "fedbabu")},
    **{(name, "fedavg"): {} for name in ("fedper", "fednh", "feddf", "pooled", "fedsim")},
    **{pair: {} for pair in (("fedco2", "fedbn"), ("fedalt", "fedsim"), ("fcclplus", "fccl"))},
    **{(name, "local"): {} for name in ("fccl", "fcclplus", "fedmd", "rhfl", "fedproto")},
    **{(name, "local"): {} for name in ("apfl", "l2sgd", "lgmix")},
    ("fedfomo", "local"): tiny.settings_for("fedfomo"),
}
"""A method at its defaults and one that it is not, with settings of both; other methods have it in their own test."""
for _method in sorted({*BUILT_IN} - {method for method, _ in DIFFERENT} - {"fedavg", "local"}):
    _other, _settings = tiny.own_row(_method, "DIFFERENT")
    DIFFERENT[_method, _other] = _settings


def label(value: object) -> str:
    shown = value.items() if isinstance(value, dict) else ()
    return "-".join(str(v) if k == "name" else f"{k}={v}" for k, v in shown if k != "clients")


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
