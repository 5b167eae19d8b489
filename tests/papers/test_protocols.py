"""Every run of every suite against what the paper, or its released code, says of it."""

import functools
from pathlib import Path

import pytest

from flray import registry
from flray.config import suites
from flray.config.arms import PREFIX
from flray.config.experiment import Config, Experiment
from flray.config.loader import experiment_at, load
from flray.tuning.space import enumerate_settings, resolve_sweep
from tests.papers.protocols import Suite, fcclplus, fedco2, fedco2_labels, fedskc, lgmix
from tests.papers.protocols.facts import as_facts, facts, matches
from tests.papers.protocols.measures import WRITTEN as MEASURES

FILES = suites.files(Path(__file__).parents[2] / "search_spaces" / "papers")
WRITTEN: dict[str, Suite] = {
    f"{paper}/{name}": suite
    for paper, tables in (
        ("fedco2", fedco2.SUITES | fedco2_labels.SUITES),
        ("fcclplus", fcclplus.SUITES),
        ("fedskc", fedskc.SUITES),
        ("lgmix", lgmix.SUITES),
    )
    for name, suite in tables.items()
}
# Values of a preset that an arm replaces.
REPLACED = {("fcclplus/table15", "moon (μ = 5)"): {"mu": 5.0}}


@functools.cache
def _config(name: str) -> Config:
    return resolve_sweep(load(FILES[name]))


@functools.cache
def _runs(name: str) -> list[tuple[dict[str, str], Experiment]]:
    """Return the runs of a suite's first seed, by their arms."""
    config = _config(name)
    return [
        (
            {path.removeprefix(PREFIX): str(arm) for path, arm in setting.items()},
            experiment_at(config, {**setting, "seed": config.sweep.seeds[0]}),
        )
        for setting in enumerate_settings(config)
    ]


def test_every_suite_is_written_down() -> None:
    assert set(WRITTEN) == set(FILES) and set(MEASURES) <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_suites_runs_and_measures_are_those_of_its_paper(name: str) -> None:
    suite, seeds, paper = WRITTEN[name], _config(name).sweep.seeds, _config(name).paper
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


@pytest.mark.parametrize("name", FILES)
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
    for name in FILES:
        for axis, arms in _config(name).arms.items():
            known.setdefault((name.split("/")[0], axis), set()).update(arms)
    for name, suite in WRITTEN.items():
        for axis, rows in suite.arms.items():
            assert set(rows) <= known[name.split("/")[0], axis], (name, axis)
