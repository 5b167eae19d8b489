from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray import registry
from flray.config.arms import flatten_setting, label
from flray.config.components import DatasetChoice
from flray.config.loader import check_single, load
from flray.config.suites import smoke
from flray.federation.building import build_spec
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs
from tests.messages import refused
from tests.tuning.helpers import specs

SPACES = sorted((Path(__file__).parents[2] / "search_spaces").glob("*.yaml"))


def _settings(content: dict[str, Any], space: dict[str, Any], **sweep: Any) -> list[dict[str, Any]]:
    content["space"], content["sweep"] = space, sweep
    return enumerate_settings(resolve_sweep(load(content)))


def test_each_sample_draws_anew_and_has_every_grid_value_once(content: dict[str, Any]) -> None:
    grids = {"local.lr": {"grid": [0.1, 0.2]}, "local.epochs": {"grid": [1, 2, 3]}}
    both = [{"local.lr": lr, "local.epochs": e} for lr in (0.1, 0.2) for e in (1, 2, 3)]
    assert _settings(content, grids) == both
    space = {"local.epochs": {"grid": [1, 2]}, "local.lr": {"loguniform": [0.001, 1.0]}}
    found = _settings(content, space, samples=3)
    assert [s["local.epochs"] for s in found] == [1, 2] * 3
    lrs = [s["local.lr"] for s in found]
    assert lrs[0] == lrs[1] and lrs[2] == lrs[3] and len(set(lrs)) == 3
    assert len(_settings(content, {"local.batch_size": {"choice": [8, 16]}}, samples=30)) == 2


def test_draws_depend_on_the_sweeps_seed_and_path_alone(content: dict[str, Any]) -> None:
    space = {"local.lr": {"uniform": [0.1, 0.2]}}
    alone = _settings(content, space, samples=4, seed=7)
    assert alone == _settings(content, space, samples=4, seed=7)
    assert alone != _settings(content, space, samples=4, seed=8)
    beside = _settings(content, {"local.epochs": {"randint": [1, 100]}, **space}, samples=4, seed=7)
    assert [s["local.lr"] for s in beside] == [s["local.lr"] for s in alone]
    more = _settings(content, space, samples=6, seed=7)
    assert more[:4] == alone


def test_draws_have_the_distributions_they_are_named_after(content: dict[str, Any]) -> None:
    space = {
        "local.lr": {"loguniform": [1e-4, 1.0]},
        "local.momentum": {"uniform": [0.2, 0.6]},
        "local.epochs": {"randint": [1, 4]},
        "local.batch_size": {"choice": [8, 16]},
    }
    found = _settings(content, space, samples=2000)
    logs = np.log10([s["local.lr"] for s in found])
    assert logs.min() > -4 and logs.max() < 0
    assert abs(logs.mean() + 2) < 0.1 and abs(logs.std() - 4 / 12**0.5) < 0.05
    momenta = np.array([s["local.momentum"] for s in found])
    assert momenta.min() > 0.2 and momenta.max() < 0.6 and abs(momenta.mean() - 0.4) < 0.01
    assert {s["local.epochs"] for s in found} == {1, 2, 3}
    assert abs(np.mean([s["local.batch_size"] == 8 for s in found]) - 0.5) < 0.05


def test_every_seed_of_every_setting_is_a_trial(content: dict[str, Any]) -> None:
    _, made = specs(content)
    expected = [("0001", 0.02, 0), ("0002", 0.02, 1), ("0003", 0.1, 0), ("0004", 0.1, 1)]
    assert [(p.number, p.setting["local.lr"], p.seed) for p in made] == expected
    assert [(p.number, p.experiment.local.lr, p.experiment.seed) for p in made] == expected
    assert made[2].label == "lr=0.1 seed=0"


def test_without_seeds_the_experiments_own_is_used(content: dict[str, Any]) -> None:
    content["experiment"]["seed"], content["sweep"] = 5, {}
    assert resolve_sweep(load(content)).sweep.seeds == (5,)
    again = load(load(content), ["seed=6"])
    assert again.sweep.seeds == ()
    assert resolve_sweep(again).sweep.seeds == (6,)


