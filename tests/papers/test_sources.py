"""Every fact of the written protocols quotes the line of its paper, or of released code, that it rests on."""

import re

import pytest

from tests.papers.protocols import PAPERS, Row, read
from tests.papers.protocols.sources import faults, texts, wrong


def _rows(paper: str) -> dict[str, Row]:
    """Return all that is written of a paper."""
    rows: dict[str, Row] = {"measures": dict(read(paper).measures)}
    for name, suite in read(paper).suites.items():
        rows[name] = suite.runs
        rows |= {f"{name} {arm}": row for one in suite.arms.values() for arm, row in one.items()}
        rows |= {f"{name} {arms}": row for arms, row in suite.where}
    return rows


@pytest.mark.parametrize("paper", PAPERS)
def test_every_fact_quotes_the_text_that_it_rests_on(paper: str) -> None:
    found = {fault: name for name, row in _rows(paper).items() for fault in wrong(paper, row)}
    assert not found


@pytest.mark.parametrize("paper", PAPERS)
def test_no_text_is_kept_that_no_fact_quotes(paper: str) -> None:
    sources = {source for row in _rows(paper).values() for _, source in row.values()}
    used = {part.partition(": ")[0] for source in sources for part in source.split(" // ")}
    assert set(texts(paper)) <= used


LR = "section 5.1: SGD optimizer with a learning rate of 0.01"
TENTH = "FedBN utils/data_preprocess.py:144: 7438"


@pytest.mark.parametrize(
    ("value", "source", "named"),
    [
        (0.01, LR, ""),
        (0.1, LR, r"\[0.1\] of 0.1 is not quoted"),
        (0.01, LR.replace("SGD", "Adam"), "'section 5.1' has no 'Adam"),
        (0.01, LR.replace("5.1", "5.2"), "'section 5.2' has no"),
        (0.0, LR.removesuffix("1"), "'section 5.1' has no"),  # a number that is cut
        (0.01, "SGD with 0.01", "no quote"),
        (0.01, "ours: open", "does not say what is left open"),
        (0.01, "known: it is 0.01", "no quote"),
        (743, f"{TENTH} // known: a share of 0.1 // 743 = int(7438 * 0.1)", ""),
        (744, f"{TENTH} // known: a share of 0.1 // 743 = int(7438 * 0.1)", "744"),
        (743, f"{TENTH} // known: a share of 0.1 // 743 = int(7439 * 0.1)", "7439"),
        (744, f"{TENTH} // known: a share of 0.1 // 744 = int(7438 * 0.1)", "is 743"),
        (0.6, "appendix D.1: ratio of 0.6, 0.2, and 0.2", ""),
        ("adam 0.9 0.99", "section 5.1: use Adam optimizer", r"\[0.9, 0.99\]"),
    ],
)
def test_what_is_wrong_with_a_source_is_named(value: object, source: str, named: str) -> None:
    found = faults("lgmix", value, source)
    assert len(found) == bool(named)
    assert not named or re.search(named, found[0])
