from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flray import tune
from flray.config.loader import load
from flray.errors import FlrayError
from flray.records import directory
from flray.results.load import load_folder
from flray.results.sweep import SweepResult
from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs
from flray.tuning.trial_store import TrialFolder, next_session, suggested_settings, trial_folders


@pytest.fixture
def sweep(content: dict[str, Any], tmp_path: Path) -> Path:
    """A sweep's folder with two methods at two seeds, one trial stopped early, and a third method that failed."""
    content["space"] = {"algorithm": {"grid": ["fedavg", {"name": "fedprox", "mu": 0.5}, "local"]}}
    config = resolve_sweep(load(content))
    directory.save_config(tmp_path, config)
    directory.write(tmp_path, "sweep", directory.new_identity())
    parent = directory.read(tmp_path)
    finals = {"0001": (0.8, 3), "0002": (0.9, 3), "0003": (0.6, 3), "0004": (0.5, 1)}
    for point in trial_specs(config, enumerate_settings(config)):
        folder = TrialFolder(tmp_path, point.number)
        folder.create(point, config)
        session = folder.begin(point, parent, config)
        final, rounds = finals.get(point.number, (0.0, 0))
        for round_ in range(1, rounds + 1):
            score = final - 0.1 * (rounds - round_)
            session.journal.record_round(
                round_,
                {
                    "score": score,
                    "global/common/accuracy": score,
                    "global/local/accuracy": score,
                    "global/local/accuracy/client/a": score + 0.05,
                    "global/local/accuracy/client/b": score - 0.05,
                    "time/round": 2.0,
                },
            )
        if rounds == 0:
            folder.end(
                session,
                "failed",
                failure="client 1 (b), round 1: ValueError: no\nmore",
                metric=None,
            )
        else:
            folder.end(
                session,
                "finished" if rounds == 3 else "stopped",
                metric="global/common/accuracy",
                sha256="ab" if rounds == 3 else None,
            )
        session.close()
    return tmp_path


def test_a_row_per_trial(sweep: Path) -> None:
    table = SweepResult(sweep).results
    assert list(table["status"]) == [
        "finished",
        "finished",
        "finished",
        "stopped",
        "failed",
        "failed",
    ]
    assert list(table["algorithm"]) == ["fedavg"] * 2 + ["fedprox"] * 2 + ["local"] * 2
    assert list(table["rounds"]) == [3, 3, 3, 1, 0, 0]
    assert list(table["seconds"]) == [6.0, 6.0, 6.0, 2.0, 0.0, 0.0]
    assert table["client/a"][1] == pytest.approx(0.95) and table["client/b"][3] == pytest.approx(
        0.45
    )
    assert math.isnan(table["score"][4])


def test_mean_and_standard_deviation_over_seeds(sweep: Path) -> None:
    summary = SweepResult(sweep).summary
    assert list(summary["algorithm"]) == ["fedavg", "fedprox", "local"]
    first, second, third = summary.to_dict("records")
    assert first["score"] == pytest.approx(0.85) and first["score_std"] == pytest.approx(
        0.1 / math.sqrt(2)
    )
    assert first["client/a"] == pytest.approx(0.90) and first["client/a_std"] == pytest.approx(
        0.1 / math.sqrt(2)
    )
    assert (first["seeds"], first["rounds_min"], first["rounds_max"], first["stopped"]) == (
        2,
        3,
        3,
        0,
    )
    assert (second["seeds"], second["rounds_min"], second["rounds_max"], second["stopped"]) == (
        2,
        1,
        3,
        1,
    )
    assert (third["seeds"], third["failed"]) == (0, 2) and math.isnan(third["score"])
    assert SweepResult(sweep).best["algorithm"] == "fedavg"


def test_the_table_says_what_matters(sweep: Path) -> None:
    buffer = io.StringIO()
    Console(file=buffer, width=160).print(SweepResult(sweep).table())
    lines = buffer.getvalue().splitlines()
    heading = next(line for line in lines if "algorithm" in line)
    assert "algorithm.mu" not in heading and "a" in heading and "rounds" in heading
    fedavg, fedprox = (
        next(line for line in lines if name in line) for name in ("fedavg", "fedprox")
    )
    assert "85.00 ± 7.07" in fedavg and "90.00 ± 7.07" in fedavg and "80.00 ± 7.07" in fedavg
    assert "1-3 *" in fedprox
    assert any("1 of 6 trials stopped early, after 1 round" in line for line in lines)
    failed = "trials 0005 (local seed=0), 0006 (local seed=1) failed: client 1 (b), round 1: ValueError: no"
    assert failed in " ".join(" ".join(lines).split())


