"""Every suite against the printed numbers; what it needs to be run is tested where its names are registered."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from flray.config import suites
from flray.config.paper import PaperTable
from flray.config.yaml_files import read_with_base
from flray.papers import printed_numbers, tables
from flray.results.table import printed_rows

ALL = suites.files(Path(__file__).parents[2] / "search_spaces" / "papers")
# Those on other data are no tables.
FILES = {name: path for name, path in ALL.items() if "/local" not in name}
EXPECTED = {
    "fedco2": [f"table{n}" for n in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13)]
    + [f"fig{n}" for n in range(3, 8)],
    "fcclplus": [f"table{n}" for n in range(8, 20)] + [f"fig{n}" for n in range(6, 11)],
    "fedskc": [f"table{n}" for n in range(1, 6)] + ["fig3", "fig4"],
    "lgmix": [f"table{n}" for n in (1, 2, 3, 4, 6, 7, 8, 9, 10)] + ["fig2", "fig3", "fig4"],
}
every = pytest.mark.parametrize("name", FILES)


def _combinations(content: dict[str, Any]) -> list[list[tuple[str, str]]]:
    only = (content.get("sweep") or {}).get("only") or {}
    axes = {axis: only.get(axis, list(arms)) for axis, arms in content["arms"].items()}
    return [list(zip(axes, names, strict=True)) for names in itertools.product(*axes.values())]


def test_every_table_and_figure_has_its_suite() -> None:
    assert [name for name in ALL if name not in FILES] == [
        "fedco2/local",
        "fedco2/local-office",
        "fedco2/local-300",
        "fcclplus/local",
        "fcclplus/local-20",
        "fedskc/local",
        "fedskc/local-cifar",
        "fedskc/local-lt",
        "lgmix/local",
        "lgmix/local-100",
    ]
    assert list(FILES) == [
        f"{paper}/{table}" for paper, names in EXPECTED.items() for table in names
    ]


@every
def test_a_suite_names_its_own_table(name: str) -> None:
    content = read_with_base(FILES[name])
    paper = PaperTable.model_validate(content["paper"])
    assert f"{paper.name}/{paper.table}" == name
    assert content["experiment"]["name"] == name.replace("/", "-")
    assert paper.rows in content["arms"]


@every
def test_arms_that_are_named_elsewhere_exist(name: str) -> None:
    content = read_with_base(FILES[name])
    arms, sweep = content["arms"], content.get("sweep") or {}
    for rule in [sweep.get("only") or {}, *sweep.get("skip", [])]:
        assert all(set(names) <= set(arms[axis]) for axis, names in rule.items())
    for axis, printed in content["paper"].get("printed", {}).items():
        assert set(printed) <= set(arms[axis]), axis


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.split("/")[1] in tables()[name.split("/")[0]]]
)
def test_every_printed_number_has_exactly_one_cell(name: str) -> None:
    content = read_with_base(FILES[name])
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
