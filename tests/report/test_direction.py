"""Metrics of which less is better, and values below zero, infinite or undefined."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from flray.cli.comparison import _run_values
from flray.reporting.build import markdown
from flray.reporting.sections import client_quantile, client_values, learning_curve
from flray.results.build_studies import build_studies
from flray.results.costs import costs, group_trials
from flray.results.export import row_of
from flray.results.formatting import format_measured
from flray.results.measures import value
from flray.results.sweep import build_table
from flray.results.table import Cell
from flray.tuning.callback import Standing
from tests.helpers import Settings, cases
from tests.report.conftest import Edited, kept_copy, of_trials, one_round, plain

R2 = "global/common/r2"


def of_gaps(config: Settings) -> None:
    plain(config)
    config["sweep"].update(metric="global/common/gap", mode="min")


def test_the_file_s_word_on_a_direction_counts(sweep: Path, edited: Edited, tmp_path: Path) -> None:
    """Conclusions, order, costs and kept rows agree with the search; the metric's name tells nothing."""
    source = edited(of_gaps)
    for trial in source.trials:
        trial.metric = "global/common/gap"
        trial.history["global/common/gap"] = trial.history["global/common/accuracy"]
    for one in (source, kept_copy(source, tmp_path)):
        rows = [label for label in build_table(one).rows if "CIFAR-10" in label.split()]
        assert [label.split()[0] for label in rows] == ["none", "full"]
        assert {study.lower for study in build_studies(one).each} == {True}
    assert max(cost.target for cost in costs(source)) == pytest.approx(0.71 / 0.9)
    mine = Standing(tmp_path, {}, source.config["sweep"])
    assert mine._best("global/common/gap", {("a", ""): [0.2], ("b", ""): [0.1]}).startswith("b")


def test_the_round_and_the_worst_client_follow_the_files_word_too(edited: Edited) -> None:
    """Less is better: of rising values the first is the best, and the client with the larger one the worst."""
    source = edited(of_gaps)
    for trial in source.trials:
        trial.metric, trial.protocol = "global/common/gap", "best"
        trial.history["global/validation/gap"] = trial.history["global/common/accuracy"]
        for name in [name for name in trial.history if "/accuracy" in name]:
            trial.history[name.replace("accuracy", "gap")] = trial.history[name]
        trial.history["global/local/gap/client/c"] = trial.history["global/common/gap"]
    first = source.trials[0]
    assert first.reported.rounds == (1,)
    compared = {row[0]: row[1] for row in _run_values(*2 * [of_trials([first])])}
    assert compared["global/common/gap"] == f"{first.history['global/common/gap'].iloc[0]:.4f}"
    assert row_of(source, first)["worst"] == pytest.approx(45.0)  # client a; b has 35
    assert {column for _, column in next(client_values(group_trials(source))).marked} == {0}
    line = client_quantile("", [first])
    assert line is not None and list(line.y) == pytest.approx([45.0, 40.0, 35.0])


def test_the_target_of_a_loss_is_near_the_least_and_failed_runs_cost_nothing() -> None:
    values = ("fedavg", 0, 0.5, 9.0), ("fedavg", 1, 5.0, 1.0)
    values += ("fedbn", 0, 0.6, 9.0), ("fedbn", 1, 0.54, 9.0)
    trials, measure = [], "global/common/loss"
    for name, seed, loss, up in values:
        trials.append(one_round(name, seed, measure, **{measure: loss, "bytes/up": up}))
    trials[1].status = "failed"
    one, other = costs(of_trials(trials))
    assert one.target == pytest.approx(0.5 / 0.9)
    assert (one.reached, one.seeds, one.up) == (1, 2, 9.0)
    assert (other.reached, other.seeds) == (1, 2)
    assert [one.reached for one in costs(of_trials(trials), 0.55)] == [1, 1]


@cases(
    "measure, finals, target",
    """[global/common/r2, [-0.5, -0.9], -0.5556], [global/common/loss, [-0.5, -0.9], -0.81]""",
)
def test_the_target_may_be_below_zero(measure: str, finals: list[float], target: float) -> None:
    names = enumerate(("fedavg", "fedbn"))
    found = costs(of_trials([one_round(n, 0, measure, **{measure: finals[i]}) for i, n in names]))
    assert found[0].target == pytest.approx(target, abs=1e-4)
    assert sum(one.reached for one in found) == 1


def test_a_setting_that_diverged_is_last_and_reached_no_target() -> None:
    """R2 of infinite predictions is minus infinity, their loss infinity; both are no rounds."""
    trials = [
        one_round(name, seed, R2, **{R2: -math.inf if name == "fedbn" and seed else 0.5})
        for name in ("fedbn", "fedavg")
        for seed in (0, 1)
    ]
    table = build_table(of_trials(trials))
    assert list(table.rows) == ["fedavg", "fedbn"]
    assert format_measured(table.rows["fedbn"][0]) == "50.00 (1 of 2 seeds)"
    for trial in trials:
        for client in "ab":
            trial.history[f"global/local/r2/client/{client}"] = trial.history[R2]
    with np.errstate(invalid="raise"):  # numpy's warnings are no text for the user
        assert math.isnan(value(trials[1], "others/r2"))
        assert learning_curve("", trials[:2]) is not None
    assert format_measured(Cell({0: math.inf, 1: math.inf})) == "inf"
    undefined = of_trials([one_round("fedavg", 0, R2, **{R2: math.nan})])
    assert "target –)" in markdown(build_table(undefined), costs(undefined))


def test_every_place_has_a_target_of_its_own() -> None:
    measure, trials = "global/common/accuracy", []
    for method, (alpha, best) in itertools.product(("fedavg", "fedbn"), ((0.1, 0.5), (1.0, 0.9))):
        trials.append(one_round(method, 0, measure, **{measure: best}))
        trials[-1].setting["partition.alpha"] = alpha
    found = {(one.group, one.label): (one.target, one.reached) for one in costs(of_trials(trials))}
    names = itertools.product(("alpha=0.1", "alpha=1"), ("fedavg", "fedbn"))
    targets = [0.45, 0.45, 0.81, 0.81]
    assert found == {name: (pytest.approx(t), 1) for name, t in zip(names, targets, strict=True)}
