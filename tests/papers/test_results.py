"""The kept results of the suites on local data: each file belongs to its suite as the suite now is."""

from __future__ import annotations

from pathlib import Path

import pytest

from flray import registry
from flray.config import suites
from flray.config.arms import PREFIX
from flray.config.loader import load
from flray.config.setting_labels import flatten_setting
from flray.records import directory
from flray.results import export
from flray.results.export import build_export_table, read_export
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs

FOLDER = Path(__file__).parents[2] / "search_spaces" / "papers"
KEPT = sorted(FOLDER.glob("*/*.results.csv"))


def test_some_are_kept() -> None:
    assert {path.parent.name for path in KEPT} >= {"fedco2", "fedskc", "lgmix"}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_kept_results_are_those_of_their_suite(path: Path) -> None:
    name = f"{path.parent.name}/{path.name.removesuffix('.results.csv')}"
    config = resolve_sweep(load(suites.files(FOLDER)[name]))
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
        assert (
            set(directory.versions()) >= {"python", "flray", "torch", "numpy"}
            and row["torch"]
            and row["flray"]
        )
    domains = [str(column) for column in frame.columns if str(column).startswith(export.DOMAIN)]
    assert all(frame[domain].between(0, 100).all() for domain in domains)
    assert frame["data_sha256"].nunique() == frame["data"].nunique() == 1
    partitions = frame.groupby("seed")["partition_sha256"].nunique()
    assert (partitions == 1).all(), "methods were compared on different partitions"


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_their_table_can_be_made_again(path: Path) -> None:
    frame = read_export(path)
    made = build_export_table(frame)
    mixed = (
        frame["metric"].nunique() > 1
    )  # then all are means over clients, on their own test parts
    for label, row in made.rows.items():
        values = frame[frame[f"{PREFIX}method"] == label]["own" if mixed else "value"]
        assert row[0].mean == pytest.approx(values.mean()) and row[0].std == pytest.approx(
            values.std()
        )
