from pathlib import Path
from typing import Any

import pytest

from flray import api
from flray.config.loader import load
from flray.config.selection import selects_on_test
from flray.records import directory
from flray.records.journal import Journal
from flray.reporting.build import markdown
from flray.results.result_set import ResultSet
from flray.results.sweep import SweepResult, build_table
from flray.tuning import sweep as sweeps
from flray.tuning.space import resolve_sweep
from flray.tuning.trial_store import trial_folders
from tests.helpers import Said, small
from tests.report.conftest import Edited, plain

RATES = {"local.lr": {"grid": [0.01, 0.1]}}
LINE = "this sweep selects on test data (sweep.metric: auto)"


@pytest.mark.parametrize(
    ("space", "sweep", "selects"),
    [
        ({}, {}, False),
        ({"local.lr": {"loguniform": [0.01, 0.1]}}, {}, True),
        ({"experiment.local.lr": {"grid": [0.01, 0.1]}}, {}, True),
        ({"local.lr": {"grid": [0.01]}}, {}, False),
        ({"algorithm": {"grid": ["fedavg", {"name": "fedprox", "mu": 0.1}]}}, {}, False),
        ({"algorithm": {"grid": [{"name": "fedprox", "mu": mu} for mu in (1, 0.1)]}}, {}, True),
        ({"partition.alpha": {"grid": [0.1, 1.0]}}, {}, False),
        ({}, {"scheduler": {"name": "asha"}}, True),
        (RATES, {"metric": "personal/validation/accuracy"}, False),
        (RATES, {"metric": "personal/local/accuracy"}, True),
    ],
)
def test_what_selects_on_test_data(
    space: dict[str, Any], sweep: dict[str, Any], selects: bool
) -> None:
    assert bool(selects_on_test({"space": space, "sweep": {"metric": "auto", **sweep}})) == selects


def test_the_table_says_that_it_selects_on_test_data(edited: Edited, source: ResultSet) -> None:
    assert "test data" not in markdown(build_table(source), ())  # arms are compared
    drawn = edited(lambda config: config.update(space=RATES))  # as one that draws learning rates
    assert LINE in markdown(build_table(drawn), ())


def test_the_sweep_says_so_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:

    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(sweeps.Sweep, "_connect", lambda self: {})
    monkeypatch.setattr(sweeps.Sweep, "_run", stop)
    settings = small(partition={"name": "iid", "clients": 2}, output=str(tmp_path / "runs"))
    content = {"experiment": settings, "space": RATES}
    chosen = (
        "this sweep chooses by validation values, for which 0.2 of each client's training samples "
        "are kept, and reports test values"
    )
    on_test = {"sweep.metric": "auto"}, {"evaluation.validation": 0.0}
    for changes, line in ((on_test[0], LINE), (on_test[1], LINE), ({}, chosen)):
        with pytest.raises(Stop):
            api.tune(content, list(changes.items()), progress=(said := Said()))
        assert len(said.lines) == 1 and said.lines[0].startswith(line)


@pytest.mark.parametrize(
    ("changes", "experiment", "metric", "share"),
    [
        ({"space": RATES}, {}, "validation", 0.2),
        ({"sweep": {"scheduler": "asha"}}, {}, "validation", 0.2),
        ({"space": {"algorithm": {"grid": ["fedavg", "local"]}}}, {}, "auto", 0.0),
        ({"arms": {"method": {"a": {}, "b": {"local.lr": 0.5}}}}, {}, "auto", 0.0),
        ({"space": RATES, "sweep": {"metric": "auto"}}, {}, "auto", 0.0),
        # A file that says what is kept is followed.
        ({"space": RATES}, {"evaluation": {"validation": 0.0}}, "auto", 0.0),
        ({"space": RATES}, {"evaluation": {"validation": 0.1}}, "validation", 0.1),
        ({"space": RATES}, {"evaluation": {"every": 2}}, "validation", 0.2),
        ({"space": RATES}, {"split": [0.6, 0.2, 0.2]}, "validation", 0.0),
        ({"space": RATES}, {"split": [0.8, 0.0, 0.2]}, "auto", 0.0),
    ],
)
def test_a_sweep_that_chooses_keeps_validation_samples_by_default(
    content: dict[str, Any],
    changes: dict[str, Any],
    experiment: dict[str, Any],
    metric: str,
    share: float,
) -> None:
    del content["paper"], content["arms"]
    content["experiment"] |= experiment
    config = resolve_sweep(load({**content, **changes}))
    assert config.sweep.metric == metric and config.experiment.evaluation.validation == share
    # What was written down is read again alike, so that a sweep that began without goes on without.
    assert resolve_sweep(load(config.model_dump(mode="json"))) == config


def test_what_is_chosen_on_validation_is_reported_on_test(sweep: Path, edited: Edited) -> None:
    for folder in trial_folders(sweep):
        directory.update(folder.path, metric="global/validation/accuracy")
        with Journal(folder.path / directory.JOURNAL) as journal:
            for event in journal.rounds():
                # On validation data the other settings are the better ones.
                held = 1.0 - event["metrics"]["global/common/accuracy"]
                more = {"global/validation/accuracy": held, "score": held}
                journal.record_round(event["round"], {**event["metrics"], **more}, replace=True)
    rows = SweepResult(sweep).summary
    assert rows["score"].is_monotonic_decreasing and rows["test"].is_monotonic_increasing
    assert rows["test"].iloc[0] == pytest.approx(0.5)
    table = build_table(edited(plain))
    assert any(note.startswith("settings are chosen by global/valid") for note in table.notes)
    assert [column.head for column in table.columns][:2] == [("validation",), ("test",)]
    first = next(iter(table.rows.values()))
    assert first[0].mean == pytest.approx(50.0) and first[1].mean == pytest.approx(50.0)
