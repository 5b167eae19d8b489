"""The kept results on local data: each file belongs to its suite as it now is; pages say what reports say."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from flray import registry
from flray.config.arms import PREFIX, flatten_setting
from flray.config.loader import load
from flray.records import directory
from flray.results import export
from flray.results.conclusions import sentence
from flray.results.export import kept_results, read_export
from flray.results.sweep import build_table
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs

ROOT = Path(__file__).parents[2]
SPACES = ROOT / "search_spaces"
KEPT = sorted((SPACES / "papers").glob("*/*.results.csv"))
KEPT += (ROOT / "docs" / "results" / "pairs").glob("*.results.csv")
each = pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")


@pytest.fixture
def _without_their_plug_ins() -> Iterator[None]:
    yield
    registry.algorithms._entries.pop("pair", None)


@each
@pytest.mark.usefixtures("_without_their_plug_ins")
def test_kept_results_are_those_of_their_suite(path: Path) -> None:
    config = resolve_sweep(load(path.with_name(path.name.replace("results.csv", "yaml"))))
    planned = {
        (*flatten_setting(point.setting).values(), point.seed): point
        for point in trial_specs(config, enumerate_settings(config))
    }
    frame = read_export(path)
    axes = [f"{PREFIX}{axis}" for axis in config.arms]
    found = list(frame[[*axes, "seed"]].itertuples(index=False, name=None))
    assert len(found) == len(set(found)) and set(found) <= set(planned)
    seeds = {one[-1] for one in found}
    assert len(seeds) >= 3, "a suite may ask for more seeds and arms than were run yet"
    for arms in {one[:-1] for one in found}:
        assert {one[-1] for one in found if one[:-1] == arms} == seeds, arms
    for key, row in zip(found, frame.to_dict("records"), strict=True):
        experiment = planned[key].experiment
        assert (row["suite"], row["algorithm"]) == (experiment.name, experiment.algorithm.name)
        assert row["algorithm"] in registry.algorithms.names()
        assert (row["rounds"], row["data"]) == (experiment.rounds, experiment.data.name)
        assert 0 < row["value"] <= 100 and 0 <= row["worst"] <= row["own"]
        assert len(row["data_sha256"]) == len(row["partition_sha256"]) == 64
        assert row["torch"] and row["flray"]
    assert set(directory.versions()) >= {"python", "flray", "torch", "numpy"}
    domains = [str(column) for column in frame.columns if str(column).startswith(export.DOMAIN)]
    assert all(frame[domain].between(0, 100).all() for domain in domains)
    assert frame["data_sha256"].nunique() == frame["data"].nunique() == 1
    partitions = frame.groupby("seed")["partition_sha256"].nunique()
    assert (partitions == 1).all(), "methods were compared on different partitions"


_NUMBER = r"(-?\d+\.\d\d?)"
_INTERVAL_OF = rf"\((?:95 % interval (?:for all pairs )?)?{_NUMBER}\s+to\s+{_NUMBER}"
_INTERVAL = re.compile(_INTERVAL_OF)
_GIVEN = rf"(?:[^()]*?given\s+the\s+decision\s+{_NUMBER}\s+to\s+{_NUMBER})?"
_AMOUNT = re.compile(rf"{_NUMBER}(?: points?)?(?: above| apart)?\s+{_INTERVAL_OF}{_GIVEN}")


def unfounded(text: str, files: list[Path]) -> list[str]:
    """Return the claims that no sentence on two settings makes, of all pairs or all against any reference.

    Nor may a page say more than it seems, where a report says that something seems to be better.
    """
    said: dict[tuple[str, ...], set[bool]] = defaultdict(set)
    for found in [build_table(kept_results(read_export(file))).studies for file in files]:
        for name in sorted({name for study in found.each for name in study.values}):
            for study in found.against(name).each:
                for pair in study.differences:
                    line = sentence(pair.better_first(), study.unit)
                    for claim in _AMOUNT.findall(line):
                        said[claim].add("seems better" in line)
    wrong = []
    for claim in _AMOUNT.finditer(text):
        around = text[: claim.end()].rpartition("\n\n")[2].rpartition(". ")[2]
        only_seems = said[claim.groups("")] == {True}
        if not said[claim.groups("")] or (only_seems and "seem" not in around):
            wrong.append(f"{around} (seems)" if only_seems else around)
    return wrong


@pytest.mark.parametrize("paper", ["fcclplus", "fedco2", "fedskc", "lgmix"])
def test_a_page_of_results_says_what_reports_conclude(paper: str) -> None:
    text = (ROOT / "docs" / "results" / f"{paper}.md").read_text()
    claims = _AMOUNT.findall(text)
    kept = [path for path in KEPT if paper in (path.parent.name, path.name.partition(".")[0])]
    assert bool(claims) == bool(kept), "a page without kept results claims nothing"
    assert len(claims) == len(_INTERVAL.findall(text)) and unfounded(text, kept) == []


@pytest.mark.parametrize("page", ["README.md", "docs/guide/start.md", "docs/guide/how-sure.md"])
def test_other_pages_say_it_too(page: str) -> None:
    names = ("papers/lgmix/local", "quickstart", "tuned")
    files = [SPACES / f"{name}.results.csv" for name in names]
    files += (ROOT / "docs" / "results" / "tuned").glob("*.results.csv")
    text = (ROOT / page).read_text()
    assert _AMOUNT.search(text) and unfounded(text, files) == []
