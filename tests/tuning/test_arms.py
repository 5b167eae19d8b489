from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from flray.config.loader import check_single, load
from flray.config.setting_labels import flatten_setting, label
from flray.config.suites import smoke
from flray.config.yaml_files import read_with_base
from flray.errors import FlrayError
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs
from flray.tuning.trial_store import TrialFolder

SPACES = Path(__file__).parents[2] / "search_spaces"


@pytest.fixture
def armed(content: dict[str, Any]) -> dict[str, Any]:
    del content["space"]
    content["arms"] = {
        "method": {
            "fedavg": None,
            "prox": {"algorithm": {"name": "fedprox", "mu": 0.5}, "local.lr": 0.2},
            "fccl": {"algorithm": "fcclplus"},
        },
        "data": {
            "iid": {"partition": {"name": "iid", "clients": 3}},
            "skewed": {"partition.clients_per_domain": 2},
        },
    }
    return content


def test_arms_multiply_with_each_other_the_space_and_the_seeds(armed: dict[str, Any]) -> None:
    config = resolve_sweep(load({**armed, "space": {"local.epochs": {"grid": [1, 2]}}}))
    made = trial_specs(config, enumerate_settings(config))
    assert len(made) == 3 * 2 * 2 * 2
    assert [p.setting["arms.method"] for p in made[::8]] == ["fedavg", "prox", "fccl"]
    prox = made[8 + 4].experiment
    assert (prox.algorithm.name, prox.algorithm.options["mu"], prox.local.lr) == (
        "fedprox",
        0.5,
        0.2,
    )
    assert prox.partition.name == "domains" and prox.partition.options["clients_per_domain"] == 2
    assert (
        made[0].experiment.local.lr == 0.05 and made[0].experiment.partition.options["clients"] == 3
    )
    assert label(made[-1].setting) == "fccl skewed epochs=2"
    assert flatten_setting(made[0].setting) == {
        "arms.method": "fedavg",
        "arms.data": "iid",
        "local.epochs": 1,
    }


def test_one_trials_settings_do_not_stay_for_the_next(armed: dict[str, Any]) -> None:
    """Paths that lead into an arm's mapping change a copy of it."""
    config = resolve_sweep(load({**armed, "space": {"algorithm.mu": {"grid": [0.1, 0.2]}}}))
    config = config.model_copy(
        update={"sweep": config.sweep.model_copy(update={"only": {"method": ("prox",)}})}
    )
    before = config.model_dump()
    assert {
        one.experiment.algorithm.options["mu"]
        for one in trial_specs(config, enumerate_settings(config))
    } == {0.1, 0.2}
    assert config.model_dump() == before


def test_only_and_skip_choose_among_the_arms(armed: dict[str, Any]) -> None:
    armed["sweep"] |= {
        "only": {"method": ["fccl", "prox"]},
        "skip": [{"method": ["prox"], "data": ["iid"]}],
    }
    assert [label(s) for s in enumerate_settings(resolve_sweep(load(armed)))] == [
        "fccl iid",
        "fccl skewed",
        "prox skewed",
    ]
    armed["sweep"]["skip"] = [{"data": ["iid", "skewed"]}]
    with pytest.raises(FlrayError, match="every combination"):
        resolve_sweep(load(armed))


def test_a_rule_changes_settings_of_the_combinations_it_names(armed: dict[str, Any]) -> None:
    armed["sweep"]["where"] = [
        {
            "arms": {"method": ["prox"], "data": ["skewed"]},
            "settings": {"algorithm.mu": 5, "local.lr": 0.3},
        },
        {"arms": {"data": ["skewed"]}, "settings": {"local.momentum": 0.5}},
    ]

    def trials_of(*overrides: str, smaller: bool = False) -> dict[tuple[str, str], tuple[Any, ...]]:
        config = load(armed, overrides)
        config = resolve_sweep(smoke(config) if smaller else config)
        return {
            (one.setting["arms.method"], one.setting["arms.data"]): (
                one.experiment.algorithm.options.get("mu"),
                one.experiment.local.lr,
                one.experiment.local.momentum,
            )
            for one in trial_specs(config, enumerate_settings(config))
        }

    found = trials_of()
    assert found["prox", "skewed"] == (5.0, 0.3, 0.5) and found["prox", "iid"] == (0.5, 0.2, 0.0)
    assert found["fedavg", "skewed"] == (None, 0.05, 0.5)
    assert trials_of("local.lr=0.4")["prox", "skewed"] == (5.0, 0.4, 0.5)
    assert trials_of("local.momentum=0.1")["prox", "skewed"] == (5.0, 0.3, 0.1)
    assert trials_of(smaller=True)["prox", "iid"][0] == 0.5
    armed["sweep"]["where"] = [
        {"arms": {"method": ["fedavg"]}, "settings": {"algorithm": "scaffold"}}
    ]
    with pytest.raises(FlrayError, match=r"a rule of sweep\.where sets the whole algorithm"):
        load({**armed, "arms": {"method": {"fedavg": None}}}, ["algorithm.mu=1"])


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (
            "sweep.where",
            [{"arms": {"method": ["fcc"]}, "settings": {"local.lr": 1}}],
            "sweep.where.0.arms.method: .*did you mean 'fccl'",
        ),
        (
            "sweep.where",
            [{"arms": {"method": ["fccl"]}, "settings": {"output": "x"}}],
            "sweep.where.0.settings: found output.*cannot vary",
        ),
        ("sweep.only", {"metod": ["fccl"]}, "did you mean 'method'"),
        ("sweep.only", {"method": ["fcc"]}, "did you mean 'fccl'"),
        ("arms.method.prox.algorithm.nu", 1, "no option 'nu'"),
        ("arms.method.prox.nothing", 1, "unknown key"),
        ("arms.method.prox.output", "x", "cannot vary"),
        ("sweep.search", "optuna", "with arms"),
        ("arms.empty", {}, "no arms"),
        ("algorithm.mu", 1, "arms.method.prox.algorithm.mu=VALUE"),
    ],
)
def test_mistakes_are_refused(armed: dict[str, Any], path: str, value: Any, said: str) -> None:
    with pytest.raises(FlrayError, match=said):
        config = resolve_sweep(load(armed, [(path, value)]))
        trial_specs(config, enumerate_settings(config))


