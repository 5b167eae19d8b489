from pathlib import Path
from typing import Any

import pytest
import yaml

from flray.config.arms import flatten_setting, label
from flray.config.loader import check_single, load
from flray.config.suites import smoke
from flray.config.yaml_files import read_with_base
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs
from flray.tuning.trial_store import TrialFolder
from tests.messages import refused
from tests.tuning.helpers import specs


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
    _, made = specs({**armed, "space": {"local.epochs": {"grid": [1, 2]}}})
    assert len(made) == 3 * 2 * 2 * 2
    assert [p.setting["arms.method"] for p in made[::8]] == ["fedavg", "prox", "fccl"]
    prox, first = made[8 + 4].experiment, made[0].experiment
    assert prox.algorithm.name == "fedprox" and prox.algorithm.options["mu"] == 0.5
    assert prox.local.lr == 0.2 and first.local.lr == 0.05
    assert prox.partition.name == "domains" and prox.partition.options["clients_per_domain"] == 2
    assert first.partition.options["clients"] == 3
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
    made = trial_specs(config, enumerate_settings(config))
    assert {one.experiment.algorithm.options["mu"] for one in made} == {0.1, 0.2}
    assert config.model_dump() == before


def test_only_and_skip_choose_among_the_arms(armed: dict[str, Any]) -> None:
    armed["sweep"] |= {
        "only": {"method": ["fccl", "prox"]},
        "skip": [{"method": ["prox"], "data": ["iid"]}],
    }
    found = [label(setting) for setting in enumerate_settings(resolve_sweep(load(armed)))]
    assert found == ["fccl iid", "fccl skewed", "prox skewed"]
    armed["sweep"]["skip"] = [{"data": ["iid", "skewed"]}]
    refused(resolve_sweep, load(armed))


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
        return {
            (one.setting["arms.method"], one.setting["arms.data"]): (
                one.experiment.algorithm.options.get("mu"),
                one.experiment.local.lr,
                one.experiment.local.momentum,
            )
            for one in specs(smoke(config) if smaller else config)[1]
        }

    found = trials_of()
    assert found["prox", "skewed"] == (5.0, 0.3, 0.5) and found["prox", "iid"] == (0.5, 0.2, 0.0)
    assert found["fedavg", "skewed"] == (None, 0.05, 0.5)
    assert trials_of("local.lr=0.4")["prox", "skewed"] == (5.0, 0.4, 0.5)
    assert trials_of("local.momentum=0.1")["prox", "skewed"] == (5.0, 0.3, 0.1)
    assert trials_of(smaller=True)["prox", "iid"][0] == 0.5
    rule = {"arms": {"method": ["fedavg"]}, "settings": {"algorithm": "scaffold"}}
    armed["sweep"]["where"], armed["arms"] = [rule], {"method": {"fedavg": None}}
    refused(load, armed, ["algorithm.mu=1"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sweep.where", [{"arms": {"method": ["fcc"]}, "settings": {"local.lr": 1}}]),
        ("sweep.where", [{"arms": {"method": ["fccl"]}, "settings": {"output": "x"}}]),
        ("sweep.only", {"metod": ["fccl"]}),
        ("sweep.only", {"method": ["fcc"]}),
        ("arms.method.prox.algorithm.nu", 1),
        ("arms.method.prox.nothing", 1),
        ("arms.method.prox.output", "x"),
        ("sweep.search", "optuna"),
        ("arms.empty", {}),
        ("algorithm.mu", 1),
    ],
)
def test_mistakes_are_refused(armed: dict[str, Any], path: str, value: Any) -> None:
    refused(specs, armed, [(path, value)])


def test_the_command_line_wins_over_the_arms(armed: dict[str, Any]) -> None:
    _, made = specs(armed, ["local.lr=0.3", "arms.method.prox.algorithm.mu=2", "sweep.seeds=[5]"])
    assert {p.experiment.local.lr for p in made} == {0.3} and {p.seed for p in made} == {5}
    prox = [p.experiment for p in made if p.setting["arms.method"] == "prox"]
    assert {experiment.algorithm.options["mu"] for experiment in prox} == {2.0}


def test_files_of_sweeps_and_trials_load_alike(armed: dict[str, Any], tmp_path: Path) -> None:
    """Also as the file of a single run, which a trial's is."""
    armed["sweep"] |= {
        "only": {"method": ["fccl", "prox"]},
        "skip": [{"method": ["prox"], "data": ["iid"]}],
        "where": [{"arms": {"data": ["skewed"]}, "settings": {"local.momentum": 0.5}}],
        "scheduler": "asha",
    }
    config, made = specs(armed)
    saved = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    assert [p.experiment for p in specs(yaml.safe_load(saved))[1]] == [p.experiment for p in made]
    for spec in made:
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
    assert list(config.arms["method"]) == ["fedavg", "prox"]
    assert list(config.arms["data"]) == ["iid", "skewed"]
    assert config.arms["method"]["prox"] == {"algorithm": {"name": "moon"}, "local.lr": 0.2}
    (tmp_path / "common.yaml").write_text(
        "paper: {name: fedskc, departures: [other data]}\nexperiment: {rounds: 2}\n"
    )
    file.write_text("base: common.yaml\npaper: {departures: [fewer rounds]}\n")
    assert read_with_base(file)["paper"]["departures"] == ["other data", "fewer rounds"]
    file.write_text("base: suite.yaml\n")
    refused(load, file)


def test_smoke_is_small_and_has_every_arm(armed: dict[str, Any]) -> None:
    armed["experiment"] |= {"rounds": 100, "local": {"epochs": 10, "batch_size": 64}}
    armed["arms"]["method"]["prox"] |= {"rounds": 300, "local.epochs": 20}
    armed["arms"]["data"]["iid"]["partition"]["clients"] = 30
    _, made = specs(smoke(resolve_sweep(load(armed))))
    names = ["fedavg iid", "fedavg skewed", "prox iid", "fccl iid"]
    assert [label(p.setting) for p in made] == names
    sizes = {(p.experiment.rounds, p.experiment.local.epochs, p.experiment.subset) for p in made}
    assert sizes == {(2, 1, 900)}
    assert made[-1].experiment.algorithm.options["public_size"] == 64
    assert made[-1].experiment.name == "small-smoke"
    # Validation samples stay where an arm's split had set them apart.
    armed["arms"]["data"]["iid"] |= {"split": "fedbn-office", "evaluation.protocol": "best"}
    _, made = specs(smoke(load(armed)))
    assert {one.experiment.split for one in made} == {"official"}
    assert {one.experiment.evaluation.validation for one in made} == {0.2}
