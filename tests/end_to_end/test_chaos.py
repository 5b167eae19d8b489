"""Two of the kills of scripts/chaos, at operations on files that a seed fixes: no clock decides."""

import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By files, journal and MLflow; on Ray and in sweeps it is for scripts/chaos."""
    for folder in ("chaos_tests", "checks"):
        monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / folder))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")  # Place sets one, and the tests before had none
    from catalogue import catalogue  # type: ignore[import-not-found]
    from killing import Case  # type: ignore[import-not-found]
    from place import Place  # type: ignore[import-not-found]

    (federation,) = (one for one in catalogue() if one.name == "scaffold inline")
    place = Place(tmp_path / "chaos", cold=False)
    try:
        outcome = Case(place, federation, 1829, 0, kills=2).run()
    finally:
        place.close()
        for name in (
            "killing",
            "catalogue",
            "facts",
            "place",
            "processes",
            "digests",
            "digest_cases",
        ):
            sys.modules.pop(name, None)
    assert outcome.differences == []
    assert [kill.operation for kill in outcome.kills if kill.hit] == [56, 84], outcome.kills