def test_the_command_line_wins_over_the_arms(armed: dict[str, Any]) -> None:
    config = resolve_sweep(
        load(armed, ["local.lr=0.3", "arms.method.prox.algorithm.mu=2", "sweep.seeds=[5]"])
    )
    made = trial_specs(config, enumerate_settings(config))
    assert {p.experiment.local.lr for p in made} == {0.3} and {p.seed for p in made} == {5}
    assert {
        p.experiment.algorithm.options.get("mu") for p in made if p.setting["arms.method"] == "prox"
    } == {2.0}


def test_what_is_saved_is_loaded_again_alike(armed: dict[str, Any]) -> None:
    config = resolve_sweep(load(armed))
    again = resolve_sweep(
        load(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)))
    )
    assert [p.experiment for p in trial_specs(again, enumerate_settings(again))] == [
        p.experiment for p in trial_specs(config, enumerate_settings(config))
    ]


def test_the_file_of_a_trial_is_that_of_a_run(armed: dict[str, Any], tmp_path: Path) -> None:
    armed["sweep"] |= {
        "only": {"method": ["fccl", "prox"]},
        "skip": [{"method": ["prox"], "data": ["iid"]}],
        "where": [{"arms": {"data": ["skewed"]}, "settings": {"local.momentum": 0.5}}],
        "scheduler": "asha",
    }
    config = resolve_sweep(load(armed))
    for spec in trial_specs(config, enumerate_settings(config)):
        trial = TrialFolder(tmp_path, spec.number)
        trial.create(spec, config)
        alone = load(trial.path / "config.yaml")
        check_single(alone, "")
        assert alone.experiment == spec.experiment


def test_a_file_lies_over_its_base(armed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "common.yaml").write_text(yaml.safe_dump(armed))
    file = tmp_path / "suite.yaml"
    file.write_text(
        "base: common.yaml\nexperiment: {rounds: 7, model: {name: mlp}}\n"
        "arms: {method: {fccl: null, prox: {algorithm: {name: moon}}}}\n"
    )
    config = load(file)
    assert config.experiment.rounds == 7 and config.experiment.local.lr == 0.05
    assert list(config.arms["method"]) == ["fedavg", "prox"] and list(config.arms["data"]) == [
        "iid",
        "skewed",
    ]
    assert config.arms["method"]["prox"] == {"algorithm": {"name": "moon"}, "local.lr": 0.2}
    (tmp_path / "common.yaml").write_text(
        "paper: {name: fedskc, departures: [other data]}\nexperiment: {rounds: 2}\n"
    )
    file.write_text("base: common.yaml\npaper: {departures: [fewer rounds]}\n")
    assert read_with_base(file)["paper"]["departures"] == ["other data", "fewer rounds"]
    file.write_text("base: suite.yaml\n")
    with pytest.raises(FlrayError, match="itself as its base"):
        load(file)


def test_smoke_is_small_and_has_every_arm(armed: dict[str, Any]) -> None:
    armed["experiment"] |= {"rounds": 100, "local": {"epochs": 10, "batch_size": 64}}
    armed["arms"]["method"]["prox"] |= {"rounds": 300, "local.epochs": 20}
    armed["arms"]["data"]["iid"]["partition"]["clients"] = 30
    config = resolve_sweep(smoke(resolve_sweep(load(armed))))
    made = trial_specs(config, enumerate_settings(config))
    assert [label(p.setting) for p in made] == [
        "fedavg iid",
        "fedavg skewed",
        "prox iid",
        "fccl iid",
    ]
    assert {
        (p.experiment.rounds, p.experiment.local.epochs, p.experiment.subset) for p in made
    } == {(2, 1, 900)}
    assert made[-1].experiment.algorithm.options["public_size"] == 64
    assert made[-1].experiment.name == "small-smoke"


def test_smoke_keeps_validation_samples_where_an_arms_split_had_set_them_apart(
    armed: dict[str, Any],
) -> None:
    armed["arms"]["data"]["iid"] |= {"split": "fedbn-office", "evaluation.protocol": "best"}
    made = trial_specs(config := resolve_sweep(smoke(load(armed))), enumerate_settings(config))
    assert {one.experiment.split for one in made} == {"official"}
    assert {one.experiment.evaluation.validation for one in made} == {0.2}


@pytest.mark.parametrize("file", sorted(SPACES.glob("*.yaml")), ids=lambda file: str(file.stem))
def test_smoke_of_a_sweep_without_arms_has_its_settings(file: Path) -> None:
    config = resolve_sweep(load(file))
    small = smoke(config, ["digits5-local"])
    made = trial_specs(small, enumerate_settings(small))
    assert made and {one.experiment.rounds for one in made} == {2}
    varied = [one.setting for one in trial_specs(config, enumerate_settings(config))]
    for one in made:
        assert any(one.setting.items() <= setting.items() for setting in varied)
