"""Figures of trials, drawn by several processes."""

import shutil
import sys
from pathlib import Path

import pytest

from flray.records.journal import read_events
from flray.tuning import summary

SWEEP = Path(__file__).parents[1] / "fixtures" / "begun_sweep"


@pytest.mark.parametrize("python", [sys.executable, "false"])
def test_several_processes_draw_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    """Also where they fail: what they leave is drawn here."""
    lines: list[str] = []
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr(summary, "usable_cpus", lambda: 2)
    found = []
    for least in (20, 1):
        monkeypatch.setattr(summary, "TRIALS_PER_PROCESS", least)
        folder = tmp_path / str(least)
        shutil.copytree(SWEEP, folder)
        summary.draw_trials(folder, lines.append)
        found.append(
            {
                trial.name: [
                    event["path"] for event in read_events(trial) if event["type"] == "artifact"
                ]
                for trial in sorted((folder / "trials").iterdir())
            }
        )
        for trial, paths in found[-1].items():
            drawn = {path.name for path in (folder / "trials" / trial / "figures").iterdir()}
            assert drawn == {Path(path).name for path in paths if path.startswith("figures/")}
    assert found[0] == found[1] and len(found[0]) == 2
    assert "figures/curves.png" in found[0]["0001"]
    assert lines == ["the figures of 2 trials are drawn, in 2 processes"]
    summary.draw_trials(folder, lines.append)  # once
    assert [event["type"] for event in read_events(folder / "trials" / "0001")].count(
        "artifact"
    ) == len(found[1]["0001"])
