"""Values by paper, and networks dealt to the clients."""

from collections import Counter
from typing import Any

import pytest

from flray import registry
from flray.config.loader import experiment_at, load
from flray.federation.building import build_spec
from tests.messages import refused

PRESETS = [
    (name, preset)
    for name in registry.algorithms.names()
    for preset in getattr(registry.algorithms.params(name), "presets", ())
]


MU = "algorithm.mu"


def content(algorithm: Any = "fedavg", **more: Any) -> dict[str, Any]:
    settings = {"data": "digits-sklearn", "partition": {"name": "iid", "clients": 7}}
    return {"experiment": {**settings, "model": "lenet", "algorithm": algorithm, **more}}


@pytest.mark.parametrize(
    ("name", "preset"), PRESETS, ids=[f"{name}-{preset.name}" for name, preset in PRESETS]
)
def test_every_preset_fits_its_method_and_names_its_source(
    name: str, preset: registry.Preset
) -> None:
    options = load(content({"name": name, "preset": preset.name})).experiment.algorithm.options
    assert preset.source
    assert preset.values.items() <= options.items()
    assert options == registry.algorithms.params(name)(**preset.values).model_dump()


def test_a_given_value_beats_the_presets() -> None:
    config = load(content({"name": "fedrs", "preset": "fcclplus", "alpha": 0.25}))
    assert config.experiment.algorithm.options == {"alpha": 0.25, "graded": True}


def test_a_preset_named_later_replaces_the_values_before_it() -> None:
    first, preset = content({"name": "fedprox", "mu": 3.0}), {"algorithm.preset": "fedco2"}
    later = load(first, ["algorithm.preset=fedco2"]).experiment
    found = [later, *(experiment_at(load(first), preset | more) for more in ({}, {MU: 0.5}))]
    assert [one.algorithm.options["mu"] for one in found] == [0.001, 0.001, 0.5]


@pytest.mark.parametrize("method", ["fedprox", "fedavg"])
def test_an_unknown_preset_is_refused_in_one_line(method: str) -> None:
    refused(load, content({"name": method, "preset": "fccl"}))


def test_a_list_of_networks_is_dealt_by_seed_each_as_often_as_the_others() -> None:
    def dealt(seed: int) -> tuple[str, ...]:
        return build_spec(
            load(content("local", models=["lenet", "mlp", "simple-cnn"], seed=seed)).experiment
        ).architecture_of

    assert sorted(Counter(dealt(0)).values()) == [2, 2, 3]
    assert dealt(0) == dealt(0)
    assert len({dealt(seed) for seed in range(4)}) > 1


def test_a_wrong_network_in_a_list_is_named_with_its_place() -> None:
    refused(load, content("local", models=["mlp", "lent"]))
