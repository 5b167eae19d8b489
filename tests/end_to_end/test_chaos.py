"""A few of the kills of scripts/chaos, at moments fixed by a seed: one federation in one process and on two actors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Processes and the reference that both cases share."""
    scripts = str(Path(__file__).parents[2] / "scripts" / "chaos_tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(scripts)
        patch.setenv("RAY_AUTH_TOKEN", "")  # Place sets one, and the tests before had none
        from place import Place

        place = Place(tmp_path_factory.mktemp("chaos"), cold=False)
        yield place
        place.close()
        for name in ("killing", "catalogue", "facts", "place", "processes"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "seed", "victims"),
    [
        ("scaffold inline", 33, {"driver": 1.0}),
        ("scaffold 2 actors", 4, {"client": 1.0, "server": 1.0}),
    ],
)
def test_killed_federations_end_as_those_that_were_not(
    place: Any, name: str, seed: int, victims: dict[str, float]
) -> None:
    from dataclasses import replace

    from catalogue import catalogue  # type: ignore[import-not-found]
    from killing import Case

    (federation,) = (replace(f, victims=victims) for f in catalogue() if f.name == name)
    outcome = Case(place, federation, seed, 0, kills=2).run()
    assert outcome.differences == []
    assert sum(bool(kill.hit) for kill in outcome.kills) >= 1, outcome.kills
