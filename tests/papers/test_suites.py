"""Every suite is what its paper says, has every printed number once, and the first run of its smoke form is run.

That run is on noise in the form of its data: names of domains and options of methods that a suite
gets wrong are found so without any download.
"""

import contextlib
import functools
import itertools
from pathlib import Path
from typing import Any

import pytest

from flray import api as sweeps
from flray import registry
from flray.config import suites
from flray.config.arms import PREFIX
from flray.config.components import ModelChoice
from flray.config.experiment import Config, Experiment
from flray.config.loader import experiment_at, load
from flray.config.sweep import PaperTable
from flray.config.yaml_files import read_with_base
from flray.data.datasets.stand_in import FORMS
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation
from flray.papers import printed_numbers, tables
from flray.results.table import printed_rows
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs
from tests.messages import refused
from tests.papers.protocols import PAPERS, read
from tests.papers.protocols.facts import as_facts, facts, matches

ALL = suites.files(Path(__file__).parents[2] / "search_spaces" / "papers")
# Those on other data are no tables.
FILES = [name for name in ALL if "/local" not in name]
WRITTEN = {f"{p}/{name}": suite for p in PAPERS for name, suite in read(p).suites.items()}
MEASURES = {name: fact for paper in PAPERS for name, fact in read(paper).measures.items()}
# Values of a preset that an arm replaces.
REPLACED = {("fcclplus/table15", "moon (μ = 5)"): {"mu": 5.0}}


@functools.cache
def _loaded(name: str) -> Config:
    return resolve_sweep(load(ALL[name]))


@functools.cache
def _runs(name: str) -> list[tuple[dict[str, str], Experiment]]:
    """Return the runs of a suite's first seed, by their arms."""
    config, runs = _loaded(name), []
    for setting in enumerate_settings(config):
        arms = {path.removeprefix(PREFIX): str(arm) for path, arm in setting.items()}
        runs.append((arms, experiment_at(config, {**setting, "seed": config.sweep.seeds[0]})))
    return runs


def test_every_suite_is_written_down() -> None:
    assert set(WRITTEN) == set(ALL) and set(MEASURES) <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_a_suite_is_expanded_to_as_many_runs_as_it_says(name: str) -> None:
    content = read_with_base(ALL[name])
    assert set(suites.data_names(content)) <= set(FORMS)
    whole = _loaded(name)
    first = whole.sweep.model_copy(update={"seeds": whole.sweep.seeds[:1]})
    config = whole.model_copy(update={"sweep": first})
    configs = (config, suites.smoke(config, FORMS))
    made, tried = ([p.setting for p in trial_specs(c, enumerate_settings(c))] for c in configs)
    assert len(made) * len(whole.sweep.seeds) == suites.run_count(content)
    arms, smoke = ([{one[axis] for one in points} for axis in made[0]] for points in (made, tried))
    assert arms == smoke, "smoke leaves arms out"


@pytest.mark.parametrize("name", FILES)
def test_a_suite_names_its_own_table_and_arms(name: str) -> None:
    content = read_with_base(ALL[name])
    paper, arms = PaperTable.model_validate(content["paper"]), content["arms"]
    assert f"{paper.name}/{paper.table}" == name
    assert content["experiment"]["name"] == name.replace("/", "-") and paper.rows in arms
    for axis, printed in content["paper"].get("printed", {}).items():
        assert set(printed) <= set(arms[axis]), axis


PRINTED = {f"{paper}/{table}" for paper, names in tables().items() for table in names}


@pytest.mark.parametrize("name", [name for name in FILES if name in PRINTED])
def test_every_printed_number_has_exactly_one_cell(name: str) -> None:
    content = read_with_base(ALL[name])
    paper = PaperTable.model_validate(content["paper"])
    used: list[int] = []
    only = (content.get("sweep") or {}).get("only") or {}
    axes = {axis: only.get(axis, list(arms)) for axis, arms in content["arms"].items()}
    for names in itertools.product(*axes.values()):
        arms = list(zip(axes, names, strict=True))
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

    options, partition = dict(experiment.algorithm.options), experiment.partition
    if options.get("public_size"):
        options["public_size"] = 16
    few = 10 if partition.name == "domains" else 30
    changes: dict[str, Any] = {"model": choice(experiment.model)}
    changes |= {"models": {name: choice(one) for name, one in experiment.models.items()}}
    changes |= {"subset": experiment.subset if partition.options.get("clients") else few}
    changes |= {"algorithm": experiment.algorithm.model_copy(update={"options": options})}
    return experiment.model_copy(update=changes)


