"""Methods that are another one at a neutral setting, bit for bit: the same row for every such pair in the papers."""

from __future__ import annotations

from typing import Any

import pytest

from flray import trees
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny

NORMED = {"name": "two-layer", "dropout": 0.2}
PLAIN = {**NORMED, "norm": False}
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


def label(value: object) -> str:
    return (
        "-".join(f"{k}={v}" if k != "name" else str(v) for k, v in value.items())
        if isinstance(value, dict)
        else ""
    )


def personal_sha(federation: Federation) -> str:
    states = [tiny.state_of(federation, client) for client in range(3)]
    return trees.sha256(*(state["v" if "v" in state else "personal"] for state in states))


@pytest.mark.parametrize(("method", "other", "settings"), GLOBAL, ids=label)
def test_global_models_are_equal(method: Options, other: Options, settings: Options) -> None:
    settings = {"model": NORMED, **settings}
    assert tiny.digest(method, rounds=3, **settings) == tiny.digest(other, rounds=3, **settings)


@pytest.mark.parametrize(("method", "other", "settings"), PERSONAL, ids=label)
def test_personal_models_are_equal(method: Options, other: Options, settings: Options) -> None:
    settings = {"model": NORMED, **settings}
    assert personal_sha(tiny.run(method, rounds=3, **settings)) == personal_sha(
        tiny.run(other, rounds=3, **settings)
    )
