"""Every suite is expanded, and the first run of its smoke form is run, on noise in the form of its data.

Names of domains and options of methods that a suite gets wrong are found so without any download.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flray import api as sweeps
from flray.config import suites
from flray.config.components import ModelChoice
from flray.config.experiment import Config, Experiment
from flray.config.loader import load
from flray.config.yaml_files import read_with_base
from flray.data.datasets.stand_in import FORMS
from flray.errors import FlrayError
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs

MINE = {"model": "lenet", "algorithm": "fedavg"}
FILES = suites.files(Path(__file__).parents[2] / "search_spaces" / "papers")


def _loaded(name: str) -> Config:
    return resolve_sweep(load(FILES[name]))


@pytest.mark.parametrize("name", FILES)
def test_a_suite_is_expanded_to_as_many_runs_as_it_says(name: str) -> None:
    content = read_with_base(FILES[name])
    assert suites.unknown_names(content) == []
    assert set(suites.data_names(content)) <= set(FORMS)
    config = _loaded(name)
    seeds = config.sweep.seeds
    config = config.model_copy(
        update={"sweep": config.sweep.model_copy(update={"seeds": seeds[:1]})}
    )
    made = trial_specs(config, enumerate_settings(config))
    assert len(made) * len(seeds) == suites.run_count(content)
    small = suites.smoke(config, FORMS)
    axes = [
        set(one)
        for one in zip(
            *(p.setting.items() for p in trial_specs(small, enumerate_settings(small))), strict=True
        )
    ]
    assert axes == [set(one) for one in zip(*(p.setting.items() for p in made), strict=True)], (
        "smoke leaves arms out"
    )


def _narrow(experiment: Experiment) -> Experiment:
    """Return an experiment with narrow networks where they can be, and fewer samples where the domains are clients."""

    def choice(one: ModelChoice) -> ModelChoice:
        width = one.options.get("width")
        small = {} if width is None else {"width": 0.1 if isinstance(width, float) else 8}
        return one.model_copy(update={"options": {**one.options, **small}})

    subset = experiment.subset if experiment.partition.options.get("clients") else 30
    few = {"public_size": 16} if experiment.algorithm.options.get("public_size") else {}
    algorithm = experiment.algorithm.model_copy(
        update={"options": {**experiment.algorithm.options, **few}}
    )
    return experiment.model_copy(
        update={
            "subset": subset,
            "model": choice(experiment.model),
            "algorithm": algorithm,
            "models": {name: choice(one) for name, one in experiment.models.items()},
        }
    )


ONE_OF_EACH = ("fcclplus/table8", "fedco2/table1", "fedskc/table1", "lgmix/table1")


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in ONE_OF_EACH else pytest.mark.slow) for one in FILES],
)
def test_the_first_run_of_a_suites_smoke_form(name: str) -> None:
    config = suites.smoke(_loaded(name), FORMS)
    experiment = _narrow(trial_specs(config, enumerate_settings(config)[:1])[0].experiment)
    federation = inline_federation(build_spec(experiment), lambda line: None)
    try:
        metrics = federation.step().metrics
    finally:
        federation.close()
    assert metrics["train/steps"] > 0
    assert any(metric.startswith(("global/", "personal/")) for metric in metrics)


def test_a_smoke_form_runs_where_the_data_are_not_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    assert len(sweeps.plan(FILES["fcclplus/table8"], smoke=True)) > 1
    with pytest.raises(FlrayError, match="digits5"):
        sweeps.plan(FILES["fcclplus/table8"])

    small = suites.smoke(_loaded("fcclplus/table8"), {"digits5"})
    assert small.experiment.data.name == "stand-in"
    assert suites.stand_in_line(small.model_dump(mode="json")).endswith("not here: digits5")
    assert suites.stand_in_line(_loaded("fcclplus/table8").model_dump(mode="json")) == ""
    (tmp_path / "here.zip").touch()
    for path, name in ((tmp_path / "here.zip", "office31"), (tmp_path / "gone.zip", "stand-in")):
        own = load({"experiment": {**MINE, "data": {"name": "office31", "path": str(path)}}})
        assert suites.smoke(own, FORMS).experiment.data.name == name
