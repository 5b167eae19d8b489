"""What a federation will measure is known before it measures anything."""

from typing import Any

import pytest

from flray.federation.evaluation import available_metrics, check_metric
from flray.federation.federation import Federation
from flray.federation.spec import FederationSpec
from flray.federation.worker.client_runner import InlineExecutor
from tests.end_to_end.test_tasks import EEG, FUNDUS, GLYPHS
from tests.helpers import built
from tests.messages import refused


def world_of(experiment: dict[str, Any], **changes: Any) -> FederationSpec:
    return built(experiment, **changes)


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("digits", {}),
        ("digits", {"algorithm": "lgmix", "evaluation": {"validation": 0.2, "others": True}}),
        ("digits", {"algorithm": "fednh"}),
        ("fundus", {}),
        ("eeg", {}),
        ("glyphs", {}),
    ],
)
def test_the_names_are_those_of_an_evaluation(
    digits: dict[str, Any], task: str, changes: dict[str, Any]
) -> None:
    spec = world_of(
        {"digits": digits, "fundus": FUNDUS, "eeg": EEG, "glyphs": GLYPHS}[task], **changes
    )
    federation = Federation(spec, InlineExecutor(spec))
    found = federation.evaluate()
    assert {name for name in found if name.count("/") == 2} == set(available_metrics(spec))
    for name in found:
        check_metric(spec, name, "sweep.metric")


@pytest.mark.parametrize(
    "name",
    ["global/common/acuracy", "validation/accuracy", "personal/local/accuracy", "acc\nuracy"],
)
def test_a_metric_that_will_never_be_measured_is_refused(digits: dict[str, Any], name: str) -> None:
    spec = world_of(digits)
    refused(check_metric, spec, name, "sweep.metric")
    check_metric(spec, "train/loss", "sweep.metric")
