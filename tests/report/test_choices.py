"""What was tried, what it reached and how much it mattered: numbers against those that went in."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flray.reporting import panels
from flray.reporting.sections import create_sections
from flray.results.choices import Choices, choices
from flray.results.load import load_folder
from flray.results.measures import group_trials
from flray.results.result_set import ResultSet
from flray.results.study import Studies, Study

RATES, PULLS = (0.01, 0.1, 1.0), (0.1, 0.5, 1.0)


def tried(bend: float = 1.0) -> Choices:
    settings = [{"local.lr": lr, "algorithm.mu": mu} for lr in RATES for mu in PULLS]
    scores = [
        80 - 10 * abs(math.log10(one["local.lr"]) + 1) - bend * one["algorithm.mu"]
        for one in settings
    ]
    names = ("local.lr", "algorithm.mu")
    return Choices("fedprox", "personal/validation/accuracy", names, settings, np.array(scores))


def test_a_heat_map_of_a_grid_shows_its_scores_and_marks_the_best() -> None:
    ((name, figure),) = panels.heat_maps([tried()])
    (axes,) = figure.axes
    assert (name, axes.get_xlabel(), axes.get_ylabel()) == ("grid", "mu", "local.lr")
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.1", "0.5", "1"]
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    assert shown[0, 1] == "79.9" and shown[2, 0] == "69"
    assert [text.get_text() for text in axes.texts if text.get_weight() == "bold"] == ["79.9"]


def test_combinations_that_were_not_all_run_have_no_heat_map() -> None:
    whole = tried()
    part = Choices(whole.name, whole.metric, whole.columns, whole.settings[1:], whole.scores[1:])
    assert list(panels.heat_maps([part])) == []


def test_parallel_coordinates_mark_the_best_setting_at_its_values() -> None:
    ((_, figure),) = panels.parallel_coordinates([tried()])
    (axes,) = figure.axes
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
    assert len(lines) == 9
    best = np.asarray(max(lines, key=lambda line: line.get_linewidth()).get_ydata(), float)
    assert best == pytest.approx([0.5, 0.0, 1.0])  # lr 0.1 in the middle of its decades, mu lowest
    worst = min(lines, key=lambda line: float(np.asarray(line.get_ydata())[-1]))
    assert np.asarray(worst.get_ydata(), float)[1:] == pytest.approx([1.0, 0.0])


def test_of_a_loss_the_lowest_is_drawn_on_top() -> None:
    found = tried()
    loss = Choices(
        found.name, "global/validation/loss", found.columns, found.settings, -found.scores
    )
    ((_, figure),) = panels.parallel_coordinates([loss])
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
    best = np.asarray(max(lines, key=lambda line: line.get_linewidth()).get_ydata(), float)
    assert best == pytest.approx([0.5, 0.0, 1.0])


def test_importance_is_what_moves_the_score() -> None:
    """Of a sum of two parts the shares are those of the parts' variances, which are known."""
    draws = np.random.default_rng(0).uniform(size=(200, 3))
    settings = [dict(zip("abc", map(float, row), strict=True)) for row in draws]
    found = Choices("m", "x", ("a", "b", "c"), settings, 3 * draws[:, 0] + draws[:, 1]).importance()
    assert list(found)[:2] == ["a", "b"] and sum(found.values()) == pytest.approx(1.0)
    assert found["a"] == pytest.approx(0.9, abs=0.04) and found["c"] < 0.02  # 9 : 1
    assert panels.importances([tried()]) == []  # nine settings are too few


def test_settings_of_a_sweep_are_grouped_by_what_is_compared(sweep: Path) -> None:
    source = load_folder(sweep)
    assert choices(source) == []  # arms are compared, not chosen
    for trial in source.trials:
        trial.setting["local.lr"] = 0.1 if "100" in str(trial.setting.pop("arms.data")) else 0.3
    found = choices(replace(source))
    assert [(one.name, one.columns) for one in found] == [
        (n, ("local.lr",)) for n in ("none", "full")
    ]
    assert dict(
        zip((one["local.lr"] for one in found[0].settings), found[0].scores, strict=True)
    ) == (pytest.approx({0.3: 71.0, 0.1: 51.0}))


def with_phases(sweep: Path) -> ResultSet:
    source = load_folder(sweep)
    for trial in source.trials:
        trial.history["time/train"] = 1.0 + trial.seed
        trial.history["time/evaluate"] = 0.25
        trial.history["time/round"] = 2.5
        trial.history["global/local/accuracy/client/c"] = 0.1
    return source


def test_seconds_by_phase_add_up_to_the_rounds(sweep: Path) -> None:
    panel = next(panels.phase_seconds(group_trials(with_phases(sweep))))
    assert list(panel.names) == ["none", "full"]
    assert {name: values[0] for name, values in panel.parts.items()} == pytest.approx(
        {"train": 6.0, "evaluate": 1.0, "other": 3.0}  # four rounds, two seeds
    )


def test_fairness_begins_with_the_client_that_is_served_worst(sweep: Path) -> None:
    panel = next(panels.client_quantiles(group_trials(with_phases(sweep))))
    line = panel.lines[0]
    assert list(line.x) == [0, 50, 100]
    assert list(line.y) == pytest.approx([10.0, 66.0, 76.0])  # seeds: 65 and 75, 67 and 77
    assert [list(one) for one in line.each] == [
        pytest.approx([10, 65, 75]),
        pytest.approx([10, 67, 77]),
    ]


def test_a_profile_is_a_step_at_every_distance_from_the_best() -> None:
    first = {"a": {0: 90.0, 1: 80.0}, "b": {0: 86.0, 1: 81.0}}
    metric = "global/common/accuracy"
    (panel,) = panels.profiles(Studies([Study("x", metric, first), Study("y", metric, first)]))
    a, b = panel.lines
    assert list(a.x) == pytest.approx([0, 1, 1, 4.2, 4.2]) and a.name == "a"
    assert list(b.x) == pytest.approx([0, 4, 4, 4.2, 4.2])
    assert list(a.y) == list(b.y) == [0.5, 0.5, 1, 1, 1]


def test_they_are_sections_of_the_report(sweep: Path) -> None:
    source = with_phases(sweep)
    for trial in source.trials:
        trial.setting["local.lr"] = 0.1 if "100" in str(trial.setting.pop("arms.data")) else 0.3
        trial.setting["algorithm.mu"] = 0.5
    titles = [section.title for section in create_sections(source)]
    assert {"Seconds by phase", "Fairness over clients"} <= set(titles)
    for trial, number in zip(source.trials, range(8), strict=True):
        trial.setting["local.lr"], trial.setting["algorithm.mu"] = number // 4, number // 2 % 2
        trial.setting["arms.modules"] = "none"
    again = {section.title: list(section.figures) for section in create_sections(replace(source))}
    assert again["Grids of two settings"] == ["grid"]
    assert again["Settings that were tried"] == ["parallel"]
