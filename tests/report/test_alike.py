"""Global models and clients' own models are compared by means over the same test data."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from flray.config.loader import load
from flray.results.build_table import build_table
from flray.results.result_set import ALIKE_NOTE, ResultSet, Trial, alike

COMMON, LOCAL, OWN = (
    f"{view}/accuracy" for view in ("global/common", "global/local", "personal/local")
)


def trial(method: str, seed: int, metric: str, **values: float) -> Trial:
    history = pd.DataFrame({"round": [1], **{name: [value] for name, value in values.items()}})
    return Trial(
        f"{method}{seed}", {"algorithm": method}, seed, "finished", metric, history, method, Path()
    )


def config() -> dict[str, object]:
    experiment = {"data": "random", "model": "mlp", "algorithm": "fedavg"}
    return load({"experiment": experiment}).model_dump(mode="json")


@pytest.mark.parametrize(
    ("metrics", "judged"),
    [
        ([COMMON, COMMON], [COMMON, COMMON]),
        ([OWN, OWN], [OWN, OWN]),
        ([COMMON, OWN, ""], [LOCAL, OWN, ""]),
        (["global/common/dice", OWN], ["global/common/dice", OWN]),
        ([COMMON, "personal/others/accuracy"], [COMMON, "personal/others/accuracy"]),
    ],
)
def test_only_what_stands_beside_clients_models_is_tested_as_they_are(
    metrics: list[str], judged: list[str]
) -> None:
    assert alike(metrics) == judged


def test_the_common_test_set_in_which_large_clients_weigh_more_is_not_compared_with_a_mean() -> (
    None
):
    trials = []
    for seed in (0, 1, 2):  # a large client on which both score 0.2, and a small one, 0.9
        shaken = 0.001 * seed
        trials.append(
            trial(
                "fedavg",
                seed,
                COMMON,
                **{COMMON: 0.25 + shaken, LOCAL: 0.55 + shaken, "global/local/loss": 1.0},
            )
        )
        trials.append(trial("local", seed, OWN, **{OWN: 0.55 - 2 * shaken}))
    table = build_table(ResultSet("x", trials, config()))
    (study,) = table.studies.each
    assert study.values["fedavg"] == pytest.approx({0: 55.0, 1: 55.1, 2: 55.2})
    assert "not decided" in table.conclusions[0] and ALIKE_NOTE in table.notes
    alone = build_table(ResultSet("x", trials[::2], config()))
    assert alone.rows["fedavg"][0].mean == pytest.approx(25.1) and ALIKE_NOTE not in alone.notes
