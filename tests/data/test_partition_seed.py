"""Who holds what can be keyed apart from the run's seed."""

from __future__ import annotations

from typing import Any

import pytest

from flray.config.components import PartitionChoice
from flray.config.loader import load
from flray.errors import FlrayError
from flray.federation.building import build_spec
from flray.registry import Params, partitions, register_partition

BASE = {
    "data": {"name": "digits-sklearn", "samples": 96},
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
    "evaluation": {"validation": 0.2},
    "model": "lenet",
    "algorithm": "fedavg",
}


def fingerprint(**changes: Any) -> str:
    experiment = load({"experiment": BASE}, list(changes.items())).experiment
    return build_spec(experiment).data.partition_fingerprint


def test_a_partition_s_own_seed_takes_the_place_of_the_run_s() -> None:
    assert fingerprint(seed=0) != fingerprint(seed=1)
    own = {"partition.seed": 0}
    assert fingerprint(seed=1, **own) == fingerprint(seed=7, **own) == fingerprint(seed=0)


def test_without_one_the_settings_are_as_they_were() -> None:
    chosen = load({"experiment": BASE}).experiment.partition
    assert "seed" not in chosen.model_dump() and "seed" not in chosen.arguments
    assert chosen.seed(5) == 5
    written = load({"experiment": BASE}, ["partition.seed=3"]).experiment.partition
    assert written.model_dump()["seed"] == 3 and written.seed(5) == 3
    with pytest.raises(FlrayError, match=r"partition\.seed"):
        load({"experiment": BASE}, ["partition.seed=-1"])


def test_a_partition_with_a_seed_option_keeps_it_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitions, "_entries", {**partitions._entries})

    class Options(Params):
        seed: int = 3

    def own(labels: Any, **options: Any) -> Any:
        return [range(0, len(labels), 2), range(1, len(labels), 2)]

    own.Params = Options  # type: ignore[attr-defined]
    register_partition("own-seeded")(own)
    chosen = PartitionChoice.model_validate({"name": "own-seeded"})
    assert chosen.seed(9) == 9 and chosen.arguments["seed"] == 3
