"""What README and the pages say of results is what reports of the kept results say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flray.results.export import read_export
from flray.results.export_table import build_export_table

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "search_spaces"
_NUMBER = r"(-?\d+\.\d\d?)"
_INTERVAL = re.compile(rf"\((?:95 % interval )?{_NUMBER}\s+to\s+{_NUMBER}")
_AMOUNT = re.compile(
    rf"{_NUMBER}(?: points?)?(?: above| apart)?\s+\((?:95 % interval )?{_NUMBER}\s+to\s+{_NUMBER}"
)


def intervals(files: list[Path]) -> set[tuple[str, ...]]:
    """Mean and interval of every pair as sentences have them, with one digit or two, the better one first."""
    return {
        tuple(f"{number:.{digits}f}" for number in (one.mean, one.low, one.high))
        for file in files
        for study in build_export_table(read_export(file)).studies.each
        for one in (pair.better_first() for pair in study.differences)
        for digits in (1, 2)
    }


@pytest.mark.parametrize("page", ["fcclplus", "fedco2", "fedskc", "lgmix"])
def test_a_page_of_results_says_what_reports_conclude(page: str) -> None:
    text = (ROOT / "docs" / "results" / f"{page}.md").read_text()
    claims = _AMOUNT.findall(text)
    assert claims and len(claims) == len(_INTERVAL.findall(text))
    assert set(claims) <= intervals(sorted((KEPT / "papers" / page).glob("*.results.csv")))


@pytest.mark.parametrize("page", ["README.md", "docs/guide/start.md", "docs/guide/how-sure.md"])
def test_other_pages_say_it_too(page: str) -> None:
    kept = ("papers/lgmix/local", "quickstart", "tuned")
    files = [KEPT / f"{name}.results.csv" for name in kept]
    claims = _AMOUNT.findall((ROOT / page).read_text())
    assert claims and set(claims) <= intervals(files)