@pytest.mark.parametrize(
    ("sweep", "way"),
    [
        ({"seeds": [0, 5]}, ["space={}", "sweep.seeds=[]"]),
        ({"seeds": [7]}, ["space={}", "sweep.seeds=[]"]),
        ({"seeds": [5]}, ["space={}"]),
    ],
)
def test_one_run_of_a_sweeps_file_takes_the_way_that_is_said(
    content: dict[str, Any], sweep: dict[str, Any], way: list[str]
) -> None:
    content["experiment"]["seed"], content["sweep"] = 5, sweep
    refused(check_single, load(content), "x.yaml")
    check_single(load(content, way), "x.yaml")


def test_whole_components_can_vary(content: dict[str, Any]) -> None:
    content["space"] = {
        "partition": {"grid": ["domains", {"name": "iid", "clients": 3}]},
        "model": {"grid": ["lenet"]},
    }
    _, made = specs(content)
    assert made[2].experiment.partition.options["clients"] == 3
    flat = {"partition": "iid", "partition.clients": 3, "model": "lenet"}
    assert flatten_setting(made[2].setting) == flat
    setting = {"algorithm": {"name": "fedprox", "mu": 0.1}, "local.lr": 0.123456}
    assert label(setting) == "fedprox mu=0.1 lr=0.1235"


def test_every_bad_setting_has_one_line(content: dict[str, Any]) -> None:
    content["space"] = {"local.momentum": {"grid": [0.0, 0.9]}, "local.lr": {"grid": [0.1]}}
    settings = [{"local.momentum": 1.5}, {"local.momentum": 0.5}, {"local.lr": -1.0}]
    refused(trial_specs, resolve_sweep(load(content)), settings)


@pytest.mark.parametrize(
    ("space", "sweep"),
    [
        ({"local.lr": {"uniform": [0.1, 0.2]}}, {"search": "grid"}),
        ({"local.lr": {"grid": [0.1]}}, {"samples": 4}),
        ({"seed": {"grid": [1, 2]}}, {}),
        ({"output": {"grid": ["a", "b"]}}, {}),
        ({"experiment.seed": {"grid": [1, 2]}}, {}),
        ({"experiment.tracking.uri": {"grid": [None]}}, {}),
        ({"local.lr": {"grid": [0.1]}, "experiment.local.lr": {"grid": [0.2]}}, {}),
        ({}, {"search": "optuna", "samples": 3}),
    ],
)
def test_sweeps_that_make_no_sense_are_refused_in_one_line(
    content: dict[str, Any], space: dict[str, Any], sweep: dict[str, Any]
) -> None:
    refused(_settings, content, space, **sweep)


@pytest.mark.parametrize("path", ["sweep", "sweep.tune"])
@pytest.mark.parametrize("given", ["pbt", "ashaa", {"name": "median", "min_samples": 1}])
def test_a_scheduler_that_flray_lacks_is_refused_in_one_line(
    content: dict[str, Any], path: str, given: Any
) -> None:
    content["sweep"] = {"tune": {"scheduler": given}} if "tune" in path else {"scheduler": given}
    refused(load, content)


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_every_space_that_comes_with_flray_can_be_run(path: Path) -> None:
    """Every setting is allowed, and drawn or listed once; the first and the last fit other digits."""
    config, made = specs(path)
    assert config.experiment.name == path.stem and path.read_text().startswith("# ")
    assert path.stem in ("quickstart", "tuned") or config.experiment.algorithm.name == path.stem
    assert len({point.experiment.model_dump_json() for point in made}) == len(made) >= 2
    # The only digits that need no file; they have no public data.
    digits = {"data": DatasetChoice.model_validate("digits-sklearn")}
    for point in (made[0], made[-1]):
        if "public" not in registry.algorithms.get(point.experiment.algorithm.name).needs:
            build_spec(point.experiment.model_copy(update=digits))
    small = smoke(config, ["digits5-local"])
    few = trial_specs(small, enumerate_settings(small))
    assert few and {one.experiment.rounds for one in few} == {2}
    for one in few:
        assert any(one.setting.items() <= other.setting.items() for other in made)
