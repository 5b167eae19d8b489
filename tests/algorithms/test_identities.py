"""Methods that are another one at a neutral setting, bit for bit: the same row for every such pair in the papers."""

from __future__ import annotations

from typing import Any

import pytest

from flray import trees
from flray.federation.federation import Federation
from tests.algorithms.conftest import models_sha, played, state_of

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
    (opt("feddf", steps=0), FEDAVG, {}),
    (opt("fedmatch", public_size=0, ratio=0.0, lam_s=1.0), FEDAVG, {}),
    (opt("fedrep", head_epochs=0, body_epochs=None), opt("fedbabu"), {"aggregation": UNIFORM}),
]
"""Method, what it equals, settings of both; compared by the global models."""

PERSONAL: list[tuple[Options, Options, Options]] = [
    (opt("fedper", personal="all"), opt("local"), {}),
    (opt("fedper", personal="batch_norm"), opt("fedbn"), {"aggregation": UNIFORM}),
    (opt("fedproto", lam=0.0), opt("local"), {}),
    (opt("fcclplus", public_passes=0, local_term="none"), opt("local"), {}),
    (opt("feddf", mode="peer", public_passes=0), opt("local"), {}),
    (opt("fedmatch", average=False, public_size=0, ratio=0.0, lam_s=1.0), opt("local"), {}),
    (opt("fedmd", digest_epochs=0), opt("local"), {}),
    (opt("rhfl", public_passes=0, a=1.0, b=0.0), opt("local"), {}),
]
"""The same, compared by what each client keeps of the model."""


def label(value: object) -> str:
    return "-".join(f"{k}={v}" if k != "name" else str(v) for k, v in value.items()) if isinstance(value, dict) else ""


def personal_sha(federation: Federation) -> str:
    return trees.sha256(*(state_of(federation, client)["personal"] for client in range(3)))


@pytest.mark.parametrize(("method", "other", "settings"), GLOBAL, ids=label)
def test_global_models_are_equal(method: Options, other: Options, settings: Options) -> None:
    settings = {"model": NORMED, **settings}
    assert models_sha(played(method, rounds=3, **settings)) == models_sha(played(other, rounds=3, **settings))


@pytest.mark.parametrize(("method", "other", "settings"), PERSONAL, ids=label)
def test_personal_models_are_equal(method: Options, other: Options, settings: Options) -> None:
    settings = {"model": NORMED, **settings}
    assert personal_sha(played(method, rounds=3, **settings)) == personal_sha(played(other, rounds=3, **settings))
