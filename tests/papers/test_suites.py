"""Every suite is expanded, has every printed number once, and the first run of its smoke form is run.

That run is on noise in the form of its data: names of domains and options of methods that a suite
gets wrong are found so without any download.
"""

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest

from flray import api as sweeps
from flray.config import suites
from flray.config.components import ModelChoice
from flray.config.experiment import Config, Experiment
from flray.config.loader import load
from flray.config.paper import PaperTable
from flray.config.yaml_files import read_with_base
from flray.data.datasets.stand_in import FORMS
from flray.errors import FlrayError
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation
from flray.papers import printed_numbers, tables
from flray.results.table import printed_rows
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs

ALL = suites.files(Path(__file__).parents[2] / "search_spaces" / "papers")
# Those on other data are no tables.
FILES = [name for name in ALL if "/local" not in name]
EXPECTED = {
    "fedco2": [f"table{n}" for n in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13)]
    + [f"fig{n}" for n in range(3, 8)],
    "fcclplus": [f"table{n}" for n in range(8, 20)] + [f"fig{n}" for n in range(6, 11)],
    "fedskc": [f"table{n}" for n in range(1, 6)] + ["fig3", "fig4"],
    "lgmix": [f"table{n}" for n in (1, 2, 3, 4, 6, 7, 8, 9, 10)] + ["fig2", "fig3", "fig4"],
}
LOCAL = {
    "fedco2": ["local", "local-office", "local-300"],
    "fcclplus": ["local", "local-20"],
    "fedskc": ["local", "local-cifar", "local-lt"],
    "lgmix": ["local", "local-100"],
}


@functools.cache
def _loaded(name: str) -> Config:
    return resolve_sweep(load(ALL[name]))


def test_every_table_and_figure_has_its_suite() -> None:
    for found, wanted in ((FILES, EXPECTED), ([one for one in ALL if one not in FILES], LOCAL)):
        assert found == [f"{paper}/{one}" for paper, names in wanted.items() for one in names]


@pytest.mark.parametrize("name", ALL)
def test_a_suite_is_expanded_to_as_many_runs_as_it_says(name: str) -> None:
    content = read_with_base(ALL[name])
    assert suites.unknown_names(content) == []
    assert set(suites.data_names(content)) <= set(FORMS)
    config = _loaded(name)
    seeds = config.sweep.seeds
    first = config.sweep.model_copy(update={"seeds": seeds[:1]})
    config = config.model_copy(update={"sweep": first})
    small = suites.smoke(config, FORMS)
    made, tried = (trial_specs(one, enumerate_settings(one)) for one in (config, small))
    assert len(made) * len(seeds) == suites.run_count(content)
    arms, smoke = (
        [set(one) for one in zip(*(p.setting.items() for p in points), strict=True)]
        for points in (made, tried)
    )
    assert arms == smoke, "smoke leaves arms out"


@pytest.mark.parametrize("name", FILES)
def test_a_suite_names_its_own_table_and_arms(name: str) -> None:
    content = read_with_base(ALL[name])
    paper, arms = PaperTable.model_validate(content["paper"]), content["arms"]
    assert f"{paper.name}/{paper.table}" == name
    assert content["experiment"]["name"] == name.replace("/", "-")
    assert paper.rows in arms
    sweep = content.get("sweep") or {}
    for rule in [sweep.get("only") or {}, *sweep.get("skip", [])]:
        assert all(set(names) <= set(arms[axis]) for axis, names in rule.items())
    for axis, printed in content["paper"].get("printed", {}).items():
        assert set(printed) <= set(arms[axis]), axis


def _combinations(content: dict[str, Any]) -> list[list[tuple[str, str]]]:
    only = (content.get("sweep") or {}).get("only") or {}
    axes = {axis: only.get(axis, list(arms)) for axis, arms in content["arms"].items()}
    return [list(zip(axes, names, strict=True)) for names in itertools.product(*axes.values())]


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.split("/")[1] in tables()[name.split("/")[0]]]
)
def test_every_printed_number_has_exactly_one_cell(name: str) -> None:
    content = read_with_base(ALL[name])
    paper = PaperTable.model_validate(content["paper"])
    used: list[int] = []
    for arms in _combinations(content):
        for metric in paper.measures:
            found = printed_rows(paper, arms, metric)
            assert not found["client"].duplicated().any(), (arms, metric)
            used += list(found.index)
    frame = printed_numbers(paper.name, paper.table)
    wanted = frame[~frame["metric"].str.endswith("delta")]
    assert len(used) == len(set(used))
    missing = wanted.drop(index=[index for index in used if index in wanted.index])
    assert missing.empty, missing.to_string()


def _narrow(experiment: Experiment) -> Experiment:
    """Return an experiment with narrow networks where they can be, and fewer samples where the domains are clients."""

    def choice(one: ModelChoice) -> ModelChoice:
        width = one.options.get("width")
        small = {} if width is None else {"width": 0.1 if isinstance(width, float) else 8}
        return one.model_copy(update={"options": {**one.options, **small}})

    options = dict(experiment.algorithm.options)
    if options.get("public_size"):
        options["public_size"] = 16
    return experiment.model_copy(
        update={
            "subset": experiment.subset if experiment.partition.options.get("clients") else 30,
            "model": choice(experiment.model),
            "algorithm": experiment.algorithm.model_copy(update={"options": options}),
            "models": {name: choice(one) for name, one in experiment.models.items()},
        }
    )


ONE_OF_EACH = ("fcclplus/table8", "fedco2/table1", "fedskc/table1", "lgmix/table1")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in ONE_OF_EACH else pytest.mark.slow) for one in ALL]
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
    name = "fcclplus/table8"
    assert len(sweeps.plan(ALL[name], smoke=True)) > 1
    with pytest.raises(FlrayError, match="digits5"):
        sweeps.plan(ALL[name])
    small = suites.smoke(_loaded(name), {"digits5"})
    assert small.experiment.data.name == "stand-in"
    assert suites.stand_in_line(small.model_dump(mode="json")).endswith("not here: digits5")
    assert suites.stand_in_line(_loaded(name).model_dump(mode="json")) == ""
    (tmp_path / "here.zip").touch()
    for file, used in (("here.zip", "office31"), ("gone.zip", "stand-in")):
        data = {"name": "office31", "path": str(tmp_path / file)}
        own = load({"experiment": {"model": "lenet", "algorithm": "fedavg", "data": data}})
        assert suites.smoke(own, FORMS).experiment.data.name == used
