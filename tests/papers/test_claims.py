"""What README and the pages say of results is what reports of the kept results say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from flray.results.conclusions import sentence
from flray.results.export import build_export_table, read_export

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "search_spaces"
_NUMBER = r"(-?\d+\.\d\d?)"
_INTERVAL_OF = rf"\((?:95 % interval (?:for all pairs )?)?{_NUMBER}\s+to\s+{_NUMBER}"
_INTERVAL = re.compile(_INTERVAL_OF)
_AMOUNT = re.compile(rf"{_NUMBER}(?: points?)?(?: above| apart)?\s+{_INTERVAL_OF}")


def intervals(files: list[Path]) -> set[tuple[str, ...]]:
    """Mean and interval of every pair as sentences have them, all pairs or all against any reference."""
    found: set[tuple[str, ...]] = set()
    for study in (s for file in files for s in build_export_table(read_export(file)).studies.each):
        for reference in (None, *study.values):
            for pair in replace(study, reference=reference).differences:
                found |= set(_AMOUNT.findall(sentence(pair.better_first(), study.unit)))
    return found


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
