from pathlib import Path
from typing import Any

import pytest

from flray.records import directory
from flray.records.journal import JOURNAL, read_events
from flray.tuning.space import TrialSpec, setting_params, setting_tags, setting_title, sweep_tags
from flray.tuning.trial_store import begin_setting
from tests.tuning.helpers import begin, specs


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


@pytest.mark.parametrize("left", ["", '{"type":"start","ti'])
def test_a_setting_whose_beginning_was_killed_is_named_by_the_resume(
    content: dict[str, Any], tmp_path: Path, left: str
) -> None:
    config, (point, *_) = specs(content)
    begin(config, tmp_path)
    journal = tmp_path / "settings" / point.key / JOURNAL
    journal.parent.mkdir(parents=True)
    journal.write_text(left)
    for _ in range(2):
        begin_setting(tmp_path, point, directory.read(tmp_path), config)
        assert [one["type"] for one in read_events(journal)] == ["start"]
