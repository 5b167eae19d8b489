from typing import Any

from flray.tuning.space import TrialSpec, setting_params, setting_tags, setting_title, sweep_tags
from tests.tuning.helpers import specs


def varied(point: TrialSpec) -> dict[str, str]:
    """Return the parameters that sort first: the labels of arms."""
    return {name: v for name, v in setting_params(point).items() if name.startswith("_")}


def test_a_trial_is_called_by_method_data_what_differs_and_seed(content: dict[str, Any]) -> None:
    content["experiment"]["partition"] = {"name": "dirichlet", "alpha": 0.2, "clients": 3}
    content["experiment"]["algorithm"] = "fedskc"
    config, made = specs(content)
    name = "fedskc · digits-sklearn · α=0.2 · lr=0.02"
    assert varied(made[1]) == {}
    assert setting_params(made[1])["seed"] == "1"
    assert setting_tags(config, made[1]) == {
        "method": "fedskc",
        "data": "digits-sklearn",
        "variant": "paper",
        "flray.phase": "comparison",
        "flray.varied": '{"local.lr": 0.02}',
        "setting": name,
    }


def test_arms_give_the_name_and_say_what_differs(content: dict[str, Any]) -> None:
    content["space"] = {}
    content["paper"] = {"name": "fedskc", "table": "table5", "title": "x"}
    content["experiment"]["partition"] = {"name": "dirichlet", "alpha": 0.2, "clients": 3}
    variant = {"algorithm": {"name": "fedskc", "gda": False, "gpr": False}}
    for arms, name in (
        (
            {"method": {"LCL alone": variant}, "data": {"Digits": {"partition": "domains"}}},
            "LCL alone · Digits",
        ),
        (
            {"method": {"fedavg": {}}, "skew": {"α = 0.3": {"partition.alpha": 0.3}}},
            "fedavg · digits-sklearn · α = 0.3",
        ),
        ({"method": {"fedavg": {}}}, "fedavg · digits-sklearn · α=0.2"),
    ):
        config, (point, *_) = specs({**content, "arms": arms})
        assert setting_title(point) == name
        assert sweep_tags(config) == {"paper": "fedskc", "table": "table5"}
        if "data" in arms:
            assert varied(point) == {"_method": "LCL alone", "_data": "Digits"}
