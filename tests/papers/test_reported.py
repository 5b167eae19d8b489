from typing import Any

import pytest

from flray.papers import COLUMNS, PAPERS, printed_numbers, tables
from tests.helpers import cases
from tests.messages import refused


def test_all_2455_printed_numbers_are_there_and_are_numbers_or_said_not_to_be() -> None:
    keys = [(paper, table) for paper, names in tables().items() for table in names]
    frames = {key: printed_numbers(*key) for key in keys}
    assert len(frames) == 46 and sum(map(len, frames.values())) == 2455
    for (paper, table), frame in frames.items():
        assert tuple(frame.columns) == (*COLUMNS, "number", "spread")
        assert set(frame["paper"]) == {paper} and set(frame["table"]) == {table}
        odd = frame[frame["number"].isna() & (frame["metric"] != "backbone")]["note"]
        assert all(note.startswith("illegible") or "setting table" in note for note in odd), table
        assert (frame["spread"].notna() == (frame["std"] != "")).all(), table


@cases(
    "table, where, value, spread",
    """[fedco2 table1, {method: local, client: amazon}, 54.9, [1.5]],
    [fedskc table1, {method: fedskc, dataset: cifar10, setting: 'dirichlet:0.2'}, 82.35, []],
    [fcclplus table8, {method: fcclplus, dataset: digits4, client: avg, metric: inter_acc}, 50.49, []],
    [fcclplus fig7, {setting: 'heterogeneous,public=tinyimagenet,ablation:fccm'}, 35.70, []]""",
)
def test_numbers_as_printed(table: str, where: dict[str, str], value: float, spread: Any) -> None:
    frame = printed_numbers(*table.split())
    for column, wanted in where.items():
        frame = frame[frame[column] == wanted]
    assert frame["number"].tolist() == [value] and frame["spread"].dropna().tolist() == spread


def test_tables_come_in_the_order_of_the_paper() -> None:
    assert list(tables()) == list(PAPERS)
    assert tables()["fedskc"] == [f"table{n}" for n in range(1, 6)]
    assert tables()["fedco2"][-1] == "table13"


def test_what_is_handed_out_can_be_changed_safely() -> None:
    printed_numbers("fedco2", "table1")["method"] = "x"
    assert "fedco2" in set(printed_numbers("fedco2", "table1")["method"])


@pytest.mark.parametrize(("paper", "table"), [("fedco", "table1"), ("fedskc", "table9")])
def test_unknown_names_are_refused_with_the_nearest(paper: str, table: str) -> None:
    refused(printed_numbers, paper, table)
