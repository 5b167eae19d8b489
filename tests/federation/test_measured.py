"""What a federation will measure is known before it measures anything."""

from typing import Any

import pytest

from flray.config.loader import load
from flray.errors import ConfigError
from flray.federation.building import build_spec
from flray.federation.evaluation import available_metrics, check_metric
from flray.federation.federation import Federation
from flray.federation.spec import FederationSpec
from flray.federation.worker.client_runner import InlineExecutor
from tests.end_to_end.test_tasks import EEG, FUNDUS, GLYPHS


def world_of(experiment: dict[str, Any], **changes: Any) -> FederationSpec:
    return build_spec(load({"experiment": {**experiment, **changes}}).experiment)


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
    ("name", "said"),
    [
        ("global/common/acuracy", "did you mean 'global/common/accuracy'"),
        (
            "validation/accuracy",
            "validation values need samples kept for it (evaluation.validation)",
        ),
        ("personal/local/accuracy", "fedavg measures no such thing"),
        (
            "acc\nuracy",
            "there are global/common/accuracy, global/common/loss, global/local/accuracy",
        ),
    ],
)
def test_a_metric_that_will_never_be_measured_is_refused(
    digits: dict[str, Any], name: str, said: str
) -> None:
    spec = world_of(digits)
    with pytest.raises(ConfigError) as caught:
        check_metric(spec, name, "sweep.metric")
    assert str(caught.value).startswith(f"sweep.metric: found {name!r}; ") and said in str(
        caught.value
    )
    assert len(str(caught.value).splitlines()) == 1
    check_metric(spec, "train/loss", "sweep.metric")