def test_a_population_of_an_earlier_version_is_not_reported(sweep: Path) -> None:
    """Its settings changed while it ran, so those at the start are not the ones of its scores."""
    directory.update(TrialFolder(sweep, "0002").path, setting_at_end={"algorithm": "fedavg"})
    with pytest.raises(FlrayError, match=r"0002: found a trial of population based training"):
        load_folder(sweep)


def test_the_folder_is_all_a_resume_needs(sweep: Path) -> None:
    assert [f.number for f in trial_folders(sweep)] == [f"{i:04d}" for i in range(1, 7)]
    assert suggested_settings(sweep, seeds=2) == [
        {"algorithm": "fedavg"},
        {"algorithm": {"mu": 0.5, "name": "fedprox"}},
        {"algorithm": "local"},
    ]
    assert trial_folders(sweep)[3].scores() == [(1, 0.5)]
    assert next_session(str(sweep / "tune")) == "001"
    (sweep / "tune" / "007").mkdir(parents=True)
    assert next_session(str(sweep / "tune")) == "008"


@pytest.mark.parametrize(
    ("protocol", "score", "client"),
    [("last", 0.5, 0.55), ("best", 0.7, 0.75), ("mean-last", 0.6, 0.65)],
)
def test_the_protocol_decides_the_score(
    content: dict[str, Any], tmp_path: Path, protocol: str, score: float, client: float
) -> None:
    content["experiment"]["evaluation"] = {
        "validation": 0.2,
        "protocol": protocol,
        "last": 2,
        "every": 2,
    }
    content["space"] = {"algorithm": {"grid": ["fedavg"]}}
    config = resolve_sweep(load(content))
    directory.save_config(tmp_path, config)
    directory.write(tmp_path, "sweep", directory.new_identity())
    for point in trial_specs(config, enumerate_settings(config)):
        folder = TrialFolder(tmp_path, point.number)
        folder.create(point, config)
        session = folder.begin(point, directory.read(tmp_path), config)
        for round_, test, validation in ((2, 0.3, 0.4), (4, 0.7, 0.9), (6, 0.5, 0.8)):
            session.journal.record_round(
                round_ - 1, {"score": test - 0.2, "time/round": 1.0}
            )  # not evaluated: an old score
            session.journal.record_round(
                round_,
                {
                    "score": test,
                    "global/common/accuracy": test,
                    "global/validation/accuracy": validation,
                    "global/local/accuracy/client/a": test + 0.05,
                    "time/round": 1.0,
                },
            )
        folder.end(session, "finished", metric="global/common/accuracy", sha256="ab")
        session.close()
    result = SweepResult(tmp_path)
    assert result.best["score"] == pytest.approx(score)
    assert result.results["client/a"].tolist() == pytest.approx([client] * len(result.results))
    assert result.results["seconds"].tolist() == [6.0] * len(result.results)
    note = {
        "last": "seeds",
        "best": "seeds, best round on validation",
        "mean-last": "mean of the last evaluations",
    }
    assert str(result.table().title).endswith(note[protocol])


def test_one_arm_that_was_chosen_is_named_by_its_own_method(
    content: dict[str, Any], tmp_path: Path
) -> None:
    """Where nothing varies, the name is the method that ran, which need not be the base's."""
    del content["space"]
    content["arms"] = {"method": {"plain": None, "prox": {"algorithm": "fedprox"}}}
    content["sweep"] = {"seeds": [0], "only": {"method": ["prox"]}}
    content["experiment"]["rounds"] = 1
    result = tune(content)
    assert list(result.scores()) == ["fedprox"]
    console = Console(file=(shown := io.StringIO()), width=200)
    console.print(result.table())
    assert "fedprox" in shown.getvalue() and "fedavg" not in shown.getvalue()