QUICK = ("fcclplus/table8", "fedco2/table1", "fedskc/table1", "lgmix/table1")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ALL if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_the_first_run_of_a_suites_smoke_form(name: str) -> None:
    config = suites.smoke(_loaded(name), FORMS)
    experiment = _narrow(trial_specs(config, enumerate_settings(config)[:1])[0].experiment)
    metrics = _first_round(experiment.model_copy(update={"name": "any"}).model_dump_json())
    assert metrics["train/steps"] > 0
    assert any(metric.startswith(("global/", "personal/")) for metric in metrics)


@functools.cache
def _first_round(experiment: str) -> dict[str, float]:
    """Return the metrics of a first round; many suites begin with the same run."""
    spec = build_spec(Experiment.model_validate_json(experiment))
    with contextlib.closing(inline_federation(spec, lambda line: None)) as federation:
        return federation.step().metrics


def test_a_smoke_form_runs_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    name = "fcclplus/table8"
    assert len(sweeps.plan(ALL[name], smoke=True)) > 1
    refused(sweeps.plan, ALL[name])
    small = suites.smoke(_loaded(name), {"digits4"})
    assert small.experiment.data.name == "stand-in"
    assert suites.stand_in_line(small.model_dump(mode="json")).endswith("not here: digits4")
    assert suites.stand_in_line(_loaded(name).model_dump(mode="json")) == ""
    (tmp_path / "here.zip").touch()
    for file, used in (("here.zip", "office31"), ("gone.zip", "stand-in")):
        data = {"name": "office31", "path": str(tmp_path / file)}
        own = load({"experiment": {"model": "lenet", "algorithm": "fedavg", "data": data}})
        assert suites.smoke(own, FORMS).experiment.data.name == used


@pytest.mark.parametrize("name", ALL)
def test_a_suites_runs_and_measures_are_those_of_its_paper(name: str) -> None:
    suite, seeds, paper = WRITTEN[name], _loaded(name).sweep.seeds, _loaded(name).paper
    measures, source = MEASURES.get(name, (None, "a suite without printed numbers"))
    assert (paper and paper.measures) == measures, source
    for arms, experiment in _runs(name):
        said = suite.expected(arms)
        assert all(source for _, source in said.values())
        wanted = as_facts({field: value for field, (value, _) in said.items()})
        found = facts(experiment, len(seeds), wanted)
        if matches(found.get("images"), wanted.get("images")):
            found["images"] = wanted.get("images")
        wrong = {
            field: f"found {found.get(field)}, and {said.get(field, ('nothing', ''))[1]} has {wanted.get(field)}"
            for field in {"images": None, **wanted, **found}
            if found.get(field) != wanted.get(field)
        }
        assert not wrong, arms


@pytest.mark.parametrize("name", ALL)
def test_a_suite_uses_its_papers_preset_wherever_a_method_has_one(name: str) -> None:
    paper = name.split("/")[0]
    for arms, experiment in _runs(name):
        replaced = REPLACED.get((name, arms.get("method", "")), {})
        presets = [
            {**preset.values, **replaced}
            for preset in registry.algorithms.params(experiment.algorithm.name).presets
            if preset.name == paper or preset.name.startswith(f"{paper}-")
        ]
        options = experiment.algorithm.options
        assert not presets or any(values.items() <= options.items() for values in presets), arms


def test_a_written_arm_is_one_of_a_suite_of_its_paper() -> None:
    """Tables of methods are shared by suites; an arm that no suite of the paper has is a mistake."""
    known: dict[tuple[str, str], set[str]] = {}
    for name in ALL:
        for axis, arms in _loaded(name).arms.items():
            known.setdefault((name.split("/")[0], axis), set()).update(arms)
    for name, suite in WRITTEN.items():
        for axis, rows in suite.arms.items():
            assert set(rows) <= known[name.split("/")[0], axis], (name, axis)
