import pytest

from flray.errors import FlrayError
from flray.papers import COLUMNS, PAPERS, printed_numbers, tables


def _all() -> list[tuple[str, str]]:
    return [(paper, table) for paper, names in tables().items() for table in names]


def test_all_2455_printed_numbers_are_there() -> None:
    frames = {key: printed_numbers(*key) for key in _all()}
    assert len(frames) == 46
    assert sum(map(len, frames.values())) == 2455
    for (paper, table), frame in frames.items():
        assert tuple(frame.columns) == (*COLUMNS, "number", "spread")
        assert set(frame["paper"]) == {paper} and set(frame["table"]) == {table}


@pytest.mark.parametrize(
    ("paper", "table", "where", "value", "spread"),
    [
        ("fedco2", "table1", {"method": "local", "client": "amazon"}, 54.9, 1.5),
        (
            "fedskc",
            "table1",
            {"method": "fedskc", "dataset": "cifar10", "setting": "dirichlet:0.2"},
            82.35,
            None,
        ),
        (
            "fcclplus",
            "table8",
            {"method": "fcclplus", "dataset": "digits4", "client": "avg", "metric": "inter_acc"},
            50.49,
            None,
        ),
        (
            "fcclplus",
            "fig7",
            {"setting": "heterogeneous,public=tinyimagenet,ablation:fccm"},
            35.70,
            None,
        ),
    ],
)
def test_numbers_as_printed(
    paper: str, table: str, where: dict[str, str], value: float, spread: float | None
) -> None:
    frame = printed_numbers(paper, table)
    for column, wanted in where.items():
        frame = frame[frame[column] == wanted]
    assert len(frame) == 1
    assert frame["number"].item() == value
    assert frame["spread"].isna().item() if spread is None else frame["spread"].item() == spread


def test_every_value_is_a_number_or_said_not_to_be() -> None:
    for key in _all():
        frame = printed_numbers(*key)
        odd = frame[frame["number"].isna() & (frame["metric"] != "backbone")]
        assert all(
            note.startswith("illegible") or "setting table" in note for note in odd["note"]
        ), key
        assert (frame["spread"].notna() == (frame["std"] != "")).all(), key


def test_tables_come_in_the_order_of_the_paper() -> None:
    assert list(tables()) == list(PAPERS)
    assert tables()["fedskc"] == ["table1", "table2", "table3", "table4", "table5"]
    assert tables()["fedco2"][-1] == "table13"


def test_what_is_handed_out_can_be_changed_safely() -> None:
    frame = printed_numbers("fedco2", "table1")
    frame["method"] = "x"
    assert "fedco2" in set(printed_numbers("fedco2", "table1")["method"])


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(FlrayError, match="fedco2"):
        printed_numbers("fedco", "table1")
    with pytest.raises(FlrayError, match="table1"):
        printed_numbers("fedskc", "table9")
