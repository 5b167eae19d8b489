from __future__ import annotations

from typing import Any

from flray.config.loader import load
from flray.tuning.naming import tags, title, varied_params
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs


def test_a_trial_is_called_by_method_data_what_differs_and_seed(content: dict[str, Any]) -> None:
    content["experiment"]["partition"] = {"name": "dirichlet", "alpha": 0.2, "clients": 3}
    content["experiment"]["algorithm"] = "fedskc"
    point = trial_specs(config := resolve_sweep(load(content)), enumerate_settings(config))[1]
    assert title(point) == "fedskc · digits-sklearn · α=0.2 · lr=0.02 · seed 1"
    assert varied_params(point.setting) == {"_local.lr": "0.02"}
    assert tags(config, point.experiment) == {
        "method": "fedskc",
        "data": "digits-sklearn",
        "variant": "paper",
    }


def test_arms_give_the_name(content: dict[str, Any]) -> None:
    content["space"] = {}
    content["paper"] = {"name": "fedskc", "table": "table5", "title": "x"}
    content["arms"] = {
        "method": {"LCL alone": {"algorithm": {"name": "fedskc", "gda": False, "gpr": False}}},
        "data": {"Digits": {}},
    }
    point = trial_specs(config := resolve_sweep(load(content)), enumerate_settings(config))[0]
    assert title(point) == "LCL alone · Digits · seed 0"
    assert varied_params(point.setting) == {"_method": "LCL alone", "_data": "Digits"}
    assert tags(config) == {"paper": "fedskc", "table": "table5"}


def test_an_axis_besides_the_method_says_what_differs(content: dict[str, Any]) -> None:
    content["space"] = {}
    content["experiment"]["partition"] = {"name": "dirichlet", "alpha": 0.2, "clients": 3}
    content["arms"] = {"method": {"fedavg": {}}, "skew": {"α = 0.3": {"partition.alpha": 0.3}}}
    point = trial_specs(config := resolve_sweep(load(content)), enumerate_settings(config))[0]
    assert title(point) == "fedavg · digits-sklearn · α = 0.3 · seed 0"
    del content["arms"]["skew"]
    point = trial_specs(config := resolve_sweep(load(content)), enumerate_settings(config))[0]
    assert title(point) == "fedavg · digits-sklearn · α=0.2 · seed 0"
